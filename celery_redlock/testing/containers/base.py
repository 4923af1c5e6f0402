"""
What can be done to any container: stopping it as a host stops, and taking it off a network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from docker.errors import ImageNotFound
from pytest_celery import CONTAINER_TIMEOUT, CeleryTestContainer, CeleryTestNode
from pytest_docker_tools.exceptions import ContainerError, TimeoutError
from pytest_docker_tools.utils import wait_for_callable

from celery_redlock.testing.server import LocalClusterError

__all__ = ["LABELS", "HostContainer", "HostNode", "running_container"]

#: On all that is made here, for whoever has to clean up after a run that was killed.
LABELS = {"creator": "celery-redlock"}

_LOG_TAIL = 40

C = TypeVar("C", bound="HostContainer")


class HostContainer(CeleryTestContainer):
    """A container that can be paused, and moved between networks."""

    def get_addr(self, port: str) -> tuple[str, int]:
        """
        Return where a port of the container is published on this machine.

        Also where the tests run in a container themselves, together with the engine: there
        pytest-docker-tools gives the port inside, which pytest-celery looks for on localhost.
        """
        return ("127.0.0.1", self.ports[port][0])

    def pause(self) -> None:
        """Freeze all processes; connections stay open, and clocks go on."""
        self._container.pause()
        self.reload()

    def unpause(self) -> None:
        """Let a paused container run on; nothing happens to one that is not paused."""
        self.reload()
        if self.status == "paused":
            self._container.unpause()
            self.reload()

    def join(self, network: str) -> None:
        """Connect the container to a network."""
        self._network(network).connect(self.id)
        self.reload()

    def leave(self, network: str) -> None:
        """Disconnect the container from a network: what was sent on it stays unanswered."""
        self._network(network).disconnect(self.id)
        self.reload()

    @property
    def networks(self) -> list[str]:
        """The names of the networks that it is connected to."""
        return list(self.attrs["NetworkSettings"]["Networks"])

    def _network(self, name: str) -> Any:
        return self._container.client.networks.get(name)


class HostNode(CeleryTestNode):
    """A node of pytest-celery that can be paused as well as killed and restarted."""

    def pause(self) -> None:
        """Freeze the node, as a host that is suspended: its connections stay open."""
        self.container.pause()

    def unpause(self) -> None:
        """Let a paused node run on."""
        self.container.unpause()


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
    Run a container that is on all its networks from its first moment, until the block ends.

    An image that is not on this machine is pulled.

    Args:
        client: a Docker client.
        wrapper: the class that wraps the container and says when it is ready.
        networks: names of networks, at least one.
        timeout: seconds in which it has to be ready.
        options: as for `docker.containers.create`.

    Raises:
        LocalClusterError: it is not ready in time, or has ended; its log is quoted.
        docker.errors.APIError: the image cannot be pulled, or no container be made of it.
    """
    raw = _create(client, network=networks[0], labels=LABELS, **options)
    try:
        for name in networks[1:]:
            client.networks.get(name).connect(raw)
        raw.start()
        container = wrapper(raw)
        try:
            wait_for_callable(f"Waiting for {wrapper.__name__}", container.ready, int(timeout))
        except (ContainerError, TimeoutError) as error:
            # Said here: whoever handles the error finds the container gone.
            raise LocalClusterError(
                f"{wrapper.__name__} {raw.name} is not ready ({error}); its log:\n"
                f"{raw.logs(tail=_LOG_TAIL).decode(errors='replace')}"
            ) from error
        yield container
    finally:
        raw.remove(force=True, v=True)


def _create(client: Any, *, image: str, **options: Any) -> Any:
    try:
        return client.containers.create(image=image, **options)
    except ImageNotFound:
        client.images.pull(image)
        return client.containers.create(image=image, **options)
