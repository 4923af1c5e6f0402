"""
The fixtures. A `conftest.py` may override each of them, like those of pytest-celery.

Fixtures without `redlock` in their name replace those of pytest-celery, so that its setup has lock
nodes and its workers have this package.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    RABBITMQ_CONTAINER_TIMEOUT,
    REDIS_CONTAINER_TIMEOUT,
)
from pytest_docker_tools import build, container, fxtr

from celery_redlock.testing.containers.nodes import (
    LABELS,
    RabbitMQHost,
    RedisHost,
    RedlockNodeContainer,
    RedlockTestCluster,
    running_container,
)
from celery_redlock.testing.containers.worker import (
    CLUSTER_CONFIG,
    PYTHON_IMAGE,
    RedlockTestSetup,
    RedlockTestWorker,
    RedlockWorkerContainer,
    make_context,
    this_package,
)


def _fixture(doc: str, value: object, scope: Literal["function", "session"] = "function") -> Any:
    """Return a fixture with a fixed value."""

    def given() -> object:
        return value

    given.__doc__ = doc
    return pytest.fixture(scope=scope)(given)


def _server(name: str, wrapper: type[Any], timeout: float, **options: Any) -> Any:
    """Return a server's container fixture, made from pytest-celery's fixtures of that name."""
    return container(
        image=f"{{{name}_image}}",
        ports=fxtr(f"{name}_ports"),
        environment=fxtr(f"{name}_env"),
        network="{default_pytest_celery_network.name}",
        wrapper_class=wrapper,
        timeout=timeout,
        **options,
    )


def _redis(name: str) -> Any:
    return _server(name, RedisHost, REDIS_CONTAINER_TIMEOUT, command=fxtr(f"{name}_command"))


redlock_node_count = _fixture("The number of lock nodes of a setup.", 5)
redlock_node_cls = _fixture("The class of the lock nodes' containers.", RedlockNodeContainer)
redlock_worker_python_image = _fixture("The workers' base image.", PYTHON_IMAGE, "session")

celery_setup_cls = _fixture("The class of the setup.", RedlockTestSetup)
default_rabbitmq_broker_cls = _fixture("The class of RabbitMQ's container.", RabbitMQHost)
default_worker_cls = _fixture("The class of workers.", RedlockTestWorker)
default_worker_container_cls = _fixture("The class of workers' containers.", RedlockWorkerContainer)
default_worker_container_session_cls = _fixture(
    "The class that fills the workers' image.", RedlockWorkerContainer, "session"
)

default_rabbitmq_broker = _server(
    "default_rabbitmq_broker", RabbitMQHost, RABBITMQ_CONTAINER_TIMEOUT
)
default_redis_broker = _redis("default_redis_broker")
default_redis_backend = _redis("default_redis_backend")


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
    """Lock nodes for this test alone, empty and ready to vote; the test may break them."""
    with contextlib.ExitStack() as stack:
        contexts = []
        for _ in range(redlock_node_count):
            network = docker_client.networks.create(f"redlock-{uuid.uuid4()}", labels=LABELS)
            # The stack removes the containers first, since they are entered below.
            stack.callback(network.remove)
            contexts.append(
                running_container(
                    docker_client,
                    redlock_node_cls,
                    networks=[network.name],
                    image=redlock_node_image,
                    command=list(redlock_node_command),
                    ports=redlock_node_cls.ports(),
                )
            )
        # All of them start at the same time.
        with ThreadPoolExecutor(redlock_node_count) as pool:
            containers = list(pool.map(stack.enter_context, contexts))
        cluster = RedlockTestCluster(*containers)
        cluster.arm()
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
    """The configuration of workers and of the test's app."""
    return {
        "celery_broker_cluster_config": celery_broker_cluster_config,
        "celery_backend_cluster_config": celery_backend_cluster_config,
        CLUSTER_CONFIG: celery_redlock_cluster_config,
    }


@pytest.fixture(scope="session")
def redlock_worker_package() -> str | Path:
    """The package in the workers' image: a wheel, a source tree, or a requirement for pip."""
    return this_package()


@pytest.fixture(scope="session")
def redlock_worker_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory from which the workers' image is built."""
    return tmp_path_factory.mktemp("worker-image")


@pytest.fixture(scope="session")
def redlock_worker_requirement(
    redlock_worker_context: Path, redlock_worker_package: str | Path
) -> str:
    """The argument of pip in the workers' image, once its build context is written."""
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
        yield lambda: stack.enter_context(
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
) -> Callable[[], RedlockTestWorker]:
    """Start one more worker like the default one."""
    return lambda: default_worker_cls(start_redlock_worker_container(), default_worker_app)
