"""What a local cluster's tests ask its servers."""

from __future__ import annotations

from celery_redlock.testing import LocalCluster

GUARD = "redlock-meta:guard"


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def process_of(cluster: LocalCluster, index: int) -> int:
    return int(cluster.client(index).info("server")["process_id"])
