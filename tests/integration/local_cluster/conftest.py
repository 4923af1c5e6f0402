"""What the local cluster's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.testing import LocalCluster

DEBIAN_REDIS = "/usr/bin/redis-server"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="embedded"),
        pytest.param(DEBIAN_REDIS, id="debian", marks=pytest.mark.system),
    ],
)
def shared(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(2, binary=request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    shared.reset()
    return shared
