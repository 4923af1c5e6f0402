"""
A Celery worker in a container, with this package installed and lock nodes set.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pytest_celery import CeleryTestWorker, CeleryWorkerContainer

from celery_redlock.testing.containers.base import HostContainer, HostNode
from celery_redlock.testing.containers.celery_setup import CLUSTER_CONFIG

__all__ = ["RedlockTestWorker", "RedlockWorkerContainer"]

NODES = "REDLOCK_NODES"

# Inside containers the nodes have other addresses than those of the test's app, which pytest-celery
# writes into the worker's. So these come by the environment, as the broker's does.
_USE_NODES = f"""
import os

if "{NODES}" in os.environ:
    app.conf.redlock_nodes = os.environ["{NODES}"]
"""


class RedlockWorkerContainer(HostContainer, CeleryWorkerContainer):
    """A worker's container; `redlock_nodes` is set in its app."""

    @classmethod
    def version(cls) -> str:
        """The version of Celery in the image: the one that the tests run with."""
        return version("celery")

    @classmethod
    def initial_env(
        cls, celery_worker_cluster_config: dict[str, Any], initial: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the environment: pytest-celery's, and the lock nodes."""
        environment: dict[str, Any] = super().initial_env(celery_worker_cluster_config, initial)
        nodes = celery_worker_cluster_config.get(CLUSTER_CONFIG)
        if nodes:
            environment[NODES] = ",".join(nodes["urls"])
        return environment

    @classmethod
    def initial_content(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the files in /app: pytest-celery's, where the app reads the lock nodes."""
        content: dict[str, Any] = super().initial_content(*args, **kwargs)
        content["app.py"] += _USE_NODES.encode()
        return content


class RedlockTestWorker(HostNode, CeleryTestWorker):
    """A worker that can be paused, and be cut off from lock nodes by `RedlockTestCluster`."""
