"""
Findings about a set of lock nodes, from the facts about them: tables of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Generic, TypeVar

from celery_redlock.admin.node_report import FailureKind, Guard, NodeReport
from celery_redlock.admin.rights import INFO_RIGHT, WAKE_RIGHTS
from celery_redlock.protocol import quorum
from celery_redlock.protocol.texts import readable
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US
from celery_redlock.transport import advice_about

__all__ = ["NODE", "SET", "UNUSABLE", "Finding", "Row", "Severity", "as_data", "by_urgency"]
__all__ += ["diagnose", "findings_from"]

#: Seconds by which a clock may be wrong before it is worth a finding.
_SKEW = 1.0

#: Seconds by which the rounding of a node's reply may lengthen a quarantine.
_ROUNDING = 1.0

#: The part of the node timeout that a round trip may take before it is worth a finding.
_SLOW = 0.1


#: Seconds of `repl-backlog-ttl` that servers have by default.
_BACKLOG_TTL = 3600


class Severity(StrEnum):
    """How urgent a finding is."""

    ERROR = "error"  #: locks fail or can be lost, or a node does not take part
    WARNING = "warning"  #: less is borne than it seems, or a part of the package does without
    INFO = "info"  #: nothing has to be done


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """
    One thing that is wrong.

    Attributes:
        severity: how urgent it is.
        node: the node, without user and password; None if it concerns the whole set.
        code: its kind, in words with hyphens; it does not change from one version to the next.
        message: what is wrong and the remedy.
    """

    severity: Severity
    node: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """
    The facts about one node, beside the others.

    Attributes:
        node: what it shows.
        same_as: name of an earlier node that is the same server; None if there is none.
        is_guarded: whether restarted nodes are quarantined.
        set_is_new: no node of the set has a record of the quarantine.
        max_ttl: longest lease, in seconds.
        node_timeout: seconds in which a node has to answer.
    """

    node: NodeReport
    same_as: str | None
    is_guarded: bool
    set_is_new: bool
    max_ttl: float
    node_timeout: float

    @property
    def lacks(self) -> tuple[str, ...]:
        """The rights that the user lacks."""
        return self.node.missing_rights or ()

    @property
    def locks_lack(self) -> bool:
        """Whether one of them is for more than wake-ups and the identity of the server."""
        return not {INFO_RIGHT, *WAKE_RIGHTS}.issuperset(self.lacks)

    def has_record(self, state: Guard) -> bool:
        """Return whether the quarantine is on, and its record in this state."""
        return self.is_guarded and self.node.guard is state

    @property
    def is_quarantined_longer(self) -> bool:
        """Whether a quarantine is longer than that of a client with this `max_ttl`."""
        return (self.node.quarantine_left or 0.0) > self.max_ttl + _ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFacts:
    """
    The facts about all nodes together.

    Attributes:
        nodes: what they show.
        voters: how many of them vote, as far as is known.
        skew: seconds by which this machine's clock is ahead of the median of the nodes.
        clock_correction: by which part of itself the kernel makes this machine's clock faster; 0 if
            unknown.
        drift_factor: part of a TTL by which clocks may differ.
    """

    nodes: Sequence[NodeReport]
    voters: int
    skew: float
    clock_correction: float
    drift_factor: float

    @property
    def needed(self) -> int:
        """The size of a quorum."""
        return quorum(len(self.nodes))

    @property
    def versions(self) -> list[str]:
        """The servers and versions among the nodes."""
        return sorted({f"{one.server} {one.version}" for one in self.nodes if one.version})


_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[_Facts]):
    """
    One rule.

    Attributes:
        code: see `Finding`.
        severity: see `Finding`.
        when: whether the rule matches the facts.
        text: the message.
        votes: whether a node votes nevertheless.
    """

    code: str
    severity: Severity
    when: Callable[[_Facts], bool]
    text: Callable[[_Facts], str]
    votes: bool = True


def _has_failed(kind: FailureKind) -> Callable[[NodeFacts], bool]:
    return lambda f: f.node.failure is not None and f.node.failure.kind is kind


def _reason(f: NodeFacts) -> str:
    return f.node.failure.text.rstrip(".") if f.node.failure else ""


def _is(seconds: float) -> str:
    return f"is {readable(abs(seconds))} s {'ahead of' if seconds > 0 else 'behind'}"


def _effect(seconds: float) -> str:
    """Return in words what a wrong clock does."""
    effect = "Leases bear that; fencing tokens rely on clocks after a loss of data"
    if abs(seconds) * 1e6 <= CANDIDATE_AHEAD_US:
        return effect
    most = readable(CANDIDATE_AHEAD_US / 1e6)
    return f"{effect}, and a node takes no candidate more than {most} s ahead of its clock"


#: Nodes that are of no use; the first row that matches decides, and nothing else is found there.
UNUSABLE: tuple[Row[NodeFacts], ...] = (
    Row(
        code="node-unreachable",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.SILENT),
        text=lambda f: (
            f"The node does not answer as a lock node: {_reason(f)}. "
            "Start it, or repair the network between it and this machine."
        ),
        votes=False,
    ),
    Row(
        code="no-login",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.LOGIN),
        text=lambda f: (
            f"The node refuses the user or password of its URL: {_reason(f)}. "
            "Correct the URL, or the user on the node."
        ),
        votes=False,
    ),
    Row(
        code="node-unusable",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.SETUP),
        text=lambda f: f"The node cannot be used as it is set up: {_reason(f)}.",
        votes=False,
    ),
    Row(
        code="same-server-twice",
        severity=Severity.ERROR,
        when=lambda f: f.same_as is not None,
        text=lambda f: (
            f"The node is the same server as {f.same_as}, which would have two votes. "
            "Name independent servers."
        ),
        votes=False,
    ),
    Row(
        code="replica",
        severity=Severity.ERROR,
        when=lambda f: f.node.role not in ("master", None),
        text=lambda f: (
            f"The node is a {f.node.role} and takes no locks. "
            "Name independent masters. If it is nobody's standby, REPLICAOF NO ONE makes it one."
        ),
        votes=False,
    ),
)

#: Findings about other nodes: all rows that match.
NODE: tuple[Row[NodeFacts], ...] = (
    Row(
        code="rights-missing",
        severity=Severity.ERROR,
        when=lambda f: f.locks_lack,
        text=lambda f: f"The user lacks rights that locks need. Grant it {' '.join(f.lacks)}.",
        votes=False,
    ),
    Row(
        code="info-hidden",
        severity=Severity.WARNING,
        when=lambda f: INFO_RIGHT in f.lacks and not f.locks_lack,
        text=lambda _: (
            "The node hides INFO from this user, so a restart that loads an old snapshot cannot be "
            "noticed and two holders are possible after it. Grant +info."
        ),
    ),
    Row(
        code="wake-rights-missing",
        severity=Severity.WARNING,
        when=lambda f: bool(WAKE_RIGHTS.intersection(f.lacks)) and not f.locks_lack,
        text=lambda f: (
            "The user lacks rights that wake-ups need, so those who wait try again after a delay. "
            f"Grant it {' '.join(right for right in f.lacks if right in WAKE_RIGHTS)}."
        ),
    ),
    Row(
        code="refuses-writes",
        severity=Severity.ERROR,
        when=lambda f: f.node.refusal is not None,
        text=lambda f: (
            f"The node refuses all writes, so it takes no locks: {f.node.refusal}. Restore "
            "what it names: space on its disk, its memory, or its replicas."
        ),
        votes=False,
    ),
    Row(
        code="evicting-policy",
        severity=Severity.ERROR,
        when=lambda f: f.node.maxmemory_policy not in ("noeviction", None),
        text=lambda f: (
            f"maxmemory-policy {f.node.maxmemory_policy} evicts locks that are held"
            f"{'' if f.node.maxmemory else ', as soon as maxmemory is set'}. "
            "Set maxmemory-policy noeviction."
        ),
    ),
    Row(
        code="backlog-ttl-short",
        severity=Severity.WARNING,
        when=lambda f: f.is_guarded and 0 < (f.node.backlog_ttl or 0) < f.max_ttl,
        text=lambda f: (
            f"repl-backlog-ttl is {f.node.backlog_ttl} s, shorter than redlock_max_ttl, which is "
            f"{readable(f.max_ttl)} s: a promotion that lost locks may not be noticed, and two "
            f"holders are possible after it. Set repl-backlog-ttl {_BACKLOG_TTL}, which is its "
            "default, or 0."
        ),
    ),
    Row(
        code="backlog-ttl-hidden",
        severity=Severity.INFO,
        when=lambda f: f.is_guarded and bool(f.node.is_replicated) and f.node.backlog_ttl is None,
        text=lambda f: (
            "The node has replicas or was promoted, and does not show repl-backlog-ttl to this "
            "user, which has to be 0 or at least redlock_max_ttl, "
            f"{readable(f.max_ttl)} s. Grant +config|get to see it, or look there."
        ),
    ),
    Row(
        code="quarantined",
        severity=Severity.WARNING,
        when=lambda f: f.has_record(Guard.QUARANTINED) and not f.is_quarantined_longer,
        text=lambda f: (
            "The node has restarted, lost its data or been promoted, and is quarantined for "
            f"{readable(f.node.quarantine_left or 0)} s more; then it votes by itself. Restart no "
            "other node until then."
        ),
        votes=False,
    ),
    Row(
        code="max-ttl-differs",
        severity=Severity.WARNING,
        when=lambda f: f.has_record(Guard.QUARANTINED) and f.is_quarantined_longer,
        text=lambda f: (
            f"The node is quarantined for {readable(f.node.quarantine_left or 0)} s more, longer "
            f"than redlock_max_ttl, which is {readable(f.max_ttl)} s here. Give all processes one "
            "redlock_max_ttl; if they have it, the node's clock was set back."
        ),
        votes=False,
    ),
    Row(
        code="restarted",
        severity=Severity.WARNING,
        when=lambda f: (
            f.has_record(Guard.OTHER) or (f.has_record(Guard.MISSING) and not f.set_is_new)
        ),
        text=lambda f: (
            "The node has restarted, lost its data or been promoted since it last voted. The next "
            f"acquire begins its quarantine of {readable(f.max_ttl)} s; then it votes by itself."
        ),
        votes=False,
    ),
    Row(
        code="never-armed",
        severity=Severity.WARNING,
        when=lambda f: f.has_record(Guard.MISSING) and f.set_is_new,
        text=lambda f: (
            "The node has never voted. If the set is new, run `celery-redlock init`; otherwise the "
            f"next acquire begins a quarantine of {readable(f.max_ttl)} s."
        ),
        votes=False,
    ),
    Row(
        code="clock-skew",
        severity=Severity.WARNING,
        when=lambda f: abs(f.node.skew_from_nodes or 0.0) > _SKEW,
        text=lambda f: (
            f"The node's clock {_is(f.node.skew_from_nodes or 0.0)} the median of the nodes. "
            f"{_effect(f.node.skew_from_nodes or 0.0)}. Slew it with chrony or ntpd; a step "
            "forward ends leases early."
        ),
    ),
    Row(
        code="slow-node",
        severity=Severity.WARNING,
        when=lambda f: (f.node.latency or 0.0) > _SLOW * f.node_timeout,
        text=lambda f: (
            f"A round trip takes {readable(1000 * (f.node.latency or 0.0))} ms, of a node timeout "
            f"of {readable(1000 * f.node_timeout)} ms. Move the node nearer, relieve it, or raise "
            "redlock_node_timeout."
        ),
    ),
    Row(
        code="persistence-missing",
        severity=Severity.ERROR,
        when=lambda f: f.node.persistence in ("none", "rdb") and not f.is_guarded,
        text=lambda f: (
            f"The node keeps {'nothing' if f.node.persistence == 'none' else 'only snapshots'} on "
            "its disk and the restart quarantine is off, so its restart allows two holders of one "
            "key. Set redlock_guard = True."
        ),
    ),
    Row(
        code="persistence-missing",
        severity=Severity.INFO,
        when=lambda f: f.node.persistence == "none" and f.is_guarded,
        text=lambda _: (
            "The node keeps nothing on its disk. The restart quarantine makes that safe; "
            "`appendonly yes` would keep counters and schedules, too."
        ),
    ),
)

#: Findings about the set, or about this machine: all rows that match.
SET: tuple[Row[SetFacts], ...] = (
    Row(
        code="quorum-margin",
        severity=Severity.ERROR,
        when=lambda s: s.voters < s.needed,
        text=lambda s: (
            f"{s.voters} of {len(s.nodes)} nodes are fit to vote, and a quorum is {s.needed}: no "
            "lock can be relied on to be granted. Repair the nodes above."
        ),
    ),
    Row(
        code="quorum-margin",
        severity=Severity.WARNING,
        when=lambda s: s.needed == s.voters < len(s.nodes),
        text=lambda s: (
            f"{s.voters} of {len(s.nodes)} nodes are fit to vote, exactly a quorum: none of them "
            "may fail. Repair the nodes above."
        ),
    ),
    Row(
        code="even-nodes",
        severity=Severity.WARNING,
        when=lambda s: bool(advice_about(s.nodes)),
        text=lambda s: advice_about(s.nodes),
    ),
    Row(
        code="single-node",
        severity=Severity.INFO,
        when=lambda s: len(s.nodes) == 1,
        text=lambda _: (
            "With one node, its loss stops all locks. Name three or five independent nodes to bear "
            "the loss of one or two."
        ),
    ),
    Row(
        code="versions-differ",
        severity=Severity.INFO,
        when=lambda s: len(s.versions) > 1,
        text=lambda s: f"The nodes run different servers: {', '.join(s.versions)}.",
    ),
    Row(
        code="clock-skew",
        severity=Severity.WARNING,
        when=lambda s: abs(s.skew) > _SKEW,
        text=lambda s: (
            f"This machine's clock {_is(s.skew)} the median of the nodes. {_effect(s.skew)}. "
            "Correct it with chrony or ntpd."
        ),
    ),
    Row(
        code="clock-slewed",
        severity=Severity.ERROR,
        when=lambda s: abs(s.clock_correction) > s.drift_factor,
        text=lambda s: (
            f"The kernel of this machine changes the rate of its clock by {s.clock_correction:.1%},"
            f" more than redlock_drift_factor, which is {s.drift_factor:.1%}: a lease may outlast "
            "its key. Give chrony `maxslewrate 1000`, or raise redlock_drift_factor."
        ),
    ),
)


def diagnose(
    reports: Sequence[NodeReport],
    *,
    max_ttl: float,
    drift_factor: float = 0.01,
    node_timeout: float = 0.2,
    guard: bool | None = None,
    clock_correction: float | None = None,
) -> tuple[Finding, ...]:
    """
    Return what is wrong with a set of nodes, by the reports about all of them.

    Errors are first, then warnings; of one severity, those of nodes in their order, then those of
    the set, whose `node` is None. One cause gives one finding for a node: nothing else is found
    about a node that does not answer. A fact that a node does not show is no finding.
    `quorum-margin` follows from the findings about nodes, and is one of the set. A healthy set
    gives nothing above `info`. Limit: it is the view of this machine, at one moment.

    Args:
        reports: of `report_nodes`, for all nodes of the set.
        max_ttl: the setting `redlock_max_ttl`, in seconds.
        drift_factor: the setting `redlock_drift_factor`.
        node_timeout: the setting `redlock_node_timeout`, in seconds.
        guard: the setting `redlock_guard`; None: with two nodes and more.
        clock_correction: of this machine, from `clock_correction()`; None if unknown.
    """
    is_guarded = len(reports) > 1 if guard is None else guard
    set_is_new = all(one.guard is Guard.MISSING for one in reports)
    findings, voters = [], 0
    for one, same_as in zip(reports, _same_servers(reports), strict=True):
        facts = NodeFacts(
            node=one,
            same_as=same_as,
            is_guarded=is_guarded,
            set_is_new=set_is_new,
            max_ttl=max_ttl,
            node_timeout=node_timeout,
        )
        rows = [row for row in UNUSABLE if row.when(facts)][:1] or _matching(NODE, facts)
        findings += [_finding(row, facts, one.url) for row in rows]
        voters += all(row.votes for row in rows)
    skews = [one.clock_skew for one in reports if one.clock_skew is not None]
    of_set = SetFacts(
        nodes=reports,
        voters=voters,
        skew=-median(skews) if skews else 0.0,
        clock_correction=clock_correction or 0.0,
        drift_factor=drift_factor,
    )
    findings += findings_from(SET, of_set)
    return by_urgency(findings)


def by_urgency(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings."""
    urgency = list(Severity)
    return tuple(sorted(findings, key=lambda finding: urgency.index(finding.severity)))


def findings_from(rows: Sequence[Row[_Facts]], facts: _Facts) -> tuple[Finding, ...]:
    """Return what the rows of a table find that concern no single node."""
    return tuple(_finding(row, facts, None) for row in _matching(rows, facts))


def _matching(rows: Sequence[Row[_Facts]], facts: _Facts) -> list[Row[_Facts]]:
    return [row for row in rows if row.when(facts)]


def _finding(row: Row[_Facts], facts: _Facts, node: str | None) -> Finding:
    return Finding(severity=row.severity, node=node, code=row.code, message=row.text(facts))


def _same_servers(reports: Sequence[NodeReport]) -> Iterator[str | None]:
    """Yield for each node an earlier one with its run id."""
    first: dict[str, str] = {}
    for one in reports:
        other = first.setdefault(one.run_id, one.url) if one.run_id else one.url
        yield None if other == one.url else other


def as_data(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> dict[str, Any]:
    """
    Return reports and findings as JSON takes them.

    Shape: `{"nodes": [...], "findings": [...]}`, with the attributes of `NodeReport` and `Finding`
    by name, and for each node `reachable`. `failure` is null, or has `kind` and `text`.
    """
    return {
        "nodes": [
            {"url": one.url, "reachable": one.is_reachable, **asdict(one)} for one in reports
        ],
        "findings": [asdict(finding) for finding in findings],
    }
