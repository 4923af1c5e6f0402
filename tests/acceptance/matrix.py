"""
What each worker pool can do: one table for the tests and for the page that people read.

`ROWS` says of each row of a locked task's life cycle on which pools it holds, and why not on the
others. Tests take their pools from it (`@row("success")`), and `docs/reference/pools.md` is
written from it by `python -m tests.acceptance.matrix`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "pools.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One row of the life cycle.

    Attributes:
        event: what happens to the task or its worker.
        lock: what becomes of the lock.
        reasons: for each pool that cannot do it, why not.
    """

    event: str
    lock: str
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def pools(self) -> list[str]:
        return [pool for pool in POOLS if pool not in self.reasons]


def only(*pools: str, because: str) -> dict[str, str]:
    return dict.fromkeys((pool for pool in POOLS if pool not in pools), because)


SOFT_LIMIT = "Celery has soft time limits on prefork only"
HARD_LIMIT = "Celery has hard time limits on prefork and gevent only"
GREEN_SHUTDOWN = (
    "Celery's signal handler waits in whichever greenlet gets the signal, which fails in the event "
    "loop's own; the body is killed at once, or completes"
)
GREEN_LOSS = (
    "Celery ends the greenlet with GreenletExit, takes that for success and acknowledges the "
    "message, even a plain task's: the work is not done again. Stop such workers with SIGTERM"
)
NO_CHILD = "there is no child process that could be killed alone"

BELOW_THE_TABLE = """\
## Celery before 5.7

With prefork, Celery before 5.7 can lose the result of a body, even a plain task's, that ends just
as a warm shutdown begins. The worker then ends 30 seconds later, and the broker delivers the
message again.

## Windows and macOS

The table is for Linux.

On Windows the `threads` and `solo` pools work, as do publishers, `Redlock` and `AsyncRedlock`.
Missing:

- the prefork pool, which Celery does not support on Windows, and the gevent and eventlet pools;
- the signal that interrupts a body in the main thread. In `solo`, as in `threads`, `LeaseLost` is
  raised at the body's next bytecode, so it does not end a `time.sleep`; `redlock_lost_signal` is
  refused;
- `FileFence` and `FileTokenStore`, which need the file locks of POSIX; nodes on unix sockets; and
  the local servers of `celery_redlock.testing`.

On macOS the eventlet pool is missing: it needs Linux's epoll.

On Linux, `tests/portable` removes from Python what Windows lacks. CI also runs the tests on macOS
and Windows.
"""

ROWS = {
    row.event: row
    for row in (
        Row(event="success", lock="released after the body"),
        Row(event="exception", lock="released after the body"),
        Row(event="Ignore", lock="released after the body"),
        Row(event="Reject", lock="released after the body"),
        Row(
            event="Reject(requeue=True), acks_late",
            lock="released, acquired again when redelivered",
        ),
        Row(event="self.retry", lock="released, acquired again by the retry"),
        Row(event="autoretry_for", lock="released, acquired again by the retry"),
        Row(event="self.replace", lock="released, acquired by the replacement under the same id"),
        Row(
            event="requeue on conflict",
            lock="waits for the holder under the same id, does not count towards max_retries",
        ),
        Row(
            event="the lock is released while a message waits",
            lock="the message that has waited longest starts at once",
        ),
        Row(event="skip on conflict", lock="untouched; the task ends with lock_skip_result"),
        Row(event="raise on conflict", lock="untouched; LockContended is the result"),
        Row(event="reject on conflict", lock="untouched; the message is rejected"),
        Row(event="callable on conflict", lock="as the callable decides"),
        Row(event="lock_give_up_after", lock="untouched; LockNotAcquired is the result"),
        Row(
            event="no quorum",
            lock="none; requeue, raise or run unlocked, as set by lock_on_unavailable",
        ),
        Row(event="body longer than the TTL", lock="extended while the body runs"),
        Row(
            event="lease lost, interrupt while sleeping",
            lock="LeaseLost ends a time.sleep in the body",
            reasons={
                "threads": "a thread is reached at its next bytecode, not inside a system call",
            },
        ),
        Row(event="lease lost, interrupt while working", lock="LeaseLost in the body"),
        Row(
            event="lease lost while a retry or replacement is sent",
            lock="the message goes out, and the task ends as Celery ends it",
        ),
        Row(event="lease lost, flag", lock="the lease is marked, the body continues"),
        Row(
            event="lease lost, callable",
            lock="as the callable decides: LeaseLost in the body, or the body continues",
        ),
        Row(
            event="asked to stop by a newer call",
            lock="LeaseLost in the body; extended until it has unwound, then passed on",
            reasons={
                "solo": "the worker takes the newer message only after the body; another worker "
                "may ask it to stop",
            },
        ),
        Row(
            event="soft time limit",
            lock="extended while the body handles it, released when it has unwound",
            reasons=only("prefork", because=SOFT_LIMIT),
        ),
        Row(
            event="hard time limit",
            lock="released when the body has unwound",
            reasons=only("prefork", "gevent", because=HARD_LIMIT),
        ),
        Row(
            event="hard time limit, the body does not unwind within 0.1 s",
            lock="the child is killed; the lock expires with its TTL",
            reasons=only("prefork", because=NO_CHILD),
        ),
        Row(
            event="revoke(terminate=True)",
            lock="released when the body has unwound",
            reasons={
                "threads": "Celery cannot terminate a thread; the body and its lock continue",
                "solo": "the worker receives a revocation only when the body has ended",
            },
        ),
        Row(
            event="SIGTERM to the worker (warm shutdown)",
            lock="extended while the body runs, released after it",
        ),
        Row(
            event="SIGTERM to a worker that holds waiting messages",
            lock="the messages go back to the queue; the next worker starts one whose lock is free",
        ),
        Row(
            event="SIGQUIT to the worker with worker_soft_shutdown_timeout (soft shutdown)",
            lock="extended while the body runs, released after it",
            reasons={
                "solo": "the worker waits in the body's own thread, so the body is blocked until "
                "it is killed; its lock is extended until then, and released",
                **dict.fromkeys(("gevent", "eventlet"), GREEN_SHUTDOWN),
            },
        ),
        Row(
            event="SIGQUIT to the worker (cold shutdown)",
            lock="released if the body unwinds in time, else expires with its TTL",
            reasons={
                "threads": "Celery cannot end a thread; the worker waits for the body, and the "
                "lock is extended until then",
            },
        ),
        Row(
            event="SIGQUIT to the worker (cold shutdown) with acks_late",
            lock="as above; the broker delivers the message again, and the next run acquires it",
            reasons={
                "threads": "Celery cannot end a thread; the worker waits for the body",
                "solo": "Celery's signal handler raises NotImplementedError in the body, so the "
                "task fails, even a plain one",
                **dict.fromkeys(("gevent", "eventlet"), GREEN_LOSS),
            },
        ),
        Row(
            event="SIGKILL of a pool child",
            lock="expires with its TTL; a redelivered or next task waits for that",
            reasons=only("prefork", because=NO_CHILD),
        ),
        Row(
            event="SIGKILL of the whole worker",
            lock="expires with its TTL; the next task waits for that",
        ),
        Row(event="fork in the body", lock="the child holds nothing, the parent continues"),
        Row(event="eager apply()", lock="locks as in a worker"),
        Row(event="plain call", lock="not acquired"),
        Row(event="map, starmap, chunks", lock="refused; ConfigurationError is the result"),
        Row(event="plain call inside its own body", lock="not acquired again, not released"),
        Row(
            event="self.lease, current_lease(), request.fencing_token",
            lock="agree; tokens of successive holders increase",
        ),
        Row(event="redlock_tasks pattern on a plain task", lock="as on a RedlockTask"),
    )
}


def row(event: str) -> pytest.MarkDecorator:
    """Run a test on each pool on which this row of the table holds."""
    return pytest.mark.parametrize("pool", ROWS[event].pools)


def page() -> str:
    """The reference page as it has to be."""
    notes: list[str] = []
    lines = []
    for one in ROWS.values():
        cells = []
        for pool in POOLS:
            reason = one.reasons.get(pool)
            if reason is None:
                cells.append("yes")
                continue
            if reason not in notes:
                notes.append(reason)
            cells.append(f"no [{notes.index(reason) + 1}]")
        lines.append(f"| {one.event} | {one.lock} | {' | '.join(cells)} |")
    return "\n".join(
        [
            "# What each pool can do",
            "",
            "<!-- Written by `python -m tests.acceptance.matrix`; edit the table there. -->",
            "",
            "Every `yes` is tested with a real worker process of that pool.",
            "",
            f"| event | lock | {' | '.join(POOLS)} |",
            f"|---|---|{'---|' * len(POOLS)}",
            *lines,
            "",
            *(f"{number}. {note}." for number, note in enumerate(notes, 1)),
            "",
            BELOW_THE_TABLE,
        ]
    )


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
