"""
Administration of nodes: arming brand-new ones, probing whether each can serve, and polling votes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from celery_redlock.core.client import Client
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.commands import acquire, release
from celery_redlock.protocol.keys import META_PREFIX, Key
from celery_redlock.protocol.rounds import Phase, Round
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.protocol.votes import Vote
from celery_redlock.transport import (
    NODE_ERRORS,
    NodeAddress,
    NodeSession,
    borrowed,
    kind_of,
    parse_nodes,
)
from celery_redlock.transport.redis.connect_error import ConnectError, describe_failure
from celery_redlock.transport.redis.node_set import same_server_as

#: Seconds for each reply of a server that is to be armed.
_ARM_TIMEOUT = 2.0

#: Acquired by every poll. If another poll holds it, the node has voted, too.
POLL_KEY = Key.record(META_PREFIX + "poll")

#: Seconds after which a node that was stopped before its release drops the key.
_POLL_TTL = 1.0


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
        "restarted, lost its data or was promoted, or was first used without this command, and "
        "votes by itself in {} s, when old leases have expired; if no lease can be left, --force "
        "ends the wait"
    ),
    "other": (
        "restarted or was promoted since it last voted; it will be quarantined and then vote by "
        "itself"
    ),
    "missing": "has no record of its own",
}
_FORCED = "votes from now on, whatever its record"
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
    changed, and `detail` has the reason. While one node remembers that the set was used, this
    function may be called at any time, by several callers at once. A set that lost the data of all
    its nodes looks new: in that case, call this only when no lease can be left.

    Args:
        nodes: URLs of the whole set.
        force: arm every node that answers, whatever its record. Use this only when no lock is held
            anywhere.
    """
    with contextlib.ExitStack() as stack:
        addresses = parse_nodes(nodes)
        sessions = [(node, kind_of(node).session(node, _ARM_TIMEOUT)) for node in addresses]
        for _, session in sessions:
            stack.callback(session.close)

        def run(mode: str) -> list[ArmResult]:
            return [_run(node, session, mode) for node, session in sessions]

        results = run("look")
        twice = _named_twice([(node.name, one.run_id) for node, one in sessions])
        if twice:
            return [
                replace(result, state="failed", detail=twice[result.name])
                if result.name in twice
                else result
                for result in results
            ]
        if force:
            return run("force")
        why_not_new = _why_not_new(results)
        if why_not_new is None:
            return run("new")
    return [replace(one, detail=why_not_new) if one.state == "missing" else one for one in results]


def _named_twice(nodes: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return the problem of each node that is the same server as an earlier node."""
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


def _run(node: NodeAddress, session: NodeSession, mode: str) -> ArmResult:
    """Run the script, `look`, `new` or `force`."""
    try:
        state, _, seconds = session.arm(mode).partition(" ")
    except NODE_ERRORS as exc:
        return ArmResult(name=node.name, state="failed", detail=describe_failure(exc))
    detail = _FORCED if (mode, state) == ("force", "armed") else _DETAIL[state].format(seconds)
    return ArmResult(name=node.name, state=state, detail=detail)


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
    """Return the result, and the run id of the server that answered, if it shows one."""
    usable = ProbeResult(name=node.name, problem=None, lasting=False)
    try:
        return usable, kind_of(node).probe(node, timeout)
    except ConfigurationError:
        raise
    except Exception as exc:
        lasting = isinstance(exc, ConnectError) and exc.lasting
        return replace(usable, problem=describe_failure(exc), lasting=lasting), None


class PollRound(Round):
    """A round that ends with the vote of the last node."""

    __slots__ = ()

    def vote(self, node: int, vote: Vote, now: float) -> Phase:
        """Count one node's reply and return the phase after it."""
        if self.votes[node] is None:
            self.votes[node] = vote
            if None not in self.votes:
                return self._enter(Phase.GRANTED)
        return self.phase


def poll_nodes(client: Client) -> PollRound:
    """
    Ask every node for a lock, release it, and return the votes: which nodes vote now.

    Takes about the node timeout, whatever a quorum decides. Like any acquire, it begins the
    quarantine of a node that restarted.
    """
    transport, settings = client.transport, client.settings
    round_ = PollRound(len(transport.names))
    owner = client.new_owner_value("poll")
    command = acquire(
        (POLL_KEY,), owner, milliseconds(_POLL_TTL), transport.wall_us(), settings.quarantine_ms
    )
    with borrowed(transport) as channel:
        channel.connect()
        channel.exchange(((command, round_),), settings.node_timeout)
        channel.send(release((POLL_KEY,), owner, 0))
    return round_
