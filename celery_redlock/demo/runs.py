"""
The runs of bodies, put together from the journal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Book", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    One run of a body; times are of the journal's clock, None where it has not happened.

    Attributes:
        id: no other run has it; a payment may have several runs.
        payment: number of the payment.
        account: whose balance it changes.
        pid: the process that runs it.
        token: its fencing token; None without a lock.
        entered: the body began.
        read: it has read the balance.
        writing: it is about to write.
        wrote: its write was taken.
        refused: its write, or already its read, was refused as stale.
        seen: the newer token that it was refused for.
        left: the body has ended.
        frozen: its process was seen to be stopped.
        woke: its process was let go on.
        killed: its process was killed.
    """

    id: str
    payment: int
    account: str
    pid: int
    token: int | None
    entered: float
    read: float | None = None
    writing: float | None = None
    wrote: float | None = None
    refused: float | None = None
    seen: int | None = None
    left: float | None = None
    frozen: float | None = None
    woke: float | None = None
    killed: float | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing can come of it any more."""
        return self.left is not None or self.killed is not None

    @property
    def is_frozen(self) -> bool:
        """Tell whether its process is stopped now."""
        return self.frozen is not None and self.woke is None

    @property
    def is_between(self) -> bool:
        """Tell whether it has read and not yet begun to write."""
        return self.read is not None and self.writing is None and not self.is_over

    @property
    def until(self) -> float:
        """
        When it stopped being at work for good.

        What a frozen body does after it woke is not counted: it has outlived its lease by the
        demo's own doing, and is judged by whether its write is taken.
        """
        ends = [end for end in (self.frozen, self.killed, self.left) if end is not None]
        return min(ends, default=float("inf"))


class Book:
    """All runs so far."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self.worker_is_ready = False

    def enter(self, records: Iterable[dict[str, Any]]) -> None:
        """Take in what was appended to the journal."""
        for record in records:
            facts = dict(record)
            event, at = facts.pop("event"), facts.pop("at")
            if event == "ready":
                self.worker_is_ready = True
            elif event == "entered":
                run = Run(id=facts.pop("run"), entered=at, **facts)
                self._runs[run.id] = run
            else:
                run = self._runs[facts.pop("run")]
                self._runs[run.id] = dataclasses.replace(run, **{event: at}, **facts)

    def __getitem__(self, run: str) -> Run:
        return self._runs[run]

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order in which they began."""
        return sorted(self._runs.values(), key=lambda run: run.entered)

    def of_account(self, account: str) -> list[Run]:
        """Return the runs that were about one account."""
        return [run for run in self.runs if run.account == account]

    def of_payment(self, payment: int) -> list[Run]:
        """Return the runs of one payment."""
        return [run for run in self.runs if run.payment == payment]

    @property
    def written(self) -> set[int]:
        """The payments whose write was taken."""
        return {run.payment for run in self._runs.values() if run.wrote is not None}
