"""
One lock node in a container of its own.
"""

from __future__ import annotations

from typing import Any

from pytest_celery import RedisContainer

from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.protocol.scripts import ARM_SOURCE
from celery_redlock.testing.containers.base import HostContainer, HostNode

__all__ = ["RedlockNodeContainer", "RedlockTestNode"]

IMAGE = "redis:7-bookworm"


class RedlockNodeContainer(HostContainer, RedisContainer):
    """A Redis server as a lock node: an independent master that keeps nothing on disk."""

    @classmethod
    def image(cls) -> str:
        """The image; anything with a `redis-server` serves."""
        return IMAGE


class RedlockTestNode(HostNode):
    """
    A lock node, on a network that it shares only with those who may reach it.

    Its data is in memory: a restarted node comes back empty and sits out one `redlock_max_ttl`,
    which is what the restart guard is for.
    """

    @property
    def network(self) -> str:
        """The name of the network where workers reach this node."""
        return str(self.container.networks[0])

    @property
    def url(self) -> str:
        """The address for containers on the node's network."""
        return str(self.container.url)

    @property
    def host_url(self) -> str:
        """The address for this process. Its port is another one after a restart."""
        return str(self.container.host_url)

    @property
    def client(self) -> Any:
        """A redis-py client."""
        return self.container.client

    @property
    def state(self) -> str:
        """
        What the restart guard says, as `celery-redlock init` shows it.

        `serving` where the node votes, `quarantined` while it sits out, `missing` or `other` when
        nobody has asked it for a lock since it restarted.
        """
        return str(self.client.eval(ARM_SOURCE, 1, GUARD_KEY, "look"))
