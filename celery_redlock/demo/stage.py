"""
The demo while it runs: what the story acts on, and what the views draw.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from celery_redlock.demo.counter import Counter
from celery_redlock.demo.journal import Journal, Reader
from celery_redlock.demo.ledger import Ledger
from celery_redlock.demo.nodes import NodeState, look_at
from celery_redlock.demo.runs import Book
from celery_redlock.demo.scene import ACCOUNTS, ACTS, Scene
from celery_redlock.demo.worker import Worker
from celery_redlock.errors import RedlockError
from celery_redlock.testing import LocalCluster

__all__ = ["Event", "GaveUp", "Kind", "Stage", "Waiting"]

Kind = Literal["start", "work", "fault", "repair", "lock", "guard", "end"]
Waiting = Generator[None, None, None]

#: Seconds for the whole story; many times what it takes.
_PATIENCE = 90.0


class GaveUp(RedlockError):
    """Something that the story waits for did not happen in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    Something that happened.

    Attributes:
        at: seconds since the demo began.
        kind: what sort of event.
        text: what happened, in a short sentence.
    """

    at: float
    kind: Kind
    text: str


class Stage:
    """
    Everything that takes part, and what has become of it so far.

    Attributes:
        scene: where everything is.
        cluster: the lock nodes.
        book: runs of bodies.
        events: what happened so far.
        payments: the account of each payment that was sent.
        balances: what is in each account's file.
        nodes: how each lock node is.
    """

    def __init__(
        self,
        *,
        scene: Scene,
        cluster: LocalCluster,
        worker: Worker,
        begun: float,
        listener: Callable[[Event], None],
    ) -> None:
        self.scene = scene
        self.cluster = cluster
        self.book = Book()
        self.events: list[Event] = []
        self.payments: dict[int, str] = {}
        self.balances: dict[str, int] = {}
        self.nodes: list[NodeState] = []
        self._counter = Counter(scene)
        self._worker = worker
        self._begun = begun
        self._listener = listener
        self._journal = Journal(scene.journal)
        self._reader = Reader(scene.journal)
        self._ledger = Ledger(scene.accounts)
        # The same order each time, with neighbours that are often for the same account.
        self._random = random.Random(5)  # noqa: S311  # nothing secret
        for account in ACCOUNTS:
            self._ledger.open_account(account)

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._begun

    @property
    def total(self) -> int:
        """How many payments there will be."""
        return len(ACCOUNTS) * sum(ACTS)

    def look(self) -> None:
        """Take in what has happened."""
        self._worker.check()
        self.book.enter(self._reader.new_records())
        self.balances = {account: self._ledger.balance(account) for account in ACCOUNTS}
        self.nodes = [look_at(self.cluster, index) for index in range(len(self.cluster))]

    def say(self, kind: Kind, text: str) -> None:
        """Add to the timeline."""
        event = Event(at=self.elapsed, kind=kind, text=text)
        self.events.append(event)
        self._listener(event)

    def note(self, event: str, run: str) -> None:
        """Enter what the demo did to a body beside what the body says."""
        self._journal.note(event, run=run)
        self.book.enter(self._reader.new_records())

    def send(self, of_each_account: int) -> None:
        """Send payments to all accounts, in a mixed order."""
        accounts = list(ACCOUNTS) * of_each_account
        self._random.shuffle(accounts)
        for number, account in enumerate(accounts, len(self.payments) + 1):
            self.payments[number] = account
            self._counter.hand_in(number, account)
        self.say("work", f"{len(accounts)} payments sent, to {len(ACCOUNTS)} accounts")

    def pending(self, account: str) -> set[int]:
        """Return the payments to an account that were sent and are not written."""
        sent = {number for number, to in self.payments.items() if to == account}
        return sent - self.book.written

    def succeeded(self) -> bool:
        """Tell whether Celery calls every task that was sent a success."""
        return self._counter.succeeded()

    def until(self, condition: Callable[[], object], what: str) -> Waiting:
        """Let time pass until a condition holds."""
        while not condition():
            if self.elapsed > _PATIENCE:
                raise GaveUp(f"waited in vain for {what}")
            yield

    def close(self) -> None:
        """Let go of files and connections."""
        self._reader.close()
        self._counter.close()
