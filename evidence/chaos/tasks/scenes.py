"""What publishers send: each scene is one way to call unique tasks."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from celery import chain, chord, group

from celery_redlock.errors import LockNotAcquired, QuorumUnavailable
from evidence.chaos.history import now
from evidence.chaos.tasks.bodies import send
from evidence.chaos.tasks.kinds import KINDS, TAKEN_AWAY, Kind
from evidence.chaos.tasks.process_journal import Notes

_KEYS = 3
#: Seconds for which a publisher waits for a result before it goes on.
_READS_WITHIN = 6.0
_LOOK = 0.003


_is_unique = attrgetter("unique")


def _follows_an_end(kind: Kind) -> bool:
    """Return whether a call is no duplicate of one that has ended."""
    return kind.at_publish and not kind.windowed


class Scenes:
    """
    One thread of a publisher.

    Args:
        app: the app.
        notes: where to write.
        name: begins the names of all calls.
        seed: for what is chosen.
        stopping: tells whether to end.
    """

    def __init__(
        self, app: Any, notes: Notes, name: str, seed: int, stopping: Callable[[], bool]
    ) -> None:
        self._app = app
        self._notes = notes
        self._name = name
        self._random = random.Random(seed)
        self._stopping = stopping
        self._numbers = itertools.count(1)
        self._deck = self._deal()

    def play(self) -> None:
        """Play the next scene."""
        next(self._deck)()

    def _deal(self) -> Iterator[Callable[[], None]]:
        """Yield the scenes in random order, each as often as it stands here."""
        scenes = [
            *[self.plain] * 3,
            *[self.pair] * 3,
            *[self.replaced] * 2,
            *[self.retried] * 2,
            *[self.again] * 2,
            self.grouped,
            self.gathered,
            self.linked,
            self.named,
            self.stepped,
            self.again_by_link,
            self.again_by_chord,
            self.again_by_chain,
            self.revoked,
            self.delayed,
            *[self.taken_away] * 2,
        ]
        while True:
            yield from self._random.sample(scenes, len(scenes))

    def plain(self) -> None:
        """Send one call of any kind."""
        kind, key = self._pick()
        self._send(kind, key, seconds=self._random.choice((0.01, 0.05, 0.3, 1.5)))

    def pair(self) -> None:
        """Send one key twice, one directly after the other."""
        kind, key = self._pick(_is_unique)
        for _ in range(2):
            self._send(kind, key, seconds=0.05)

    def replaced(self) -> None:
        """Send one key three times where the newest arguments count."""
        kind, key = self._pick(lambda kind: kind.policy == "replace")
        for _ in range(3):
            self._send(kind, key)

    def retried(self) -> None:
        """Send a call whose body asks for retries."""
        kind, key = self._pick()
        self._send(
            kind,
            key,
            seconds=self._random.choice((0.01, 0.3)),
            retries=self._random.randint(1, 3),
            how=self._random.choice(("retry", "autoretry")),
        )

    def again(self) -> None:
        """Send a key again as soon as the result of the first call is there."""
        kind, key = self._pick(_follows_an_end)
        result = self._send(kind, key, seconds=0.01)
        if result is not None and (state := self._read(result)) is not None:
            knows = [result.id] if state == "SUCCESS" else []
            self._send(kind, key, knows=knows, seconds=0.01)

    def delayed(self) -> None:
        """Send a call for later."""
        kind, key = self._pick()
        self._send(kind, key, countdown=self._random.uniform(0.2, 1.5))

    def named(self) -> None:
        """Send one key twice, with task ids of our own."""
        kind, key = self._pick(_is_unique)
        for _ in range(2):
            call = self._call()
            self._send_as(call, kind, key, form="named", task_id=f"id-{call}")

    def linked(self) -> None:
        """Send one key twice, each call with a task that follows it."""
        kind, key = self._pick(_is_unique)
        for _ in range(2):
            call = self._call()
            self._expect(call, [call])
            self._send_as(call, kind, key, form="linked", link=self._follow(call))

    def grouped(self) -> None:
        """Send a group with one key twice in it."""
        kind = self._kind(_is_unique)
        steps, calls = self._members(kind, "group")
        result = group(steps).apply_async()
        self._note_sent(calls, result.children)

    def gathered(self) -> None:
        """Send a chord with one key twice in it."""
        kind = self._kind(_is_unique)
        steps, calls = self._members(kind, "chord")
        self._expect(calls[0], calls)
        result = chord(steps)(self._follow(calls[0]))
        self._note_sent(calls, result.parent.children)

    def stepped(self) -> None:
        """Send a chain whose second step has the key of the first."""
        kind, key = self._pick(_follows_an_end)
        first, second = self._call(), self._call()
        self._note_sending([first], kind, key, "chain")
        self._expect_step(second, first, kind, key)
        task = self._app.tasks[kind.task]
        step = task.si(key, second).set(task_id=f"id-{second}")
        result = chain(task.si(key, first), step).apply_async()
        self._note_sent([first], [result.parent])

    def again_by_link(self) -> None:
        """Let a task's own link send its key again."""
        kind, key = self._pick(_follows_an_end)
        call = self._call()
        self._send_as(call, kind, key, form="linked", link=self._resend(kind, key))

    def again_by_chord(self) -> None:
        """Let the body of a chord send the keys of its members again."""
        kind = self._kind(_is_unique)
        steps, calls = self._members(kind, "chord")
        result = chord(steps)(self._resend(kind, steps[0].args[0]))
        self._note_sent(calls, result.parent.children)

    def again_by_chain(self) -> None:
        """Let the next step of a chain send the key of the first again."""
        kind, key = self._pick(_follows_an_end)
        call = self._call()
        self._note_sending([call], kind, key, "chain")
        task = self._app.tasks[kind.task]
        result = chain(task.si(key, call), self._resend(kind, key)).apply_async()
        self._note_sent([call], [result.parent])

    def revoked(self) -> None:
        """Revoke a call that waits, and send its key again."""
        kind, key = self._pick(_is_unique)
        result = self._send(kind, key, countdown=self._random.choice((0.0, 1.5)))
        if result is None:
            return
        task = self._app.tasks[kind.task]
        self._notes.note("revoking key", key=key)
        # Celery's own revocation, or the one that frees the key as well where there is one.
        free = getattr(task, "revoke_queued", None)
        if free is None or self._random.random() < 0.5:
            self._app.control.revoke(result.id)
            self._notes.note("revoking", id=result.id, freed=False)
        else:
            try:
                holder = free(key, "")
            except LockNotAcquired:
                return
            if holder is not None:
                self._notes.note("revoking", id=holder.task_id, freed=True)
        self._send(kind, key)

    def taken_away(self) -> None:
        """Take the lock of a running body away, which then has to be run again."""
        kind = KINDS[self._random.choice(("executed", "executed-late", "running", "running-late"))]
        key = f"{kind.name}:{TAKEN_AWAY}"
        task = self._app.tasks[kind.task]
        result = self._send(
            kind,
            key,
            seconds=self._random.choice((0.1, 0.3, 0.6)),
            retries=self._random.choice((0, 2)),
            how=self._random.choice(("retry", "autoretry")),
        )
        deadline = now() + 2.0
        while result is not None and now() < deadline and not self._stopping():
            try:
                holder = task.lock_holder(key, "")
                if holder is not None and holder.state == "running":
                    task.release_lock(key, "")
                    self._notes.note("taken away", key=key, id=holder.task_id)
                    return
            except QuorumUnavailable:
                return
            time.sleep(0.02)

    def _members(self, kind: Kind, form: str) -> tuple[list[Any], list[str]]:
        key, other = self._random.sample(range(_KEYS), 2)
        keys = [f"{kind.name}:{key}", f"{kind.name}:{key}", f"{kind.name}:{other}"]
        calls = [self._call() for _ in keys]
        for call, each in zip(calls, keys, strict=True):
            self._note_sending([call], kind, each, form)
        task = self._app.tasks[kind.task]
        return [task.si(each, call) for each, call in zip(keys, calls, strict=True)], calls

    def _send(self, kind: Kind, key: str, **options: Any) -> Any:
        return self._send_as(self._call(), kind, key, **options)

    def _send_as(self, call: str, kind: Kind, key: str, **options: Any) -> Any:
        return send(self._notes, self._app.tasks[kind.task], key, call, **options)

    def _note_sending(self, calls: list[str], kind: Kind, key: str, form: str) -> None:
        self._notes.note("sending", calls=calls, kind=kind.name, key=key, form=form, knows=[])

    def _note_sent(self, calls: list[str], results: list[Any]) -> None:
        for call, result in zip(calls, results, strict=True):
            self._notes.note("sent", call=call, answer="accepted", id=result.id)

    def _expect(self, follower: str, calls: list[str]) -> None:
        self._notes.note("expecting", follower=follower, id=f"after-{follower}", calls=calls)

    def _expect_step(self, call: str, after: str, kind: Kind, key: str) -> None:
        self._notes.note(
            "expecting step", call=call, id=f"id-{call}", after=after, kind=kind.name, key=key
        )

    def _follow(self, call: str) -> Any:
        return self._app.tasks["chaos.follow"].s(call).set(task_id=f"after-{call}")

    def _resend(self, kind: Kind, key: str) -> Any:
        return self._app.tasks["chaos.resend"].s(kind.name, key, self._call(), 0.01)

    def _read(self, result: Any) -> str | None:
        """Wait for a result as who polls for it does; return the state that was read, if any."""
        deadline = now() + _READS_WITHIN
        while now() < deadline and not self._stopping():
            state = result.state
            if state in ("SUCCESS", "FAILURE", "REVOKED"):
                self._notes.note("read", id=result.id, state=state)
                return str(state)
            time.sleep(_LOOK)
        return None

    def _call(self) -> str:
        return f"{self._name}.{next(self._numbers)}"

    def _kind(self, fits: Callable[[Kind], bool]) -> Kind:
        return self._random.choice([kind for kind in KINDS.values() if fits(kind)])

    def _pick(self, fits: Callable[[Kind], bool] = lambda _: True) -> tuple[Kind, str]:
        """Choose a kind of task and one of its keys."""
        kind = self._kind(fits)
        return kind, f"{kind.name}:{self._random.randrange(_KEYS)}"
