"""
What the demo has shown, judged by the journal and by what is in the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from celery_redlock.demo.runs import Book, Run

__all__ = ["Check", "judge", "lost_updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    One line of the table at the end.

    Attributes:
        subject: what was looked at.
        expected: what a lock that works leads to.
        found: what it was.
    """

    subject: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        """Tell whether it is as it should be."""
        return self.expected == self.found


def lost_updates(payments: Mapping[int, str], balances: Mapping[str, int]) -> int:
    """Return how many payments are missing in the files."""
    return len(payments) - sum(balances.values())


def judge(book: Book, payments: Mapping[int, str], balances: Mapping[str, int]) -> list[Check]:
    """
    Return the table.

    Args:
        book: all runs.
        payments: the account of each payment.
        balances: what is in each account's file.
    """
    accounts = sorted(set(payments.values()))
    each_account = [book.of_account(account) for account in accounts]
    written = [run.payment for run in book.runs if run.wrote is not None]
    once = sum(written.count(payment) == 1 for payment in payments)
    increasing = f"{sum(map(_increasing, each_account))} of {len(book.runs)}"
    superseded = str(sum(map(_superseded_writes, each_account)))
    if not any(run.token for run in book.runs):
        increasing = superseded = "no tokens"
    return [
        _check("updates in the account files", len(payments), sum(balances.values())),
        _check("payments written exactly once", len(payments), once),
        _check("bodies that began beside another", 0, sum(map(_overlaps, each_account))),
        _check(
            "fencing tokens above the one before",
            f"{len(book.runs)} of {len(book.runs)}",
            increasing,
        ),
        _check("writes by superseded holders", 0, superseded),
        _check("late write of the frozen body", "refused", _late_write(book.runs)),
        _check("payment of the killed process", "done again", _redone(book)),
    ]


def _check(subject: str, expected: object, found: object) -> Check:
    return Check(subject=subject, expected=str(expected), found=str(found))


def _overlaps(runs: Iterable[Run]) -> int:
    """Count the bodies of one account that began while another was at work."""
    count, busy_until = 0, 0.0
    for run in runs:
        count += run.entered < busy_until
        busy_until = max(busy_until, run.until)
    return count


def _increasing(runs: Iterable[Run]) -> int:
    count, newest = 0, 0
    for run in runs:
        if run.token is not None and run.token > newest:
            count, newest = count + 1, run.token
    return count


def _superseded_writes(runs: list[Run]) -> int:
    """Count writes that were taken from a body although one with a newer token had begun."""
    return sum(
        any(_token(other) > _token(run) and other.entered < run.wrote for other in runs)
        for run in runs
        if run.wrote is not None
    )


def _token(run: Run) -> int:
    return run.token or 0


def _late_write(runs: Iterable[Run]) -> str:
    frozen = [run for run in runs if run.frozen is not None]
    if not frozen or any(run.wrote is None and run.refused is None for run in frozen):
        return "not tried"
    return "refused" if all(run.wrote is None for run in frozen) else "taken"


def _redone(book: Book) -> str:
    killed = [run for run in book.runs if run.killed is not None]
    if not killed:
        return "nobody killed"
    return "done again" if all(run.payment in book.written for run in killed) else "missing"
