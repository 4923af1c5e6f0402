"""
Pytest fixtures, found by pytest when the package is installed.

Nothing is started, and no client library is imported, before a test asks for a fixture.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from celery_redlock.testing.cluster import Binary, LocalCluster
    from celery_redlock.testing.sentinel import LocalSentinel

__all__ = [
    "redlock_cluster",
    "redlock_cluster_factory",
    "redlock_memory_nodes",
    "redlock_sentinel",
    "redlock_sentinel_factory",
    "redlock_testing",
]

#: Seconds.
LONGEST_WAIT = 2.0

_Owner = TypeVar("_Owner", bound="LocalCluster | LocalSentinel")


class _Factory:
    """Starts servers once per session and shape, and makes them as good as new for each call."""

    def __init__(self) -> None:
        self._started: dict[object, Any] = {}

    def _new(self, kind: Callable[..., _Owner], number: int, **options: Any) -> _Owner:
        shape = (number, *options.items())
        if shape not in self._started:
            self._started[shape] = kind(number, **options)
        started: _Owner = self._started[shape]
        started.reset()
        return started

    def close(self) -> None:
        """End all servers."""
        for started in self._started.values():
            started.close()


class ClusterFactory(_Factory):
    """The type of `redlock_cluster_factory`."""

    def __call__(
        self, n: int = 5, *, binary: Binary | tuple[Binary, ...] = None, proxy: bool = False
    ) -> LocalCluster:
        """Return the session's cluster of this shape, as good as new."""
        from celery_redlock.testing.cluster import LocalCluster

        return self._new(LocalCluster, n, binary=binary, proxy=proxy)


class SentinelFactory(_Factory):
    """The type of `redlock_sentinel_factory`."""

    def __call__(
        self,
        groups: int = 3,
        *,
        sentinels: int = 3,
        replicas: int = 1,
        binary: Binary = None,
        proxy: bool = False,
    ) -> LocalSentinel:
        """Return the session's groups of this shape, as good as new."""
        from celery_redlock.testing.sentinel import LocalSentinel

        return self._new(
            LocalSentinel,
            groups,
            sentinels=sentinels,
            replicas=replicas,
            binary=binary,
            proxy=proxy,
        )


@pytest.fixture(scope="session")
def redlock_cluster_factory() -> Iterator[ClusterFactory]:
    """
    Clusters of any shape, each started once per session: `factory(3, proxy=True)`.

    Every call resets the cluster it returns, so one test should not ask for one shape twice.
    """
    with contextlib.closing(ClusterFactory()) as factory:
        yield factory


@pytest.fixture
def redlock_cluster(
    request: pytest.FixtureRequest, redlock_cluster_factory: ClusterFactory
) -> LocalCluster:
    """
    Five real lock nodes, empty and voting. A test may break them: they are repaired for the next.

    Choose another shape by indirect parametrization:
    `@pytest.mark.parametrize("redlock_cluster", [{"n": 3, "proxy": True}], indirect=True)`.
    """
    return redlock_cluster_factory(**getattr(request, "param", {}))


@pytest.fixture(scope="session")
def redlock_sentinel_factory() -> Iterator[SentinelFactory]:
    """
    Sentinel groups of any shape, each started once per session: `factory(1, replicas=2)`.

    Every call resets the groups it returns, so one test should not ask for one shape twice.
    """
    with contextlib.closing(SentinelFactory()) as factory:
        yield factory


@pytest.fixture
def redlock_sentinel(
    request: pytest.FixtureRequest, redlock_sentinel_factory: SentinelFactory
) -> LocalSentinel:
    """
    Three Sentinel groups, empty and voting, and three Sentinels; tests may break them.

    If a test has broken or failed over a group, the next one finds them started again on other
    ports. Choose another shape by indirect parametrization:
    `@pytest.mark.parametrize("redlock_sentinel", [{"groups": 1, "proxy": True}], indirect=True)`.
    """
    return redlock_sentinel_factory(**getattr(request, "param", {}))


@pytest.fixture
def redlock_testing(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Each test finds all `memory://` nodes empty, and nothing in it waits long for a lock.

    A task that would wait for `lock_give_up_after`, and a client for its `wait`, gives up after 2
    seconds; the task's error names this fixture. Limit: this process only.

    For all tests of a project, set `usefixtures = redlock_testing` in the `[pytest]` section of
    pytest.ini. Choose another time by indirect parametrization:
    `@pytest.mark.parametrize("redlock_testing", [10], indirect=True)`.
    """
    from celery_redlock.core.waiting import limit_waits
    from celery_redlock.transport.memory import reset_memory_nodes

    reset_memory_nodes()
    with limit_waits(getattr(request, "param", LONGEST_WAIT)):
        yield


@pytest.fixture
def redlock_memory_nodes() -> list[str]:
    """URLs of five in-process nodes that no other test shares; no server is started."""
    name = uuid.uuid4().hex
    return [f"memory://{name}-{index}" for index in range(5)]
