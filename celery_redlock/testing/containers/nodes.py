"""
Lock nodes and brokers in containers, which tests can kill, freeze, restart and cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from docker.errors import ImageNotFound
from pytest_celery import (
    CONTAINER_TIMEOUT,
    CeleryTestCluster,
    CeleryTestContainer,
    CeleryTestNode,
    RabbitMQContainer,
    RedisContainer,
)
from pytest_docker_tools.exceptions import ContainerError, TimeoutError
from pytest_docker_tools.utils import wait_for_callable

from celery_redlock.protocol.commands import ARM_SOURCE
from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.testing.server import LocalClusterError, arm_servers

#: Labels of every container and network made here, to find what a killed run has left.
LABELS = {"creator": "celery-redlock"}

_LOG_TAIL = 40

C = TypeVar("C", bound="HostContainer")


class HostContainer(CeleryTestContainer):
    """A container that can be frozen, and moved between networks."""

    def get_addr(self, port: str) -> tuple[str, int]:
        """Return where the engine publishes a port of the container on this machine."""
        # If the tests themselves run in a container, pytest-docker-tools gives the port inside.
        return ("127.0.0.1", self.ports[port][0])

    def pause(self) -> None:
        """Freeze all processes: connections stay open, and clocks keep running."""
        self._container.pause()
        self.reload()

    def unpause(self) -> None:
        """Let a frozen container run again; do nothing to a running one."""
        self.reload()
        if self.status == "paused":
            self._container.unpause()
            self.reload()

    def join(self, network: str) -> None:
        """Connect the container to a network."""
        self._container.client.networks.get(network).connect(self.id)
        self.reload()

    def leave(self, network: str) -> None:
        """Disconnect the container from a network: what it sends there gets no answer."""
        self._container.client.networks.get(network).disconnect(self.id)
        self.reload()

    @property
    def networks(self) -> list[str]:
        """The names of its networks."""
        return list(self.attrs["NetworkSettings"]["Networks"])


class HostNode(CeleryTestNode):
    """A node of pytest-celery that can be frozen as well as killed and restarted."""

    def pause(self) -> None:
        """Freeze the node, like a suspended host: its connections stay open."""
        self.container.pause()

    def unpause(self) -> None:
        """Let a frozen node run again."""
        self.container.unpause()


class RabbitMQHost(HostContainer, RabbitMQContainer):
    """RabbitMQ as the broker."""

    @classmethod
    def initial_env(cls) -> dict[str, str]:
        """Return an environment that logs to the console, where pytest-celery reads."""
        # Not every build of the image logs there by default.
        return {**super().initial_env(), "RABBITMQ_LOGS": "-"}


class RedisHost(HostContainer, RedisContainer):
    """Redis as the broker, or as the backend."""


class RedlockNodeContainer(HostContainer, RedisContainer):
    """A Redis server as a lock node: an independent master that keeps nothing on disk."""

    @classmethod
    def image(cls) -> str:
        """Return the image; any image with a `redis-server` will do."""
        return "redis:7-bookworm"


class RedlockTestNode(HostNode):
    """
    A lock node, on a network of its own.

    Its data is in memory: a restarted node comes back empty and does not vote for one
    `redlock_max_ttl`.
    """

    @property
    def network(self) -> str:
        """The network on which workers reach this node."""
        return str(self.container.networks[0])

    @property
    def url(self) -> str:
        """The address for containers on that network."""
        return str(self.container.url)

    @property
    def host_url(self) -> str:
        """The address for this process; the port changes when the node restarts."""
        return str(self.container.host_url)

    @property
    def client(self) -> Any:
        """A redis-py client."""
        return self.container.client

    @property
    def state(self) -> str:
        """
        The state of the restart quarantine, as `celery-redlock init` shows it.

        `serving` if the node votes, `quarantined` if it does not vote yet, `missing` or `other` if
        no client has used it since it restarted.
        """
        return str(self.client.eval(ARM_SOURCE, 1, GUARD_KEY, "look")).partition(" ")[0]


class RedlockTestCluster(CeleryTestCluster):
    """Independent lock nodes, each on a network of its own, which a worker can leave."""

    def _set_nodes(
        self,
        *nodes: RedlockTestNode | RedlockNodeContainer,
        node_cls: type[RedlockTestNode] = RedlockTestNode,
    ) -> tuple[RedlockTestNode, ...]:
        made: tuple[RedlockTestNode, ...] = super()._set_nodes(*nodes, node_cls=node_cls)
        return made

    @property
    def urls(self) -> list[str]:
        """The nodes' addresses for workers."""
        return [node.url for node in self]

    @property
    def host_urls(self) -> list[str]:
        """The nodes' addresses for this process; the port of a restarted node changes."""
        return [node.host_url for node in self]

    @property
    def networks(self) -> list[str]:
        """The networks that a worker joins to reach every node."""
        return [node.network for node in self]

    def config(self, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
        """Return the addresses as the clusters of pytest-celery do."""
        return {"urls": self.urls, "host_urls": self.host_urls}

    def arm(self) -> None:
        """
        Let every node vote at once, restarted ones included; only while no lock is held.

        Raises:
            LocalClusterError: a node still does not vote.
        """
        arm_servers(self.host_urls)

    def cut_off(self, worker: HostNode, *indexes: int) -> None:
        """Take a worker off the networks of some nodes; other workers still reach them."""
        for index in indexes:
            worker.container.leave(self[index].network)

    def rejoin(self, worker: HostNode, *indexes: int) -> None:
        """Undo `cut_off`."""
        for index in indexes:
            worker.container.join(self[index].network)


@contextlib.contextmanager
def running_container(
    client: Any,
    wrapper: type[C],
    *,
    networks: Sequence[str],
    timeout: float = CONTAINER_TIMEOUT,
    **options: Any,
) -> Iterator[C]:
    """
    Run a container for a block, on all its networks from the start; pull a missing image.

    Args:
        client: a Docker client.
        wrapper: the class that wraps the container, and knows when it is ready.
        networks: names of networks, at least one.
        timeout: seconds in which it has to be ready.
        options: as for `docker.containers.create`.

    Raises:
        LocalClusterError: it was not ready in time, or has ended; the message quotes its log.
        docker.errors.APIError: the engine cannot pull the image, or not create the container.
    """
    options = {**options, "network": networks[0], "labels": LABELS}
    try:
        raw = client.containers.create(**options)
    except ImageNotFound:
        client.images.pull(options["image"])
        raw = client.containers.create(**options)
    try:
        for name in networks[1:]:
            client.networks.get(name).connect(raw)
        raw.start()
        container = wrapper(raw)
        try:
            wait_for_callable(f"Waiting for {wrapper.__name__}", container.ready, int(timeout))
        except (ContainerError, TimeoutError) as error:
            # Quoted now: the container is removed before the error is handled.
            raise LocalClusterError(
                f"{wrapper.__name__} {raw.name} is not ready ({error}); its log:\n"
                f"{raw.logs(tail=_LOG_TAIL).decode(errors='replace')}"
            ) from error
        yield container
    finally:
        raw.remove(force=True, v=True)
