"""
Facts about lock nodes and their set, as one user sees them, and about this machine's clock.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any, TypeAlias

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from celery_redlock.admin.rights import (
    INFO_RIGHT,
    WAKE_RIGHTS,
    WRITE_PROBE,
    Right,
    missing_rights,
    rights,
)
from celery_redlock.core.settings import ClientSettings
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.commands import ARM_SOURCE
from celery_redlock.protocol.keys import ANY_PAUSE, GUARD_KEY, PAUSE_PREFIX
from celery_redlock.protocol.texts import readable, shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.config.settings import RedlockSettings
from celery_redlock.transport import (
    MEMORY,
    SERVERS,
    NodeAddress,
    NodeKind,
    clock,
    kind_of,
    parse_nodes,
)
from celery_redlock.transport.memory import memory_node
from celery_redlock.transport.redis.connect_error import (
    ConnectError,
    check_identity,
    check_mode,
    describe_failure,
)
from celery_redlock.transport.redis.connector import read_info
from celery_redlock.transport.redis.masters import connector_to
from celery_redlock.transport.redis.sentinel import Report, ask_sentinels

#: Number of round trips whose median is the latency.
_ROUND_TRIPS = 5

#: Positions of fields in the kernel's `struct timex`, and more than its size, in C `long`s.
_FREQUENCY, _TICK, _WORDS = 2, 11, 64

#: `freq` counts 2^-16 millionths; `tick` is the microseconds of one of 100 ticks of a second.
_FREQUENCY_UNIT, _TICK_UNIT, _USUAL_TICK = 1e-6 / 65536, 1e-4, 10_000

#: Seconds by which the rounding of a node's reply may lengthen a quarantine.
_ROUNDING = 1.0

#: The settings of a client, or those of an app.
Settings: TypeAlias = ClientSettings | RedlockSettings


class FailureKind(StrEnum):
    """The kind of remedy that a failure needs."""

    SILENT = "silent"  #: perhaps time: the node does not answer, or not as a lock node
    LOGIN = "login"  #: another user or password
    SETUP = "setup"  #: another URL, or another configuration of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """
    Why a node could not be asked.

    Attributes:
        kind: the kind of remedy.
        text: the reason, without a password.
    """

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelFacts:
    """
    The facts about the Sentinels that a node's URL names.

    Attributes:
        named: how many they are.
        known: how many there are according to those that answer, each of which counts itself too.
        silent: those that report nothing, each with the reason.
        agree: whether all others name one master and take it for alive.
    """

    named: int
    known: int
    silent: tuple[str, ...]
    agree: bool


class Guard(StrEnum):
    """The record by which a node recognises its restart."""

    MISSING = "missing"  #: no record: a new node, or one that lost its data
    SERVING = "serving"  #: a record of the running process; the node votes
    QUARANTINED = "quarantined"  #: a record of the running process; the node does not vote yet
    OTHER = "other"  #: a record of an earlier start; the next acquire begins a quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """
    The facts about one node; None for a fact that it does not show to this user.

    Attributes:
        url: the node, without user, password and query.
        failure: why it could not be asked; then all attributes below are None.
        latency: median round trip, in seconds.
        role: `master` or `replica`.
        server: `valkey`, `redis` or `memory`.
        version: of the server.
        run_id: id of the server process.
        uptime: seconds since the process started.
        persistence: what it writes to its disk: `aof`, `rdb`, `aof+rdb` or `none`.
        maxmemory: limit to its memory in bytes; 0 without one.
        maxmemory_policy: what it evicts at this limit.
        backlog_ttl: `repl-backlog-ttl`, seconds for which a promotion shows; 0: always.
        is_replicated: whether it has replicas, or was promoted.
        replicas: number of replicas that are connected to it.
        min_replicas: `min-replicas-to-write`, without which it refuses all writes.
        sentinels: those that watch it; None for a node that cannot fail over.
        guard: the record of the restart quarantine.
        quarantine_left: seconds until it votes; None if it is not quarantined.
        clock_skew: how far its clock is ahead of this machine's, in seconds, accurate to half a
            round trip.
        skew_from_nodes: how far its clock is ahead of the median of all nodes, in seconds.
        missing_rights: rights that a client needs and the user lacks, as an ACL grants them.
        refusal: the error with which it refuses all writes, such as a full memory.
        paused: the key of the node's longest pause, without the key prefix; None without one.
        paused_for: seconds until that pause ends.
    """

    url: str
    failure: Failure | None = None
    latency: float | None = None
    role: str | None = None
    server: str | None = None
    version: str | None = None
    run_id: str | None = None
    uptime: int | None = None
    persistence: str | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    backlog_ttl: int | None = None
    is_replicated: bool | None = None
    replicas: int | None = None
    min_replicas: int | None = None
    sentinels: SentinelFacts | None = None
    guard: Guard | None = None
    quarantine_left: float | None = None
    clock_skew: float | None = None
    skew_from_nodes: float | None = None
    missing_rights: tuple[str, ...] | None = None
    refusal: str | None = None
    paused: str | None = None
    paused_for: float | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether the node let this user in and answered."""
        return self.failure is None


_NO_SENTINELS = SentinelFacts(named=3, known=3, silent=(), agree=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """
    The facts about one node in its set.

    Attributes:
        node: its report.
        same_as: name of an earlier node that is the same server; None if there is none.
        is_guarded: whether restarted nodes are quarantined.
        set_is_new: no node of the set has a record of the quarantine.
        takeover: seconds after a failover in which a former master may be asked.
        settings: those of the client or the app.
    """

    node: NodeReport
    same_as: str | None
    is_guarded: bool
    set_is_new: bool
    takeover: float
    settings: Settings

    @property
    def quarantine(self) -> float:
        """The seconds for which a restarted node grants nothing."""
        return self.settings.max_ttl + self.takeover

    @property
    def quarantine_setting(self) -> str:
        """The settings of a quarantine, and its seconds."""
        names = "redlock_max_ttl" + " and redlock_takeover" * bool(self.takeover)
        return f"{names}, {'together ' * bool(self.takeover)}{readable(self.quarantine)} s"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The rights that the user lacks."""
        return self.node.missing_rights or ()

    @property
    def locks_lack(self) -> bool:
        """Whether a lacking right is for more than wake-ups and the identity of the server."""
        return not {INFO_RIGHT, *WAKE_RIGHTS}.issuperset(self.lacks)

    def has_record(self, state: Guard) -> bool:
        """Return whether the quarantine is on, and its record in this state."""
        return self.is_guarded and self.node.guard is state

    @property
    def is_quarantined_longer(self) -> bool:
        """Whether a quarantine is longer than that of a client with these settings."""
        return (self.node.quarantine_left or 0.0) > self.quarantine + _ROUNDING

    @property
    def sentinels(self) -> SentinelFacts:
        """Its Sentinels; of a node that has none, some that nothing is wrong with."""
        return self.node.sentinels or _NO_SENTINELS


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFacts:
    """
    The facts about all nodes together.

    Attributes:
        nodes: their reports.
        voters: how many of them vote, as far as is known.
        skew: seconds by which this machine's clock is ahead of the median of the nodes.
        clock_correction: the kernel's correction of this machine's clock rate, as a fraction; 0 if
            unknown.
        settings: as in `NodeFacts`.
    """

    nodes: Sequence[NodeReport]
    voters: int
    skew: float
    clock_correction: float
    settings: Settings

    @property
    def needed(self) -> int:
        """The size of a quorum."""
        return quorum(len(self.nodes))

    @property
    def paused(self) -> str | None:
        """The key whose pause lasts longest on any node."""
        return max(self.nodes, key=lambda one: one.paused_for or 0.0).paused

    @property
    def paused_for(self) -> float:
        """The seconds until that pause ends everywhere."""
        return max(one.paused_for or 0.0 for one in self.nodes)

    @property
    def without_pause(self) -> list[str]:
        """The nodes that answer and do not have that pause as their longest one."""
        return [one.url for one in self.nodes if one.is_reachable and one.paused != self.paused]

    @property
    def versions(self) -> list[str]:
        """The servers and versions among the nodes."""
        return sorted({f"{one.server} {one.version}" for one in self.nodes if one.version})


def report_nodes(
    nodes: str | Sequence[str], *, timeout: float = 1.0, key_prefix: str = "redlock:"
) -> tuple[NodeReport, ...]:
    """
    Ask all nodes at once for the facts about them.

    It writes no key, arms no node and begins no quarantine. Rights are tested with commands on a
    key that does not exist, `redlock-meta:doctor`, in forms that do not create it, and with an
    empty message on a channel without subscribers. A node keeps one script in its script cache, and
    records in its ACL log what it refuses to the user. A node that does not answer takes about
    `timeout`; a slow node takes up to `timeout` for each of some twelve round trips.

    Args:
        nodes: URLs of the whole set.
        timeout: seconds for each reply of a node.
        key_prefix: the setting `redlock_key_prefix`, for which the user needs a right.

    Returns:
        A report for each node, in the order of `nodes`.

    Raises:
        ConfigurationError: the URLs cannot be used.
    """
    return report_addresses(parse_nodes(nodes), timeout=timeout, key_prefix=key_prefix)


def report_addresses(
    addresses: Sequence[NodeAddress], *, timeout: float, key_prefix: str
) -> tuple[NodeReport, ...]:
    """Ask nodes whose URLs have been checked, as `report_nodes` does."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        reports = list(pool.map(lambda node: _report(node, timeout, key_prefix), addresses))
    known = [one.clock_skew for one in reports if one.clock_skew is not None]
    middle = median(known) if known else 0.0
    return tuple(
        one if one.clock_skew is None else replace(one, skew_from_nodes=one.clock_skew - middle)
        for one in reports
    )


def clock_correction() -> float | None:
    """
    Return the kernel's clock-rate correction as a fraction; positive: the clock is made faster.

    Daemons such as chrony do that: by some millionths to correct the oscillator, and by up to a
    tenth while they slew a clock that is wrong. Limit: this machine, at this moment, on Linux; None
    elsewhere, or where the kernel does not answer. It needs no rights.
    """
    if sys.platform != "linux":
        return None
    words = (ctypes.c_long * _WORDS)()
    try:
        if ctypes.CDLL(None).adjtimex(words) < 0:
            return None
    except (AttributeError, OSError):
        return None
    return words[_FREQUENCY] * _FREQUENCY_UNIT + (words[_TICK] - _USUAL_TICK) * _TICK_UNIT


def _report(node: NodeAddress, timeout: float, key_prefix: str) -> NodeReport:
    try:
        return _REPORTS[kind_of(node)](node, timeout, key_prefix)
    except ConfigurationError:
        raise
    except Exception as exc:
        return NodeReport(url=node.name, failure=_failure(exc))


def _failure(exc: Exception) -> Failure:
    kind = FailureKind.SILENT
    if isinstance(exc, ConnectError) and exc.lasting:
        refused = isinstance(exc.__cause__, AuthenticationError | NoPermissionError)
        kind = FailureKind.LOGIN if refused else FailureKind.SETUP
    return Failure(kind=kind, text=describe_failure(exc))


def _memory_report(node: NodeAddress, timeout: float, key_prefix: str) -> NodeReport:
    memory = memory_node(node)
    now_us = memory.now_us()
    longest, left_ms = memory.state.owner(ANY_PAUSE, now_us), None
    if longest is not None and memory.state.owner(longest, now_us) is not None:
        left_ms = memory.state.keys[longest].expires_at - now_us // 1000
    guard, quarantine_left = _guard(MEMORY.session(node, timeout).arm("look"))
    return NodeReport(
        url=node.name,
        latency=0.0,
        role="master",
        server="memory",
        run_id=memory.state.identity.run,
        guard=guard,
        quarantine_left=quarantine_left,
        clock_skew=(now_us - clock.wall_us()) / 1e6,
        missing_rights=(),
        **_pause(longest, left_ms, key_prefix),
    )


def _pause(longest: str | None, left_ms: object, key_prefix: str) -> dict[str, Any]:
    """Return the facts about a node's longest pause, which may have been ended."""
    if longest is None or not isinstance(left_ms, int | float) or left_ms <= 0:
        return {}
    key = longest.removeprefix(PAUSE_PREFIX).removeprefix(key_prefix)
    return {"paused": key, "paused_for": left_ms / 1000}


def _server_report(node: NodeAddress, timeout: float, key_prefix: str) -> NodeReport:
    with connector_to(node, timeout).visit() as connection:
        report = _asked(node, connection, key_prefix)
    if node.fails_over:
        report = replace(report, sentinels=sentinel_facts([*ask_sentinels(node, timeout).values()]))
    return report


def sentinel_facts(reported: Sequence[Report | ConnectError]) -> SentinelFacts:
    """Return the facts about a node's Sentinels, of which each has reported or not."""
    reports = [one for one in reported if isinstance(one, Report)]
    return SentinelFacts(
        named=len(reported),
        known=max((one.others + 1 for one in reports), default=0),
        silent=tuple(str(one).rstrip(".") for one in reported if isinstance(one, ConnectError)),
        agree=len({one.address for one in reports}) == 1 and all(one.vouches for one in reports),
    )


def _asked(node: NodeAddress, connection: Any, key_prefix: str) -> NodeReport:
    (reply,) = _ask(connection, ("INFO",))
    info = read_info(reply) if isinstance(reply, bytes) else {}
    check_mode(info)
    record, looked, save, backlog_ttl, min_replicas, longest = _ask(
        connection,
        ("GET", GUARD_KEY),
        ("EVAL", ARM_SOURCE, "1", GUARD_KEY, "look"),
        ("CONFIG", "GET", "save"),
        ("CONFIG", "GET", "repl-backlog-ttl"),
        ("CONFIG", "GET", "min-replicas-to-write"),
        ("GET", ANY_PAUSE),
    )
    check_identity(info, record.decode() if isinstance(record, bytes) else "")
    guard, quarantine_left = _guard(looked.decode() if isinstance(looked, bytes) else "")
    name = longest.decode(errors="replace") if isinstance(longest, bytes) else None
    left_ms = None if name is None else _ask(connection, ("PTTL", name))[0]
    latency, clock_skew = _timed(connection)
    tried = rights(key_prefix)
    replies = list(zip(tried, _ask(connection, *(right.probe for right in tried)), strict=True))
    return NodeReport(
        url=node.name,
        latency=latency,
        role={"slave": "replica"}.get(info.get("role", ""), info.get("role")),
        server=_server(info),
        version=info.get("valkey_version", info.get("redis_version")),
        run_id=info.get("run_id"),
        uptime=_number(info, "uptime_in_seconds"),
        persistence=_persistence(info, save),
        maxmemory=_number(info, "maxmemory"),
        maxmemory_policy=info.get("maxmemory_policy"),
        backlog_ttl=_configured(backlog_ttl),
        is_replicated=_is_replicated(info),
        replicas=_number(info, "connected_slaves"),
        min_replicas=_configured(min_replicas),
        guard=guard,
        quarantine_left=quarantine_left,
        clock_skew=clock_skew,
        missing_rights=missing_rights(replies),
        refusal=_refusal(replies),
        **_pause(name, left_ms, key_prefix),
    )


def _ask(connection: Any, *commands: tuple[str, ...]) -> list[Any]:
    """Send commands together and return the replies; an error reply is returned, not raised."""
    for command in commands:
        connection.send_command(*command)
    return [_reply(connection) for _ in commands]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def _timed(connection: Any) -> tuple[float, float | None]:
    """Return the median of some round trips, and the clock skew according to the shortest."""
    trips = []
    for _ in range(_ROUND_TRIPS):
        began, wall_us = clock.now(), clock.wall_us()
        (reply,) = _ask(connection, ("TIME",))
        trips.append((clock.now() - began, wall_us, reply))
    shortest, wall_us, reply = min(trips, key=lambda trip: trip[0])
    latency = median(seconds for seconds, _, _ in trips)
    if not isinstance(reply, list):
        return latency, None
    node_us = int(reply[0]) * 1_000_000 + int(reply[1])
    return latency, (node_us - wall_us) / 1e6 - shortest / 2


def _guard(answer: str) -> tuple[Guard | None, float | None]:
    """Return the state in the arming script's answer, and the seconds until it ends, if it does."""
    state, _, seconds = answer.partition(" ")
    return Guard(state) if state else None, float(seconds) if seconds else None


def _server(info: Mapping[str, str]) -> str | None:
    if "valkey_version" in info:
        return "valkey"
    return "redis" if "redis_version" in info else None


def _number(info: Mapping[str, str], name: str) -> int | None:
    return int(info[name]) if info.get(name, "").isdecimal() else None


def _configured(reply: object) -> int | None:
    """Return the number that CONFIG GET shows; None for a user without the right to it."""
    return int(reply[1]) if isinstance(reply, list) and reply[1:] else None


def _is_replicated(info: Mapping[str, str]) -> bool | None:
    if "master_replid2" not in info:
        return None
    return info.get("connected_slaves", "0") != "0" or bool(info["master_replid2"].strip("0"))


def _persistence(info: Mapping[str, str], save: object) -> str | None:
    """Return what is written to disk; snapshots show only to users with the right to CONFIG."""
    has_aof = info.get("aof_enabled") == "1"
    if not isinstance(save, list) or "aof_enabled" not in info:
        return "aof" if has_aof else None
    kinds = {"aof": has_aof, "rdb": bool(save[1:] and save[1])}
    return "+".join(kind for kind, used in kinds.items() if used) or "none"


def _refusal(replies: Iterable[tuple[Right, object]]) -> str | None:
    """Return the error that answered a write, unless the user lacks the right to it."""
    for right, reply in replies:
        if right.probe is WRITE_PROBE and isinstance(reply, ResponseError):
            return None if isinstance(reply, NoPermissionError) else shortened(str(reply))
    return None


_REPORTS: Mapping[NodeKind, Callable[[NodeAddress, float, str], NodeReport]] = {
    SERVERS: _server_report,
    MEMORY: _memory_report,
}
