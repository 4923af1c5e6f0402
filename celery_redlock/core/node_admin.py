"""
Administration of nodes: arming brand-new ones, and probing whether each can serve.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.protocol.scripts import ARM_SOURCE
from celery_redlock.transport import NodeAddress, parse_nodes
from celery_redlock.transport.memory import memory_node
from celery_redlock.transport.redis.connect_error import ConnectError, describe_failure
from celery_redlock.transport.redis.connector import Connector
from celery_redlock.transport.redis.node_set import same_server_as


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """
    The result of arming one node.

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
        """Whether the node votes now."""
        return self.state in ("armed", "serving")


_DETAIL = {
    "armed": "brand-new, votes from now on",
    "serving": "votes already",
    "quarantined": (
        "restarted, lost its data or was promoted, and is quarantined for {} s more, until old "
        "leases have expired"
    ),
    "other": (
        "restarted or was promoted since it last voted; it will be quarantined and then vote by "
        "itself"
    ),
    "missing": "has no record of its own",
}
_FORCED = "votes from now on, whatever it knew"
_IN_USE = (
    "has no record although other nodes of the set are in use, so it may have crashed and lost its "
    "locks; it will be quarantined and then vote by itself"
)
_ALONE = (
    "has no record, and no other node can show whether it is new or has lost its locks; unless the "
    "quarantine is off it will be quarantined and then vote by itself. If no lease can be left, "
    "--force arms it"
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
    changed, and `detail` names why. It may be called at any time, and by several callers at once,
    while one node remembers that the set was used. A set that lost the data of all its nodes looks
    new: do not call it then until every lease has expired.

    Args:
        nodes: URLs of the whole set.
        force: arm every node that answers, whatever its record. Only when no lock is held
            anywhere.
    """
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(_open(node))) for node in parse_nodes(nodes)
        ]
        results = [node.run("look") for node in connections]
        twice = _named_twice([(node.name, node.run_id) for node in connections])
        if twice:
            return [
                replace(result, state="failed", detail=twice[result.name])
                if result.name in twice
                else result
                for result in results
            ]
        if force:
            return [node.run("force") for node in connections]
        why_not_new = _why_not_new(results)
        if why_not_new is None:
            return [node.run("new") for node in connections]
    return [replace(one, detail=why_not_new) if one.state == "missing" else one for one in results]


def _named_twice(nodes: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return for each node that is the server of an earlier one what is wrong with it."""
    found, first = {}, dict[str, str]()
    for name, run_id in nodes:
        if run_id is not None and first.setdefault(run_id, name) != name:
            found[name] = same_server_as(first[run_id])
    return found


def _why_not_new(results: Sequence[ArmResult]) -> str | None:
    """Return why a node without a record may be one that lost it; None if all are new."""
    silent = [answer.name for answer in results if answer.state == "failed"]
    if any(answer.state not in ("missing", "failed") for answer in results):
        return _IN_USE
    if silent:
        return _UNKNOWN.format(silent=", ".join(silent))
    return _ALONE if len(results) == 1 else None


class _AdminConnection(ABC):
    """
    One node, on one connection from the check to the arming.

    A server that restarts in between takes the connection with it, so what is armed is the process
    that was checked, and not one that lost what it granted since.
    """

    #: Of the server that answered; None where it does not show it.
    run_id: str | None = None

    def __init__(self, node: NodeAddress) -> None:
        self._node = node

    @property
    def name(self) -> str:
        """The node, without user and password."""
        return self._node.name

    def run(self, mode: str) -> ArmResult:
        """Run the script, `look`, `new` or `force`."""
        try:
            state, _, seconds = self._run(mode).partition(" ")
        except (ConnectError, RedisError, OSError) as exc:
            return ArmResult(name=self._node.name, state="failed", detail=describe_failure(exc))
        detail = _FORCED if (mode, state) == ("force", "armed") else _DETAIL[state].format(seconds)
        return ArmResult(name=self._node.name, state=state, detail=detail)

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _run(self, mode: str) -> str:
        """Run the script and return its answer: a state, and the seconds that it lasts if known."""


#: Seconds for each reply of a server that is to be armed.
_ARM_TIMEOUT = 2.0


class _ServerConnection(_AdminConnection):
    """A server."""

    def __init__(self, node: NodeAddress) -> None:
        super().__init__(node)
        self._connection: Any = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.disconnect()

    def _run(self, mode: str) -> str:
        if self._connection is None:
            self._connection, info = Connector(self._node, _ARM_TIMEOUT).open()
            self.run_id = info.get("run_id") if info else None
        self._connection.send_command("EVAL", ARM_SOURCE, 1, GUARD_KEY, mode)
        answer = self._connection.read_response()
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
            if not state.identity.has_lost_nothing_since(record):
                return "other"
            remaining = record.not_before - node.now_us()
            return f"quarantined {-(-remaining // 1_000_000)}" if remaining > 0 else "serving"
        if mode == "look":
            return "missing"
        state.arm()
        return "armed"


def look_at_memory_node(node: NodeAddress) -> str:
    """Return what the script answers to `look`; `OSError` if the node is silent."""
    return _MemoryConnection(node)._run("look")


def _open(node: NodeAddress) -> _AdminConnection:
    return _MemoryConnection(node) if node.name.startswith("memory://") else _ServerConnection(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """
    The result of probing one node.

    Attributes:
        name: the node, without user and password.
        problem: why it cannot serve; None if it can.
        lasting: the node or its URL is set up wrongly, which no waiting repairs.
    """

    name: str
    problem: str | None
    lasting: bool


def probe_nodes(nodes: str | Sequence[str], *, timeout: float = 1.0) -> list[ProbeResult]:
    """Connect to each node, authenticate, and load the scripts; takes about `timeout` at most."""
    addresses = parse_nodes(nodes)
    with ThreadPoolExecutor(len(addresses)) as pool:
        probes = list(pool.map(lambda node: _probe(node, timeout), addresses))
    twice = _named_twice([(result.name, run_id) for result, run_id in probes])
    return [
        replace(result, problem=twice[result.name], lasting=True)
        if result.name in twice
        else result
        for result, _ in probes
    ]


def _probe(node: NodeAddress, timeout: float) -> tuple[ProbeResult, str | None]:
    """Return the result, and the run id of the server that answered, where it shows it."""
    usable = ProbeResult(name=node.name, problem=None, lasting=False)
    if node.name.startswith("memory://"):
        return usable, None
    try:
        connection, run_id = Connector(node, timeout).connect(native=False)
    except ConfigurationError:
        raise
    except Exception as exc:
        lasting = isinstance(exc, ConnectError) and exc.lasting
        return replace(usable, problem=describe_failure(exc), lasting=lasting), None
    connection.close()
    return usable, run_id
