"""Two workers, five lock nodes, RabbitMQ and a result store, each in a container of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_celery import RABBITMQ_CONTAINER_TIMEOUT, CeleryWorkerCluster
from pytest_docker_tools import container, fxtr, network

from celery_redlock.testing.containers import RedlockTestCluster, RedlockTestSetup
from celery_redlock.testing.containers.nodes import RabbitMQHost
from celery_redlock.testing.containers.plugin import *  # noqa: F403  # pytest finds fixtures so
from tests.acceptance.apps import visible
from tests.acceptance.scene import Journal, Lock
from tests.containers import tasks
from tests.containers.stage import QUEUE, Stage
from tests.containers.tasks import MAX_TTL

# RabbitMQ takes longer to start than most scenes last, so all share one; the network with it.
default_pytest_celery_network = network(scope="session")
default_rabbitmq_broker = container(
    scope="session",
    image=RabbitMQHost.image(),
    environment=RabbitMQHost.initial_env(),
    ports=fxtr("broker_ports"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=RabbitMQHost,
    timeout=RABBITMQ_CONTAINER_TIMEOUT,
)


@pytest.fixture(scope="session")
def broker_ports() -> dict[str, int]:
    """One that stays the same when the broker restarts, so that this process finds it again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"5672/tcp": free.getsockname()[1]}


@pytest.fixture
def celery_broker(celery_rabbitmq_broker: Any) -> Iterator[Any]:
    """The broker of all scenes; it runs again after one that has ended it."""
    yield celery_rabbitmq_broker
    celery_rabbitmq_broker.container.reload()
    if celery_rabbitmq_broker.container.status != "running":
        celery_rabbitmq_broker.restart()


@pytest.fixture
def celery_backend(celery_redis_backend: Any) -> Any:
    return celery_redis_backend


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
def celery_worker_cluster(start_redlock_worker: Any, celery_setup_app: Any) -> Any:
    """Two workers, and none of the messages that an earlier scene may have left."""
    with celery_setup_app.connection_for_write() as connection:
        connection.default_channel.queue_delete(QUEUE)
    with ThreadPoolExecutor() as pool:
        workers = [pool.submit(start_redlock_worker) for _ in range(2)]
    return CeleryWorkerCluster(*(worker.result() for worker in workers))


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[Any]) -> set[Any]:
    return default_worker_tasks | {visible, tasks}


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
