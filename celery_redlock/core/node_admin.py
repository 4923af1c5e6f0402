"""
Arming brand-new nodes, so that they vote at once instead of sitting out one longest lease.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.protocol.scripts import ARM_SOURCE
from celery_redlock.transport import NodeAddress, parse_nodes
from celery_redlock.transport.memory import memory_node
from celery_redlock.transport.redis.connector import CheckingParser, describe_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """
    What became of one node.

    Attributes:
        name: the node, without user and password.
        state: `armed`, `serving`, `quarantined`, `other`, `missing` or `failed`.
        detail: what it means, in a sentence.
    """

    name: str
    state: str
    detail: str

    @property
    def serves(self) -> bool:
        """Tell whether the node votes now."""
        return self.state in ("armed", "serving")


_DETAIL = {
    "armed": "brand-new, votes from now on",
    "serving": "votes already",
    "quarantined": "restarted lately and sits out; it votes by itself when old leases have ended",
    "other": "restarted since it last voted; it will sit out and then vote by itself",
    "missing": "has no record of its own",
}
_FORCED = "votes from now on, whatever it knew"
_IN_USE = (
    "has no record although other nodes of the set are in use, so it may have crashed and lost its "
    "locks; it will sit out and then vote by itself"
)
_ALONE = (
    "has no record, and no other node can tell whether it is new or has lost its locks; where the "
    "restart guard is on it will sit out and then vote by itself. If no lease can be left, --force "
    "arms it"
)
_UNKNOWN = (
    "has no record and may have lost its locks; not all nodes could be asked: {silent}. Start "
    "them and run this again, or use --force once no lease can be left"
)


def arm_nodes(nodes: str | Sequence[str], *, force: bool = False) -> list[ArmResult]:
    """
    Let brand-new nodes vote at once.

    A node that crashed and came back empty looks like a new one, so without `force` nodes are
    armed only if there are several, every one answers, and none has a record. Otherwise nothing is
    changed, and `detail` says why. It may be called at any time, and by several at once, as long
    as one node remembers that the set was used. A set that has lost everything on all of its nodes
    looks new: do not call it then until every lease has ended.

    Args:
        nodes: URLs of the whole set.
        force: arm every node that answers, whatever its record says. Only when no lock is held
            anywhere.
    """
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(_open(node))) for node in parse_nodes(nodes)
        ]
        if force:
            return [node.run("force") for node in connections]
        results = [node.run("look") for node in connections]
        why_not_new = _why_not_new(results)
        if why_not_new is None:
            return [node.run("new") for node in connections]
    return [replace(one, detail=why_not_new) if one.state == "missing" else one for one in results]


def _why_not_new(results: Sequence[ArmResult]) -> str | None:
    """Say why a node without a record may be one that forgot; None if all are new."""
    silent = [answer.name for answer in results if answer.state == "failed"]
    if any(answer.state not in ("missing", "failed") for answer in results):
        return _IN_USE
    if silent:
        return _UNKNOWN.format(silent=", ".join(silent))
    return _ALONE if len(results) == 1 else None


class _AdminConnection(ABC):
    """
    One node, on one connection from the look to the arming.

    A server that restarts in between takes the connection with it, so what is armed is the process
    that was looked at, and not one that has forgotten what it granted since.
    """

    def __init__(self, node: NodeAddress) -> None:
        self._node = node

    def run(self, mode: str) -> ArmResult:
        """Run the script, `inspect`, `new` or `force`."""
        try:
            state = self._run(mode)
        except (RedisError, OSError) as exc:
            return ArmResult(name=self._node.name, state="failed", detail=describe_failure(exc))
        detail = _FORCED if (mode, state) == ("force", "armed") else _DETAIL[state]
        return ArmResult(name=self._node.name, state=state, detail=detail)

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _run(self, mode: str) -> str:
        """Run the script and return its answer."""


class _ServerConnection(_AdminConnection):
    """A server."""

    def __init__(self, node: NodeAddress) -> None:
        super().__init__(node)
        self._client: Redis | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _run(self, mode: str) -> str:
        if self._client is None:
            self._client = Redis.from_url(
                self._node.url,
                socket_timeout=2.0,
                socket_connect_timeout=2.0,
                retry=Retry(NoBackoff(), 0),
                parser_class=CheckingParser,
                single_connection_client=True,
            )
        answer = self._client.eval(ARM_SOURCE, 1, GUARD_KEY, mode)
        return answer.decode() if isinstance(answer, bytes) else str(answer)


class _MemoryConnection(_AdminConnection):
    """A node of this process; what the script does, in Python."""

    def __init__(self, node: NodeAddress) -> None:
        super().__init__(node)
        self._memory = memory_node(node)
        self._identity = self._memory.state.identity

    def close(self) -> None:
        """Do nothing."""

    def _run(self, mode: str) -> str:
        node, state = self._memory, self._memory.state
        if node.refusing or node.paused or node.garbage or state.identity != self._identity:
            raise ConnectionError("no answer")
        record = state.guard
        if record is not None and mode != "force":
            if record.identity != state.identity:
                return "other"
            return "quarantined" if node.now_us() < record.not_before else "serving"
        if mode == "look":
            return "missing"
        state.arm()
        return "armed"


def _open(node: NodeAddress) -> _AdminConnection:
    return _MemoryConnection(node) if node.name.startswith("memory://") else _ServerConnection(node)
