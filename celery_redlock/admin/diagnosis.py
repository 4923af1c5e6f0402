"""
Findings about a set of lock nodes, derived from facts about them by tables of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Generic, TypeVar

from celery_redlock.admin.node_report import (
    FailureKind,
    Guard,
    NodeFacts,
    NodeReport,
    SetFacts,
    Settings,
)
from celery_redlock.admin.rights import INFO_RIGHT, WAKE_RIGHTS
from celery_redlock.protocol.mastership import SHORTEST_TAKEOVER, TAKEOVER, takeover_of
from celery_redlock.protocol.texts import readable, shortened
from celery_redlock.protocol.timing import CANDIDATE_AHEAD_US
from celery_redlock.transport import advice_about, parse_node

#: Seconds by which a clock may be wrong before it is worth a finding.
_SKEW = 1.0

#: The part of the node timeout that a round trip may take before it is worth a finding.
_SLOW = 0.1

#: Sentinels of which one may fail.
_FEWEST_SENTINELS = 3

#: Seconds of `repl-backlog-ttl` that servers have by default.
_BACKLOG_TTL = 3600


class Severity(StrEnum):
    """How urgent a finding is."""

    ERROR = "error"  #: locks fail or can be lost, or a node does not take part
    WARNING = "warning"  #: less failure is tolerated than it seems, or a feature is limited
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


_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[_Facts]):
    """
    One rule.

    Attributes:
        code: see `Finding`.
        severity: see `Finding`.
        when: whether the rule matches the facts.
        text: the message.
        votes: whether a node that matches votes nevertheless; one that is unusable never does.
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _is(seconds: float) -> str:
    return f"is {readable(abs(seconds))} s {'ahead of' if seconds > 0 else 'behind'}"


def _effect(seconds: float) -> str:
    """Return in words what a wrong clock does."""
    effect = "Leases bear that; fencing tokens rely on clocks after a loss of data"
    if abs(seconds) * 1e6 <= CANDIDATE_AHEAD_US:
        return effect
    most = readable(CANDIDATE_AHEAD_US / 1e6)
    return f"{effect}, and a node takes no candidate more than {most} s ahead of its clock"


#: Nodes that cannot be used, and do not vote: the first row that matches gives the only finding.
UNUSABLE: tuple[Check[NodeFacts], ...] = (
    Check(
        code="node-unreachable",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.SILENT),
        text=lambda f: (
            f"The node does not answer as a lock node: {_reason(f)}. "
            "Start it, or repair the network between it and this machine."
        ),
    ),
    Check(
        code="no-login",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.LOGIN),
        text=lambda f: (
            f"The node refuses the user or password of its URL: {_reason(f)}. "
            "Correct the URL, or the user on the node."
        ),
    ),
    Check(
        code="node-unusable",
        severity=Severity.ERROR,
        when=_has_failed(FailureKind.SETUP),
        text=lambda f: f"The node cannot be used as it is set up: {_reason(f)}.",
    ),
    Check(
        code="same-server-twice",
        severity=Severity.ERROR,
        when=lambda f: f.same_as is not None,
        text=lambda f: (
            f"The node is the same server as {f.same_as}, which would have two votes. "
            "Name independent servers."
        ),
    ),
    Check(
        code="replica",
        severity=Severity.ERROR,
        when=lambda f: f.node.role not in ("master", None),
        text=lambda f: (
            f"The node is a {f.node.role} and takes no locks. "
            "Name independent masters. REPLICAOF NO ONE makes it one, if it need not be a standby."
        ),
    ),
)

#: Findings about other nodes: all rows that match.
NODE: tuple[Check[NodeFacts], ...] = (
    Check(
        code="rights-missing",
        severity=Severity.ERROR,
        when=lambda f: f.locks_lack,
        text=lambda f: f"The user lacks rights that locks need. Grant it {' '.join(f.lacks)}.",
        votes=False,
    ),
    Check(
        code="info-hidden",
        severity=Severity.WARNING,
        when=lambda f: INFO_RIGHT in f.lacks and not f.locks_lack,
        text=lambda _: (
            "The node hides INFO from this user, so a restart that loads an old snapshot cannot be "
            "noticed and two holders are possible after it. Grant +info."
        ),
    ),
    Check(
        code="wake-rights-missing",
        severity=Severity.WARNING,
        when=lambda f: bool(WAKE_RIGHTS.intersection(f.lacks)) and not f.locks_lack,
        text=lambda f: (
            "The user lacks rights that wake-ups need, so waiters try again after a delay. "
            f"Grant it {' '.join(right for right in f.lacks if right in WAKE_RIGHTS)}."
        ),
    ),
    Check(
        code="refuses-writes",
        severity=Severity.ERROR,
        when=lambda f: f.node.refusal is not None,
        text=lambda f: (
            f"The node refuses all writes, so it takes no locks: {f.node.refusal}. Restore "
            "what it names: space on its disk, its memory, or its replicas."
        ),
        votes=False,
    ),
    Check(
        code="evicting-policy",
        severity=Severity.ERROR,
        when=lambda f: f.node.maxmemory_policy not in ("noeviction", None),
        text=lambda f: (
            f"maxmemory-policy {f.node.maxmemory_policy} evicts locks that are held"
            f"{'' if f.node.maxmemory else ', as soon as maxmemory is set'}. "
            "Set maxmemory-policy noeviction."
        ),
    ),
    Check(
        code="backlog-ttl-short",
        severity=Severity.WARNING,
        when=lambda f: f.is_guarded and 0 < (f.node.backlog_ttl or 0) < f.quarantine,
        text=lambda f: (
            f"repl-backlog-ttl is {f.node.backlog_ttl} s, shorter than {f.quarantine_setting}: a "
            "promotion that lost locks may not be noticed, and two holders are possible after it. "
            f"Set repl-backlog-ttl {_BACKLOG_TTL}, which is its default, or 0."
        ),
    ),
    Check(
        code="backlog-ttl-hidden",
        severity=Severity.INFO,
        when=lambda f: f.is_guarded and bool(f.node.is_replicated) and f.node.backlog_ttl is None,
        text=lambda f: (
            "The node has replicas or was promoted, and does not show repl-backlog-ttl to this "
            f"user. It has to be 0 or at least {f.quarantine_setting}. Grant +config|get to see "
            "it, or look at the node."
        ),
    ),
    Check(
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
    Check(
        code="max-ttl-differs",
        severity=Severity.WARNING,
        when=lambda f: f.has_record(Guard.QUARANTINED) and f.is_quarantined_longer,
        text=lambda f: (
            f"The node is quarantined for {readable(f.node.quarantine_left or 0)} s more, longer "
            f"than {f.quarantine_setting} here. Give all processes the same values; if they have "
            "them, the node's clock was set back."
        ),
        votes=False,
    ),
    Check(
        code="restarted",
        severity=Severity.WARNING,
        when=lambda f: (
            f.has_record(Guard.OTHER) or (f.has_record(Guard.MISSING) and not f.set_is_new)
        ),
        text=lambda f: (
            "The node has restarted, lost its data or been promoted since it last voted. The next "
            f"acquire begins its quarantine of {readable(f.quarantine)} s; then it votes by itself."
        ),
        votes=False,
    ),
    Check(
        code="never-armed",
        severity=Severity.WARNING,
        when=lambda f: f.has_record(Guard.MISSING) and f.set_is_new,
        text=lambda f: (
            "The node has never voted. If the set is new, run `celery-redlock init`; otherwise the "
            f"next acquire begins a quarantine of {readable(f.quarantine)} s."
        ),
        votes=False,
    ),
    Check(
        code="clock-skew",
        severity=Severity.WARNING,
        when=lambda f: abs(f.node.skew_from_nodes or 0.0) > _SKEW,
        text=lambda f: (
            f"The node's clock {_is(f.node.skew_from_nodes or 0.0)} the median of the nodes. "
            f"{_effect(f.node.skew_from_nodes or 0.0)}. Slew it with chrony or ntpd; a step "
            "forward ends leases early."
        ),
    ),
    Check(
        code="slow-node",
        severity=Severity.WARNING,
        when=lambda f: (f.node.latency or 0.0) > _SLOW * f.settings.node_timeout,
        text=lambda f: (
            f"A round trip takes {readable(1000 * (f.node.latency or 0.0))} ms, of a node timeout "
            f"of {readable(1000 * f.settings.node_timeout)} ms. Move the node nearer, relieve "
            "it, or raise redlock_node_timeout."
        ),
    ),
    Check(
        code="persistence-missing",
        severity=Severity.ERROR,
        when=lambda f: f.node.persistence in ("none", "rdb") and not f.is_guarded,
        text=lambda f: (
            f"The node keeps {'nothing' if f.node.persistence == 'none' else 'only snapshots'} on "
            "its disk and the restart quarantine is off, so its restart allows two holders of one "
            "key. Set redlock_guard = True."
        ),
    ),
    Check(
        code="persistence-missing",
        severity=Severity.INFO,
        when=lambda f: f.node.persistence == "none" and f.is_guarded,
        text=lambda _: (
            "The node keeps nothing on its disk. The restart quarantine makes that safe; "
            "`appendonly yes` would keep counters and schedules, too."
        ),
    ),
)

#: Findings about Sentinels, and about groups of servers that they watch: all rows that match.
GROUP: tuple[Check[NodeFacts], ...] = (
    Check(
        code="sentinels-few",
        severity=Severity.WARNING,
        when=lambda f: f.sentinels.named < _FEWEST_SENTINELS,
        text=lambda f: (
            f"The URL names {_count(f.sentinels.named, 'Sentinel')}. The node votes only while a "
            "majority of those named answers, and Sentinels that are cut off may name a former "
            "master. Run three Sentinels or more, and name all of them."
        ),
    ),
    Check(
        code="sentinel-silent",
        severity=Severity.WARNING,
        when=lambda f: bool(f.sentinels.silent),
        text=lambda f: (
            f"Of its {f.sentinels.named} Sentinels, {len(f.sentinels.silent)} cannot be asked: "
            f"{'; '.join(f.sentinels.silent)}. The others are a majority. Repair what is named, or "
            "correct the URL."
        ),
    ),
    Check(
        code="sentinels-disagree",
        severity=Severity.WARNING,
        when=lambda f: not f.sentinels.agree,
        text=lambda _: (
            "Its Sentinels do not all name the same master, or some consider it down. That is "
            "normal during a failover. If it lasts, a Sentinel is cut off from the others or from "
            "the master: repair its network."
        ),
    ),
    Check(
        code="sentinels-unnamed",
        severity=Severity.WARNING,
        when=lambda f: f.sentinels.known > f.sentinels.named,
        text=lambda f: (
            f"Its Sentinels know of {f.sentinels.known} Sentinels, and the URL names "
            f"{f.sentinels.named}, a majority of which may not know of a failover. Name all of "
            "them in every process. If some are gone, send SENTINEL RESET to each of the others."
        ),
    ),
    Check(
        code="replicas-missing",
        severity=Severity.WARNING,
        when=lambda f: f.node.sentinels is not None and f.node.replicas == 0,
        text=lambda _: (
            "No replica is connected to the master, so the group cannot fail over. Start its "
            "replicas."
        ),
    ),
    Check(
        code="min-replicas",
        severity=Severity.WARNING,
        when=lambda f: (
            f.node.sentinels is not None
            and 0 < (f.node.replicas or 0) <= (f.node.min_replicas or 0)
        ),
        text=lambda f: (
            f"min-replicas-to-write is {f.node.min_replicas} and the master has "
            f"{_count(f.node.replicas or 0, 'replica')}: after a failover the new master refuses "
            "all locks until the former one follows it. Add a replica, or set "
            "min-replicas-to-write 0; locks do not rely on it."
        ),
    ),
    Check(
        code="failover-forgets",
        severity=Severity.WARNING,
        when=lambda f: f.node.sentinels is not None and not f.is_guarded,
        text=lambda _: (
            "The quarantine is off, and a failover may lose the newest locks, so two holders of "
            "one key are possible after it. Set redlock_guard = True, which stops new locks after "
            "each failover until all older ones have ended, or name three groups."
        ),
    ),
    Check(
        code="takeover-short",
        severity=Severity.ERROR,
        when=lambda f: (
            f.node.sentinels is not None and f.is_guarded and f.takeover < SHORTEST_TAKEOVER
        ),
        text=lambda f: (
            f"redlock_takeover is {readable(f.takeover)} s. A former master may be asked for "
            f"{readable(SHORTEST_TAKEOVER)} s after a failover, and for longer if "
            "its Sentinels learn of it late: two holders of one key are possible. Leave "
            f"redlock_takeover at {readable(TAKEOVER)} s in all processes."
        ),
    ),
)

#: Findings about the set, or about this machine: all rows that match.
SET: tuple[Check[SetFacts], ...] = (
    Check(
        code="quorum-margin",
        severity=Severity.ERROR,
        when=lambda s: s.voters < s.needed,
        text=lambda s: (
            f"{s.voters} of {len(s.nodes)} nodes are fit to vote, and a quorum is {s.needed}: no "
            "lock is certain to be granted. Repair the nodes that are unfit, or wait until their "
            "quarantine has ended."
        ),
    ),
    Check(
        code="quorum-margin",
        severity=Severity.WARNING,
        when=lambda s: s.needed == s.voters < len(s.nodes),
        text=lambda s: (
            f"{s.voters} of {len(s.nodes)} nodes are fit to vote, exactly a quorum: none of them "
            "may fail. Repair those that are unfit, or wait until their quarantine has ended."
        ),
    ),
    Check(
        code="even-nodes",
        severity=Severity.WARNING,
        when=lambda s: bool(advice_about(s.nodes)),
        text=lambda s: advice_about(s.nodes),
    ),
    Check(
        code="single-node",
        severity=Severity.INFO,
        when=lambda s: len(s.nodes) == 1,
        text=lambda _: (
            "With one node, its loss stops all locks. Name three or five independent nodes to bear "
            "the loss of one or two."
        ),
    ),
    Check(
        code="key-paused",
        severity=Severity.INFO,
        when=lambda s: s.paused is not None and not s.without_pause,
        text=lambda s: (
            f"Lock {shortened(s.paused or '')!r} is paused for {readable(s.paused_for)} s more. "
            "`celery-redlock list` names all paused keys, `celery-redlock resume` ends a pause."
        ),
    ),
    Check(
        code="pause-incomplete",
        severity=Severity.WARNING,
        when=lambda s: s.paused is not None and bool(s.without_pause),
        text=lambda s: (
            f"Lock {shortened(s.paused or '')!r} is paused for {readable(s.paused_for)} s more, "
            f"but not on {', '.join(s.without_pause)}: a quorum of such nodes would grant it. "
            "Pause it again, or `celery-redlock resume` it."
        ),
    ),
    Check(
        code="versions-differ",
        severity=Severity.INFO,
        when=lambda s: len(s.versions) > 1,
        text=lambda s: f"The nodes run different servers: {', '.join(s.versions)}.",
    ),
    Check(
        code="clock-skew",
        severity=Severity.WARNING,
        when=lambda s: abs(s.skew) > _SKEW,
        text=lambda s: (
            f"This machine's clock {_is(s.skew)} the median of the nodes. {_effect(s.skew)}. "
            "Correct it with chrony or ntpd."
        ),
    ),
    Check(
        code="clock-slewed",
        severity=Severity.ERROR,
        when=lambda s: abs(s.clock_correction) > s.settings.drift_factor,
        text=lambda s: (
            f"The kernel of this machine changes the rate of its clock by {s.clock_correction:.1%},"
            f" more than redlock_drift_factor, which is {s.settings.drift_factor:.1%}: a lease may "
            "outlast its key. Give chrony `maxslewrate 1000`, or raise redlock_drift_factor."
        ),
    ),
)


def diagnose(
    reports: Sequence[NodeReport], settings: Settings, clock_correction: float | None = None
) -> tuple[Finding, ...]:
    """
    Return what is wrong with a set of nodes, according to reports about all of them.

    Errors come first, then warnings. Within one severity, findings about nodes come in the order of
    the nodes, then findings about the set, whose `node` is None. One cause gives one finding for a
    node: a node that does not answer has no other finding. A fact that a node does not show gives
    no finding. `quorum-margin`, a finding about the set, follows from those about nodes. A healthy
    set gives nothing above `info`. Limit: it is the view of this machine, at one moment.

    Args:
        reports: the result of `report_nodes` for all nodes of the set.
        settings: those of the client or the app; a `guard` of None is on if there are two nodes or
            more, and a `takeover` of None is its default for these nodes.
        clock_correction: the result of `clock_correction()` on this machine; None if unknown.
    """
    is_guarded = len(reports) > 1 if settings.guard is None else settings.guard
    fail_over = any(parse_node(one.url).fails_over for one in reports)
    set_is_new = all(one.guard is Guard.MISSING for one in reports)
    findings, voters = [], 0
    for one, same_as in zip(reports, _same_servers(reports), strict=True):
        facts = NodeFacts(
            node=one,
            same_as=same_as,
            is_guarded=is_guarded,
            set_is_new=set_is_new,
            takeover=takeover_of(settings.takeover, fail_over=fail_over),
            settings=settings,
        )
        unusable = _matching(UNUSABLE, facts)[:1]
        rows = unusable or _matching((*GROUP, *NODE), facts)
        findings += [_finding(row, facts, one.url) for row in rows]
        voters += not unusable and all(row.votes for row in rows)
    skews = [one.clock_skew for one in reports if one.clock_skew is not None]
    of_set = SetFacts(
        nodes=reports,
        voters=voters,
        skew=-median(skews) if skews else 0.0,
        clock_correction=clock_correction or 0.0,
        settings=settings,
    )
    findings += findings_from(SET, of_set)
    return by_urgency(findings)


def by_urgency(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings."""
    urgency = list(Severity)
    return tuple(sorted(findings, key=lambda finding: urgency.index(finding.severity)))


def findings_from(rows: Sequence[Check[_Facts]], facts: _Facts) -> tuple[Finding, ...]:
    """Return the findings of a table whose rows concern no single node."""
    return tuple(_finding(row, facts, None) for row in _matching(rows, facts))


def _matching(rows: Sequence[Check[_Facts]], facts: _Facts) -> list[Check[_Facts]]:
    return [row for row in rows if row.when(facts)]


def _finding(row: Check[_Facts], facts: _Facts, node: str | None) -> Finding:
    return Finding(severity=row.severity, node=node, code=row.code, message=row.text(facts))


def _same_servers(reports: Sequence[NodeReport]) -> Iterator[str | None]:
    """Yield for each node the name of an earlier one with the same run id, or None."""
    first: dict[str, str] = {}
    for one in reports:
        other = first.setdefault(one.run_id, one.url) if one.run_id else one.url
        yield None if other == one.url else other


def as_data(reports: Sequence[NodeReport], findings: Sequence[Finding]) -> dict[str, Any]:
    """
    Return reports and findings as data for JSON.

    Shape: `{"nodes": [...], "findings": [...]}`, with the attributes of `NodeReport` and `Finding`
    by name, and for each node `reachable`. `failure` is null, or has `kind` and `text`.
    """
    return {
        "nodes": [
            {"url": one.url, "reachable": one.is_reachable, **asdict(one)} for one in reports
        ],
        "findings": [asdict(finding) for finding in findings],
    }
