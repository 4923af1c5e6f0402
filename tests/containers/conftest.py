"""Two workers, five lock nodes, RabbitMQ and a result store, each in a container of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("pytest_celery") is None:
    collect_ignore_glob = ["*.py"]
else:
    from pytest_celery import CeleryWorkerCluster

    from celery_redlock.testing.containers import RedlockTestCluster, RedlockTestSetup
    from celery_redlock.testing.containers.plugin import *  # noqa: F403  # pytest finds fixtures so
    from tests.acceptance.apps import seen
    from tests.acceptance.scene import Journal, Lock
    from tests.containers import tasks
    from tests.containers.stage import Stage
    from tests.containers.tasks import MAX_TTL

    class Setup(RedlockTestSetup):
        @classmethod
        def update_app_config(cls, app: Any) -> None:
            app.conf.update(
                redlock_max_ttl=MAX_TTL,
                broker_connection_retry_on_startup=True,
                worker_prefetch_multiplier=1,
            )

    @pytest.fixture
    def celery_setup_cls() -> type[RedlockTestSetup]:
        return Setup

    @pytest.fixture
    def celery_broker(celery_rabbitmq_broker: Any) -> Any:
        return celery_rabbitmq_broker

    @pytest.fixture
    def default_rabbitmq_broker_ports() -> dict[str, int]:
        """One that stays the same when the broker restarts, so that this process finds it again."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return {"5672/tcp": free.getsockname()[1]}

    @pytest.fixture
    def celery_backend(celery_redis_backend: Any) -> Any:
        return celery_redis_backend

    @pytest.fixture
    def celery_worker_cluster(start_redlock_worker: Any) -> Any:
        with ThreadPoolExecutor() as pool:
            workers = [pool.submit(start_redlock_worker) for _ in range(2)]
        return CeleryWorkerCluster(*(worker.result() for worker in workers))

    @pytest.fixture
    def default_worker_tasks(default_worker_tasks: set[Any]) -> set[Any]:
        return default_worker_tasks | {seen, tasks}

    @pytest.fixture
    def default_worker_env(
        default_worker_env: dict[str, str], celery_backend_cluster_config: dict[str, Any]
    ) -> dict[str, str]:
        """Bodies write their journal into the result store."""
        stage = {"urls": {"journal": celery_backend_cluster_config["urls"][0]}}
        return {**default_worker_env, "ACCEPTANCE_STAGE": json.dumps(stage)}

    _numbers = itertools.count(1)

    @pytest.fixture
    def key(request: pytest.FixtureRequest) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_"))
        return f"{name[:40]}-{os.getpid()}-{next(_numbers)}"

    @pytest.fixture
    def stage(celery_setup: Any, key: str) -> Stage:
        return Stage(celery_setup, key)

    @pytest.fixture
    def lock(key: str, celery_redlock_cluster: RedlockTestCluster) -> Iterator[Lock]:
        lock = Lock(key, celery_redlock_cluster.host_urls)
        yield lock
        lock.close()

    @pytest.fixture
    def journal(key: str, celery_backend_cluster_config: dict[str, Any]) -> Iterator[Journal]:
        journal = Journal(key, celery_backend_cluster_config["host_urls"][0])
        yield journal
        journal.open()
        journal.close()
