"""
What must be true of a history, and of what the resources hold in the end.

Every rule says what it found with the lines of the history that show it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evidence.chaos.history import Event, History, Hold
from evidence.chaos.resources import Record

#: A report that is later than this after its instant was late, not merely noted late.
_NOTING = 0.005

#: The watchdog reports a loss a tenth of the TTL before trust ends; a pause in this time keeps it.
_REPORTING = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that did not hold, and the lines that show it."""

    rule: str
    what: str
    lines: Sequence[Event] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two holders that both trusted their lease of one key."""

    first: Hold
    second: Hold
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleWrite:
    """
    A write that replaced another one which its writer had not read.

    Attributes:
        lost: how many writes are not part of the resource's story because of it.
        trusted: whether all who wrote at that time trusted their leases; otherwise the blame is on
            one that had no lease any more, this writer or the one that it overwrote.
        cause: what kept that one from writing in time.
    """

    key: str
    record: Record
    lost: int
    trusted: bool
    cause: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """All figures of a run."""

    violations: list[Violation] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    plain_stale: list[StaleWrite] = field(default_factory=list)
    fenced_stale: list[StaleWrite] = field(default_factory=list)
    limited_holds: int = 0
    limited_most: int = 0
    plain_writes: int = 0
    fenced_writes: int = 0
    fenced_refused: int = 0
    losses: int = 0
    late_losses: int = 0

    @property
    def plain_lost(self) -> int:
        """Updates that are missing from plain resources."""
        return sum(stale.lost for stale in self.plain_stale)

    @property
    def plain_lost_to_pauses(self) -> int:
        """Of these, the ones overwritten by a writer that was paused beyond its lease."""
        return sum(stale.lost for stale in self.plain_stale if not stale.trusted)

    @property
    def fenced_lost(self) -> int:
        """Updates that are missing from fenced resources."""
        return sum(stale.lost for stale in self.fenced_stale)


def judge(
    history: History,
    plain: Mapping[str, Sequence[Record]],
    fenced: Mapping[str, Sequence[Record]],
    *,
    limits: Mapping[str, int],
    expect_overlaps: bool,
) -> Verdict:
    """
    Check everything.

    Args:
        history: what workers and nemesis wrote down.
        plain: the records of the resources without a guard, by key.
        fenced: the records of the resources with a guard; of a key with a limit, one for each slot.
        limits: how many may hold a key with a limit.
        expect_overlaps: the run went beyond the assumptions, so overlaps are no violation but must
            be seen.
    """
    limited = [hold for hold in history.holds if _key_of(hold) in limits]
    verdict = Verdict(
        limited_holds=len(limited),
        limited_most=max((len(at_once) for at_once in _at_once(limited)), default=0),
        overlaps=list(find_overlaps(history.holds)),
        losses=sum(hold.lost is not None for hold in history.holds),
        plain_writes=sum(_writes(records) for records in plain.values()),
        fenced_writes=sum(_writes(records) for records in fenced.values()),
        fenced_refused=sum(
            record.step == "refused" for records in fenced.values() for record in records
        ),
    )
    for key, records in plain.items():
        verdict.plain_stale += find_stale_writes(key, records, history)
    for key, records in fenced.items():
        verdict.fenced_stale += find_stale_writes(key, records, history)
    found = verdict.violations
    found += planted_by_nemesis(history.events)
    found += check_tokens(history.holds)
    for key, records in fenced.items():
        found += check_guarded(key, records)
    found += check_losses(history)
    verdict.late_losses = sum(
        hold.lost is not None and hold.lost > hold.until for hold in history.holds
    )
    if expect_overlaps:
        if not verdict.overlaps:
            found.append(
                Violation(
                    rule="overlaps are seen where there must be some",
                    what="there is none, so either the faults are too weak or the check is blind",
                )
            )
        return verdict
    found += check_order(history.holds)
    found += check_exclusion(history.holds, verdict.overlaps)
    found += check_limits(limited, limits)
    for stale in verdict.plain_stale:
        if stale.trusted:
            found.append(
                Violation(
                    rule="nobody overwrites what it has not read while it trusts its lease",
                    what=f"{stale.record.hold} lost {stale.lost} updates of {stale.key}",
                    lines=_lines_of(history, stale.record.hold),
                )
            )
    return verdict


def find_overlaps(holds: Iterable[Hold]) -> Iterator[Overlap]:
    """Yield every pair of holds of one key whose trusted times have an instant in common."""
    for first, second in _pairs(holds, lambda hold: hold.end):
        yield Overlap(
            first=first, second=second, start=second.granted, end=min(first.end, second.end)
        )


def check_exclusion(holds: Iterable[Hold], overlaps: Sequence[Overlap]) -> Iterator[Violation]:
    """Nobody is granted a lock before the former grant ends: by its time, or by its release."""
    for overlap in overlaps:
        yield Violation(
            rule="at most one holder trusts its lease",
            what=f"{overlap.first.id} and {overlap.second.id} both held {overlap.first.key} "
            f"for {overlap.end - overlap.start:.4f} s",
            lines=[*overlap.first.events, *overlap.second.events],
        )
    known = {(overlap.first.id, overlap.second.id) for overlap in overlaps}
    for first, second in _pairs(holds, lambda hold: hold.promised_until):
        if (first.id, second.id) not in known:
            yield Violation(
                rule="nobody is granted a lock that another was granted for longer",
                what=f"{second.id} was granted {first.key} "
                f"{first.promised_until - second.granted:.4f} s before {first.id} ended",
                lines=[*first.events, *second.events],
            )


def check_limits(holds: Iterable[Hold], limits: Mapping[str, int]) -> Iterator[Violation]:
    """Never do more trust a lease of one key than its limit, whatever slots they have."""
    for at_once in _at_once(holds):
        key = _key_of(at_once[-1])
        if len(at_once) > limits[key]:
            yield Violation(
                rule="at most as many as its limit hold a key",
                what=f"{key}: {', '.join(hold.id for hold in at_once)} at once, where "
                f"{limits[key]} may",
                lines=[event for hold in at_once for event in hold.events],
            )


def check_tokens(holds: Iterable[Hold]) -> Iterator[Violation]:
    """Tokens are unique, and a grant that began after another one was made has a larger one."""
    for key, mine in _by_key(holds).items():
        seen: dict[int, Hold] = {}
        for hold in mine:
            if hold.token in seen:
                yield Violation(
                    rule="tokens are unique",
                    what=f"{key}: {hold.token} was given twice",
                    lines=[*seen[hold.token].events, *hold.events],
                )
            seen[hold.token] = hold
        # By the time at which each was asked for: all that were granted before must be smaller.
        granted = iter(sorted(mine, key=lambda hold: hold.granted))
        next_granted = next(granted, None)
        largest: Hold | None = None
        for hold in sorted(mine, key=lambda hold: hold.invoked):
            while next_granted is not None and next_granted.granted < hold.invoked:
                if largest is None or next_granted.token > largest.token:
                    largest = next_granted
                next_granted = next(granted, None)
            if largest is not None and hold.token < largest.token:
                yield Violation(
                    rule="tokens increase in the order of grants",
                    what=f"{key}: {hold.token} came after {largest.token}",
                    lines=[*largest.events, *hold.events],
                )


def check_order(holds: Iterable[Hold]) -> Iterator[Violation]:
    """Of two holds of which one follows the other, the second has the larger token."""
    # Who was frozen between its grant and its note may note it when others have followed.
    noted = [hold for hold in holds if hold.granted < hold.until]
    for key, mine in _by_key(noted).items():
        for first, second in itertools.pairwise(mine):
            if first.end <= second.granted and second.token < first.token:
                yield Violation(
                    rule="tokens increase in the order of holds",
                    what=f"{key}: {second.token} came after {first.token}",
                    lines=[*first.events, *second.events],
                )


def check_guarded(key: str, records: Sequence[Record]) -> Iterator[Violation]:
    """Nothing is lost behind the guard, and what it accepts never goes back."""
    highest = 0
    value = records[0].value
    for record in records[1:]:
        if record.step == "refused":
            continue
        if record.token < highest:
            yield Violation(
                rule="a guard accepts no token below the highest it has seen",
                what=f"{key}: {record.token} after {highest} by {record.hold}",
            )
        highest = max(highest, record.token)
        if record.step == "write":
            value += 1
            if record.base != record.over:
                yield Violation(
                    rule="no update is lost behind a guard",
                    what=f"{key}: {record.hold} had read {record.base} and replaced {record.over}",
                )
    if records[-1].value != value:
        yield Violation(
            rule="no update is lost behind a guard",
            what=f"{key}: {value} accepted writes left the number {records[-1].value}",
        )


def find_stale_writes(
    key: str, records: Sequence[Record], history: History
) -> Iterator[StaleWrite]:
    """Yield each write that replaced another one unread, with what it cost and why it came."""
    holds = {hold.id: hold for hold in history.holds}
    read_by = {record.latest: record.base for record in records if record.step == "write"}
    place = {record.latest: n for n, record in enumerate(records) if record.step == "write"}
    counted: set[str] = set()
    for n, record in enumerate(records):
        if record.step != "write" or record.base == record.over:
            continue
        kept = _story(record.base, read_by)
        gone = _story(record.over, read_by) - kept - counted
        counted |= gone
        culprits = [record]
        if _in_trust(holds, record):
            # Whoever wrote between its reading and its writing had no business there either.
            culprits = [each for each in records[place[record.base] + 1 : n] if each.base]
        trusted = any(_in_trust(holds, each) for each in culprits)
        cause = "in trust" if trusted else _cause(holds[culprits[0].hold], culprits[0], history)
        yield StaleWrite(key=key, record=record, lost=len(gone), trusted=trusted, cause=cause)


def _in_trust(holds: Mapping[str, Hold], record: Record) -> bool:
    return record.t <= holds[record.hold].promised_until


def _cause(hold: Hold, record: Record, history: History) -> str:
    pause = history.paused(hold.worker, _checked(hold), record.t)
    if pause is None:
        return "slow"
    return "starved" if pause.stall else "stopped"


def check_losses(history: History) -> Iterator[Violation]:
    """A lease ends by release, by kill, or by a loss reported in time; pauses excuse lateness."""
    for hold in history.holds:
        ends = [end for end in (hold.releasing, hold.lost) if end is not None]
        told = min(ends, default=float("inf"))
        killed = history.killed.get(hold.worker, float("inf"))
        if min(told, killed) <= hold.until + _NOTING:
            continue
        if history.paused(hold.worker, hold.until - _REPORTING, hold.until + _NOTING):
            continue
        yield Violation(
            rule="a loss is reported before trust ends, unless the process was paused",
            what=f"{hold.id} of {hold.key}: reported {told - hold.until:.4f} s after trust ended",
            lines=hold.events,
        )


def planted_by_nemesis(events: Iterable[Event]) -> Iterator[Violation]:
    """Yield what was found while the run was going on."""
    for event in events:
        if event["event"] == "violation":
            what = event.get("what", "seen while running")
            yield Violation(rule=event["rule"], what=what, lines=[event])


def _pairs(holds: Iterable[Hold], end_of: Callable[[Hold], float]) -> Iterator[tuple[Hold, Hold]]:
    """Yield holds of one key of which the second begins before the first has ended."""
    for mine in _by_key(holds).values():
        open_: list[Hold] = []
        for hold in mine:
            open_ = [before for before in open_ if end_of(before) > hold.granted]
            for before in open_:
                if end_of(hold) > hold.granted:
                    yield before, hold
            open_.append(hold)


def _key_of(hold: Hold) -> str:
    """Return the key, without its slot."""
    return hold.key.partition("#")[0]


def _at_once(holds: Iterable[Hold]) -> Iterator[list[Hold]]:
    """Yield for each hold those that trusted a lease of its key, any slot, when it was granted."""
    open_: dict[str, list[Hold]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.granted):
        if hold.end > hold.granted:
            mine = open_[_key_of(hold)]
            mine[:] = [*(before for before in mine if before.end > hold.granted), hold]
            yield list(mine)


def _by_key(holds: Iterable[Hold]) -> dict[str, list[Hold]]:
    found: dict[str, list[Hold]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.granted):
        found[hold.key].append(hold)
    return found


def _story(latest: str, read_by: Mapping[str, str]) -> set[str]:
    """Return a write and all that it rests on."""
    story: set[str] = set()
    while latest and latest not in story:
        story.add(latest)
        latest = read_by.get(latest, "")
    return story


def _checked(hold: Hold) -> float:
    return max(
        (event["t"] for event in hold.events if event["event"] == "checked"), default=hold.granted
    )


def _writes(records: Sequence[Record]) -> int:
    return sum(record.step == "write" for record in records[1:])


def _lines_of(history: History, hold_id: str) -> Sequence[Event]:
    return next((hold.events for hold in history.holds if hold.id == hold_id), ())
