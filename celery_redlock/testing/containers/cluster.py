"""
The lock nodes of a setup.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pytest_celery import CeleryTestCluster

from celery_redlock.core import arm_nodes
from celery_redlock.testing.containers.base import LABELS, HostNode, running_container
from celery_redlock.testing.containers.node import RedlockNodeContainer, RedlockTestNode
from celery_redlock.testing.server import LocalClusterError

__all__ = ["RedlockTestCluster", "running_cluster"]


class RedlockTestCluster(CeleryTestCluster):
    """
    N independent lock nodes, each on a network of its own.

    So a worker can be cut off from some of them while others still reach all.
    """

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
        """The nodes' addresses for this process. A restarted node has another port."""
        return [node.host_url for node in self]

    @property
    def networks(self) -> list[str]:
        """The networks that a worker joins to reach every node."""
        return [node.network for node in self]

    def config(self, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
        """Return the addresses in the form that pytest-celery's clusters use."""
        return {"urls": self.urls, "host_urls": self.host_urls}

    def arm(self) -> None:
        """
        Let every node vote at once, restarted ones too. Only when no lock is held.

        Raises:
            LocalClusterError: a node could not be armed.
        """
        for answer in arm_nodes(self.host_urls, force=True):
            if not answer.serves:
                raise LocalClusterError(f"{answer.name} could not be armed: {answer.detail}")

    def cut_off(self, worker: HostNode, *indexes: int) -> None:
        """
        Take a worker off the networks of some nodes, as `docker network disconnect` does.

        Others go on reaching them. What the worker sends there stays unanswered.
        """
        for index in indexes:
            worker.container.leave(self[index].network)

    def rejoin(self, worker: HostNode, *indexes: int) -> None:
        """Undo `cut_off`."""
        for index in indexes:
            worker.container.join(self[index].network)


@contextlib.contextmanager
def running_cluster(
    client: Any,
    *,
    count: int,
    image: str,
    command: Sequence[str],
    wrapper: type[RedlockNodeContainer] = RedlockNodeContainer,
) -> Iterator[RedlockTestCluster]:
    """Run lock nodes, armed, until the block ends; all are started at once."""
    with contextlib.ExitStack() as stack:
        # Left in this order: the containers go before their networks.
        networks = []
        for _ in range(count):
            network = client.networks.create(f"redlock-{uuid.uuid4()}", labels=LABELS)
            stack.callback(network.remove)
            networks.append(network.name)
        contexts = [
            running_container(
                client,
                wrapper,
                networks=[network],
                image=image,
                command=list(command),
                ports=wrapper.ports(),
            )
            for network in networks
        ]
        with ThreadPoolExecutor(count) as pool:
            containers = list(pool.map(stack.enter_context, contexts))
        cluster = RedlockTestCluster(*containers)
        cluster.arm()
        yield cluster
