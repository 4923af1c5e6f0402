"""
The fixtures; each may be overridden in a `conftest.py`, as those of pytest-celery.

Those without `redlock` in their name are pytest-celery's, taken over so that its setup has lock
nodes and its workers have this package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    RABBITMQ_CONTAINER_TIMEOUT,
    REDIS_CONTAINER_TIMEOUT,
)
from pytest_docker_tools import build, container, fxtr

from celery_redlock.testing.containers.base import running_container
from celery_redlock.testing.containers.broker_nodes import RabbitMQHost, RedisHost
from celery_redlock.testing.containers.celery_setup import CLUSTER_CONFIG, RedlockTestSetup
from celery_redlock.testing.containers.cluster import RedlockTestCluster, running_cluster
from celery_redlock.testing.containers.image import PYTHON_IMAGE, make_context, this_package
from celery_redlock.testing.containers.node import RedlockNodeContainer
from celery_redlock.testing.containers.worker import RedlockTestWorker, RedlockWorkerContainer

StartWorker = Callable[[], RedlockTestWorker]


@pytest.fixture
def redlock_node_count() -> int:
    """How many lock nodes a setup has."""
    return 5


@pytest.fixture
def redlock_node_cls() -> type[RedlockNodeContainer]:
    """The class of the lock nodes' containers."""
    return RedlockNodeContainer


@pytest.fixture
def redlock_node_image(redlock_node_cls: type[RedlockNodeContainer]) -> str:
    """The image of the lock nodes."""
    return redlock_node_cls.image()


@pytest.fixture
def redlock_node_command(redlock_node_cls: type[RedlockNodeContainer]) -> list[str]:
    """The command of the lock nodes."""
    return list(redlock_node_cls.command())


@pytest.fixture
def celery_redlock_cluster(
    docker_client: Any,
    redlock_node_count: int,
    redlock_node_cls: type[RedlockNodeContainer],
    redlock_node_image: str,
    redlock_node_command: list[str],
) -> Iterator[RedlockTestCluster]:
    """The test's own lock nodes, empty and ready to vote; it may break them as it likes."""
    with running_cluster(
        docker_client,
        count=redlock_node_count,
        image=redlock_node_image,
        command=redlock_node_command,
        wrapper=redlock_node_cls,
    ) as cluster:
        yield cluster
        cluster.teardown()


@pytest.fixture
def celery_redlock_cluster_config(celery_redlock_cluster: RedlockTestCluster) -> dict[str, Any]:
    """The lock nodes' addresses, for workers (`urls`) and for the test (`host_urls`)."""
    return celery_redlock_cluster.config()


@pytest.fixture
def celery_worker_cluster_config(
    celery_broker_cluster_config: dict[str, Any],
    celery_backend_cluster_config: dict[str, Any],
    celery_redlock_cluster_config: dict[str, Any],
) -> dict[str, Any]:
    """What workers and the test's app are configured from."""
    return {
        "celery_broker_cluster_config": celery_broker_cluster_config,
        "celery_backend_cluster_config": celery_backend_cluster_config,
        CLUSTER_CONFIG: celery_redlock_cluster_config,
    }


@pytest.fixture
def default_rabbitmq_broker_cls() -> type[RabbitMQHost]:
    """The class of RabbitMQ's container."""
    return RabbitMQHost


default_rabbitmq_broker = container(
    image="{default_rabbitmq_broker_image}",
    ports=fxtr("default_rabbitmq_broker_ports"),
    environment=fxtr("default_rabbitmq_broker_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=RabbitMQHost,
    timeout=RABBITMQ_CONTAINER_TIMEOUT,
)


def _redis(name: str) -> Any:
    """Return the fixture of a Redis container, made of pytest-celery's fixtures of that name."""
    return container(
        image=f"{{{name}_image}}",
        ports=fxtr(f"{name}_ports"),
        environment=fxtr(f"{name}_env"),
        network="{default_pytest_celery_network.name}",
        wrapper_class=RedisHost,
        timeout=REDIS_CONTAINER_TIMEOUT,
        command=fxtr(f"{name}_command"),
    )


default_redis_broker = _redis("default_redis_broker")
default_redis_backend = _redis("default_redis_backend")


@pytest.fixture
def celery_setup_cls() -> type[RedlockTestSetup]:
    """The class of the setup."""
    return RedlockTestSetup


@pytest.fixture
def default_worker_cls() -> type[RedlockTestWorker]:
    """The class of workers."""
    return RedlockTestWorker


@pytest.fixture
def default_worker_container_cls() -> type[RedlockWorkerContainer]:
    """The class of workers' containers."""
    return RedlockWorkerContainer


@pytest.fixture(scope="session")
def default_worker_container_session_cls() -> type[RedlockWorkerContainer]:
    """The class that says what is in the workers' image."""
    return RedlockWorkerContainer


@pytest.fixture(scope="session")
def redlock_worker_package() -> str | Path:
    """
    What is installed in the workers' image: this package as it is installed here.

    Override it with the path of a wheel, of a source tree, or with a requirement for pip.
    """
    return this_package()


@pytest.fixture(scope="session")
def redlock_worker_python_image() -> str:
    """The image that the workers' is based on: the tests' own version of Python."""
    return PYTHON_IMAGE


@pytest.fixture(scope="session")
def redlock_worker_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the workers' image is built from."""
    return tmp_path_factory.mktemp("worker-image")


@pytest.fixture(scope="session")
def redlock_worker_requirement(
    redlock_worker_context: Path, redlock_worker_package: str | Path
) -> str:
    """What pip installs in the workers' image, once its build context is written."""
    return make_context(redlock_worker_context, redlock_worker_package)


celery_base_worker_image = build(
    path="{redlock_worker_context}",
    tag="celery-redlock/components/worker:default",
    buildargs={
        "PYTHON_IMAGE": fxtr("redlock_worker_python_image"),
        "CELERY_VERSION": fxtr("default_worker_celery_version"),
        "PACKAGE": fxtr("redlock_worker_requirement"),
    },
)


@pytest.fixture
def start_redlock_worker_container(
    docker_client: Any,
    celery_base_worker_image: Any,
    default_worker_container_cls: type[RedlockWorkerContainer],
    default_worker_command: list[str],
    default_worker_env: dict[str, Any],
    default_worker_ports: dict[str, Any] | None,
    default_worker_volume: Any,
    default_pytest_celery_network: Any,
    celery_redlock_cluster: RedlockTestCluster,
) -> Iterator[Callable[[], RedlockWorkerContainer]]:
    """Start one more container of the default worker, which reaches all lock nodes."""
    with contextlib.ExitStack() as stack:

        def start() -> RedlockWorkerContainer:
            return stack.enter_context(
                running_container(
                    docker_client,
                    default_worker_container_cls,
                    networks=[default_pytest_celery_network.name, *celery_redlock_cluster.networks],
                    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
                    image=celery_base_worker_image.id,
                    command=default_worker_command,
                    environment=default_worker_env,
                    ports=default_worker_ports,
                    volumes={default_worker_volume.name: DEFAULT_WORKER_VOLUME},
                )
            )

        yield start


@pytest.fixture
def default_worker_container(
    start_redlock_worker_container: Callable[[], RedlockWorkerContainer],
) -> RedlockWorkerContainer:
    """The container of the setup's worker."""
    return start_redlock_worker_container()


@pytest.fixture
def start_redlock_worker(
    start_redlock_worker_container: Callable[[], RedlockWorkerContainer],
    default_worker_cls: type[RedlockTestWorker],
    default_worker_app: Any,
) -> StartWorker:
    """Start one more worker like the default one: for setups with several, and newcomers."""
    return lambda: default_worker_cls(start_redlock_worker_container(), default_worker_app)
