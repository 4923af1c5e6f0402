"""
The work, and four faults in the middle of it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from celery_redlock import LockNotAcquired, Redlock
from celery_redlock.testing import LocalCluster
from examples.demo.runs import Run, Runs
from examples.stage import Process

ACCOUNTS = "ABCDEF"

#: Payments to each account in each of the three acts.
ACTS = (4, 3, 3)
TOTAL = len(ACCOUNTS) * sum(ACTS)

#: The nodes that the demo breaks.
STOPPED, KILLED = 1, 3

#: Seconds for the whole story; many times what it takes.
TIMEOUT = 90.0

Kind = Literal["start", "work", "fault", "repair", "lock", "fence", "end"]


@dataclass(frozen=True)
class Event:
    """Something that happened, and how many seconds after the start."""

    at: float
    kind: Kind
    text: str


class View(Protocol):
    """Shows the demo."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def refresh(self, demo: Demo) -> None:
        """Show the present state."""


@dataclass
class Demo:
    """
    The state of the demo.

    Attributes:
        nodes: the lock nodes.
        worker: the Celery worker.
        locked: whether bodies run under the lock.
        runs: the runs of bodies so far.
        payments: the account of each payment that was sent.
        out: the nodes that have lost their data and do not vote yet.
    """

    nodes: LocalCluster
    worker: Process
    view: View
    locked: bool
    payments: dict[int, str] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)
    _tasks: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        # Not at the top: the module needs the addresses of the servers when it is imported.
        from examples.demo.tasks import LOG, MAX_TTL, fence_of

        self.runs = Runs(LOG)
        self._fences = {account: fence_of(account) for account in ACCOUNTS}
        for fence in self._fences.values():
            fence.path.write_bytes(b"0")
        self._probe = Redlock([self.nodes.urls[KILLED]], ttl=1.0, max_ttl=MAX_TTL, guard=True)
        self._max_ttl = MAX_TTL
        # The same order each time, in which neighbours are often for the same account.
        self._random = random.Random(5)  # noqa: S311  # nothing secret

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def balances(self) -> dict[str, int]:
        """The number in the file of each account."""
        return {account: int(fence.read()) for account, fence in self._fences.items()}

    def show(self, kind: Kind, text: str) -> None:
        """Add an event to the timeline."""
        self.view.show(Event(self.elapsed, kind, text))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; end the demo with an error if it does not come true in time."""
        while not condition():
            if self.worker.status is not None:
                raise SystemExit(f"waited for {what}, but the worker has ended")
            if self.elapsed > TIMEOUT:
                raise SystemExit(f"waited {TIMEOUT:g} s in vain for {what}")
            time.sleep(0.1)
            self.refresh()

    def refresh(self) -> None:
        """Read the present state, and show it."""
        self.runs.update()
        if KILLED in self.out and self._votes():
            self.out.remove(KILLED)
        self.view.refresh(self)

    def _votes(self) -> bool:
        try:
            self._probe.acquire("probe", wait=0).release()
        except LockNotAcquired:
            return False
        return True

    def play(self) -> None:
        """Play the story to its end."""
        self._fail_nodes()
        self._kill_a_process()
        self._freeze_a_process()
        self.until(lambda: len(self.runs.written) == TOTAL, "the last payments")
        self.until(self._succeeded, "the results of all tasks")
        self.show("end", f"Celery reports success for all {TOTAL} tasks")
        self.refresh()

    def _succeeded(self) -> bool:
        from examples.demo.tasks import app

        return all(app.backend.get_state(task) == "SUCCESS" for task in self._tasks)

    def _send(self, of_each_account: int) -> None:
        from examples.demo.tasks import deposit

        accounts = list(ACCOUNTS) * of_each_account
        self._random.shuffle(accounts)
        for payment, account in enumerate(accounts, len(self.payments) + 1):
            self.payments[payment] = account
            # The id alone: a result object subscribes to its store, which may end first.
            self._tasks.append(deposit.delay(payment, account).id)
        self.show("work", f"{len(accounts)} payments sent to {len(ACCOUNTS)} accounts")

    def _until_written(self, more: int) -> None:
        enough = len(self.runs.written) + more
        self.until(lambda: len(self.runs.written) >= enough, f"{more} more payments")

    def _fail_nodes(self) -> None:
        self._send(ACTS[0])
        self._until_written(4)
        self.nodes.pause(STOPPED)
        self.show("fault", f"node {STOPPED + 1} is stopped: it accepts bytes and answers nothing")
        self._until_written(3)
        self.nodes.kill(KILLED)
        self.show("fault", f"node {KILLED + 1} is killed: 3 of 5 are left, just a quorum")
        self._until_written(6)
        if self.locked:
            self.show("lock", "3 nodes are enough: 6 more payments are written")

    def _kill_a_process(self) -> None:
        self._send(ACTS[1])
        run = self._stop_a_body()
        os.kill(run.pid, signal.SIGKILL)
        self._log("killed", run)
        self.show("fault", f"process {run.pid} is killed in {_holding(run)}")
        self._until_written(6)
        self.nodes.resume(STOPPED)
        self.nodes.restart(KILLED)
        self.out.add(KILLED)
        back = f"node {STOPPED + 1} runs again; node {KILLED + 1} is back, empty"
        self.show("repair", f"{back}: it does not vote for {self._max_ttl:g} s")
        self.until(
            lambda: self.runs.of(payment=run.payment)[-1] is not run,
            f"the redelivery of payment {run.payment}",
        )
        again = self.runs.of(payment=run.payment)[-1]
        if not self.locked:
            self.show("work", f"the broker redelivers payment {run.payment}, and it runs")
            return
        self.show("lock", f"its lease has expired; {_with_token(again)}, runs again")
        self.until(lambda: KILLED not in self.out, f"node {KILLED + 1} to vote")
        self.show("repair", f"node {KILLED + 1} votes again: every lease that it lost has expired")

    def _freeze_a_process(self) -> None:
        self._send(ACTS[2])
        run = self._stop_a_body()
        # Read before the next refresh: without a lock other bodies still write the account.
        others = self._unwritten(run.account) - {run.payment}
        self._log("frozen", run)
        self.show("fault", f"process {run.pid} is frozen in {_holding(run)}")
        # Without a lock no body waits for the frozen one, so all of them may be overwritten.
        enough = 1 if self.locked else len(others)
        self.until(
            lambda: len(others & self.runs.written) >= enough, "other payments to the same account"
        )
        successor = self.runs.of(payment=min(others & self.runs.written))[-1]
        if self.locked:
            self.show("lock", f"its lease has expired; {_with_token(successor)}, is written")
        else:
            self.show("work", f"no body waits: {enough} more payments to account {run.account}")
        self._log("woke", run)
        os.kill(run.pid, signal.SIGCONT)
        self.show("repair", f"process {run.pid} wakes and writes the balance it had computed")
        self.until(lambda: "left" in run.at, "the frozen body to end")
        if run.seen is None:
            self.show("fence", f"the file accepts it: account {run.account} loses those payments")
            return
        older = f"{short(run.token)} is older than {short(run.seen)}"
        self.show("fence", f"the file refuses it: token {older}")
        self.until(lambda: run.payment in self.runs.written, f"the retry of payment {run.payment}")
        self.show("lock", f"Celery retries payment {run.payment}, and it is written")

    def _stop_a_body(self) -> Run:
        """Stop a process between its body's read and write, where others wait for the account."""
        while True:
            self.until(self._candidates, "a body between read and write")
            for run in self._candidates():
                os.kill(run.pid, signal.SIGSTOP)
                # The signal takes effect a little later; until then the body may continue.
                self.until(lambda pid=run.pid: _is_stopped(pid), f"process {run.pid} to stop")
                self.refresh()
                if run in self._candidates():
                    return run
                os.kill(run.pid, signal.SIGCONT)

    def _candidates(self) -> list[Run]:
        return [
            run
            for run in reversed(self.runs.of())
            if run.is_between
            and len(self.runs.of(payment=run.payment)) == 1
            and len(self._unwritten(run.account)) > 1
        ]

    def _unwritten(self, account: str) -> set[int]:
        sent = {payment for payment, to in self.payments.items() if to == account}
        return sent - self.runs.written

    def _log(self, event: str, run: Run) -> None:
        from examples.demo.tasks import log

        log(event, run.id)
        self.runs.update()


def short(token: int | None) -> str:
    """Return the digits in which the tokens of one demo differ."""
    return "none" if token is None else f"..{token % 10**10:010d}"


def _holding(run: Run) -> str:
    token = "" if run.token is None else f", token {short(run.token)}"
    return f"payment {run.payment} to {run.account}{token}"


def _with_token(run: Run) -> str:
    return f"payment {run.payment}, token {short(run.token)}"


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        state = stat.read_text().rpartition(")")[2]
    else:
        command = ["ps", "-o", "state=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    return state.split()[0] in ("T", "t")
