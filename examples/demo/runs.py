"""
The runs of task bodies, read from their log, and the judgement of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class Run:
    """
    One run of a body; a payment has several where it was redelivered or retried.

    Attributes:
        token: the fencing token; None without a lock.
        at: the time of each event: entered, read, writing, wrote, refused, left; frozen, woke,
            killed.
        seen: the newer token for which the file refused the write.
    """

    id: str
    payment: int
    account: str
    pid: int
    token: int | None
    at: dict[str, float] = field(default_factory=dict)
    seen: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the body has returned or its process was killed."""
        return "left" in self.at or "killed" in self.at

    @property
    def is_frozen(self) -> bool:
        """Whether its process is stopped now."""
        return "frozen" in self.at and "woke" not in self.at

    @property
    def is_between(self) -> bool:
        """Whether it has read the balance and not yet begun to write it."""
        return "read" in self.at and "writing" not in self.at and not self.is_over

    @property
    def working_until(self) -> float:
        """
        The time until which no other body may work on the account.

        The demo itself lets a frozen body outlive its lease, so that body counts only until it was
        frozen; whether the file accepts its late write is a check of its own.
        """
        ends = [self.at[event] for event in ("frozen", "killed", "left") if event in self.at]
        return min(ends, default=float("inf"))


class Runs:
    """All runs so far, in the order in which they began."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0
        self.by_id: dict[str, Run] = {}

    def update(self) -> None:
        """Read what bodies have appended to the log."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            records = file.read().split(b"\n")[:-1]
        for line in records:
            self._read += len(line) + 1
            record = json.loads(line)
            event, run, at = record.pop("event"), record.pop("run"), record.pop("at")
            if event == "entered":
                self.by_id[run] = Run(id=run, **record)
            self.by_id[run].at[event] = at
            self.by_id[run].seen = record.get("seen", self.by_id[run].seen)

    def of(self, *, account: str | None = None, payment: int | None = None) -> list[Run]:
        """Return all runs, or those of an account, or those of a payment."""
        return [
            run
            for run in sorted(self.by_id.values(), key=lambda run: run.at["entered"])
            if account in (None, run.account) and payment in (None, run.payment)
        ]

    @property
    def written(self) -> set[int]:
        """The payments that a body has written."""
        return {run.payment for run in self.by_id.values() if "wrote" in run.at}


@dataclass(frozen=True)
class Check:
    """One line of the table at the end; `expected` is what a correct lock leads to."""

    subject: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether it is as expected."""
        return self.expected == self.found


def judge(runs: Runs, payments: Mapping[int, str], balances: Mapping[str, int]) -> list[Check]:
    """Compare the log and the files with what has to be in them."""
    every = runs.of()
    each_account = [runs.of(account=account) for account in balances]
    written = [run.payment for run in every if "wrote" in run.at]
    frozen = [run for run in every if "frozen" in run.at]
    killed = [run for run in every if "killed" in run.at]
    increasing: object = sum(map(_count_increasing, each_account))
    superseded: object = sum(map(_count_superseded_writes, each_account))
    if not any(run.token for run in every):
        increasing = superseded = "no tokens"
    return [
        Check("updates in the account files", len(payments), sum(balances.values())),
        Check(
            "payments written exactly once",
            len(payments),
            sum(written.count(p) == 1 for p in payments),
        ),
        Check("bodies that began beside another", 0, sum(map(_count_overlaps, each_account))),
        Check("runs with a newer token than before", len(every), increasing),
        Check("writes by superseded holders", 0, superseded),
        Check("late write of the frozen body", "refused", _late_write(frozen)),
        Check(
            "payment of the killed process",
            "written",
            "written"
            if killed and all(run.payment in runs.written for run in killed)
            else "missing",
        ),
    ]


def _count_overlaps(runs: Iterable[Run]) -> int:
    count, busy_until = 0, 0.0
    for run in runs:
        count += run.at["entered"] < busy_until
        busy_until = max(busy_until, run.working_until)
    return count


def _count_increasing(runs: Iterable[Run]) -> int:
    count, newest = 0, 0
    for run in runs:
        if run.token is not None and run.token > newest:
            count, newest = count + 1, run.token
    return count


def _count_superseded_writes(runs: Sequence[Run]) -> int:
    """Count writes that the file accepted although a body with a newer token had begun."""
    return sum(
        any((other.token or 0) > (run.token or 0) and other.at["entered"] < wrote for other in runs)
        for run in runs
        if (wrote := run.at.get("wrote")) is not None
    )


def _late_write(frozen: Sequence[Run]) -> str:
    if not frozen or not all({"wrote", "refused"} & run.at.keys() for run in frozen):
        return "not tried"
    return "accepted" if any("wrote" in run.at for run in frozen) else "refused"
