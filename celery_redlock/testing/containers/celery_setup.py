"""
A setup of pytest-celery whose app knows the lock nodes.
"""

from __future__ import annotations

from typing import Any

from pytest_celery import CeleryTestSetup

__all__ = ["CLUSTER_CONFIG", "RedlockTestSetup"]

CLUSTER_CONFIG = "celery_redlock_cluster_config"


class RedlockTestSetup(CeleryTestSetup):
    """Broker, backend, workers, and lock nodes for all of them."""

    @classmethod
    def config(cls, celery_worker_cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Return the test's own Celery settings: those of pytest-celery and `redlock_nodes`."""
        config: dict[str, Any] = super().config(celery_worker_cluster_config)
        nodes = celery_worker_cluster_config.get(CLUSTER_CONFIG)
        if nodes:
            config["redlock_nodes"] = nodes["host_urls"]
        return config
