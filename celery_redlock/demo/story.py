"""
What happens in the demo: work, and four faults in the middle of it.

Each act waits for what it needs to have happened, never for a time to pass, so a slow machine sees
the same story.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from functools import partial

from celery_redlock.demo.runs import Run
from celery_redlock.demo.scene import ACTS, MAX_TTL
from celery_redlock.demo.stage import Stage, Waiting
from celery_redlock.demo.worker import is_stopped, send_signal

__all__ = ["short", "story"]

STOPPED, KILLED = 1, 3


def short(token: int | None) -> str:
    """Return the digits of a token in which those of one demo differ."""
    return "none" if token is None else f"..{token % 10**10:010d}"


def story(stage: Stage) -> Waiting:
    """Tell the whole story; to be driven until it is exhausted."""
    yield from _nodes_fail(stage)
    yield from _a_process_is_killed(stage)
    yield from _a_process_freezes(stage)
    yield from stage.until(
        lambda: len(stage.book.written) == stage.total and stage.succeeded(), "the last payments"
    )
    stage.say("end", f"Celery calls all {stage.total} tasks a success")


def _nodes_fail(stage: Stage) -> Waiting:
    stage.send(ACTS[0])
    yield from stage.until(lambda: len(stage.book.written) >= 4, "the first payments")
    stage.cluster.pause(STOPPED)
    stage.say("fault", f"node {STOPPED + 1} is stopped: it accepts bytes and answers nothing")
    written = len(stage.book.written)
    yield from stage.until(lambda: len(stage.book.written) >= written + 3, "further payments")
    stage.cluster.kill(KILLED)
    stage.say("fault", f"node {KILLED + 1} is killed: 3 of 5 are left, just a quorum")
    written = len(stage.book.written)
    yield from stage.until(lambda: len(stage.book.written) >= written + 6, "further payments")
    if stage.scene.locked:
        stage.say("lock", f"{len(stage.book.written) - written} payments written meanwhile")


def _a_process_is_killed(stage: Stage) -> Waiting:
    stage.send(ACTS[1])
    run = yield from _stop_a_body(stage)
    # Stopped first: so it is certain that it has not written, and its payment is to be done again.
    send_signal(run.pid, signal.SIGKILL)
    stage.note("killed", run.id)
    stage.say("fault", f"process {run.pid} killed in {_holding(run)}")
    written = len(stage.book.written)
    yield from stage.until(lambda: len(stage.book.written) >= written + 6, "further payments")
    _nodes_come_back(stage)
    yield from stage.until(
        lambda: stage.book.of_payment(run.payment)[-1] != stage.book[run.id],
        f"payment {run.payment} to be delivered again",
    )
    again = stage.book.of_payment(run.payment)[-1]
    if stage.scene.locked:
        stage.say("lock", f"its lease ended; {_with_token(again)}, runs again")
        yield from stage.until(
            lambda: stage.nodes[KILLED].state == "up", f"node {KILLED + 1} to vote again"
        )
        stage.say("repair", f"node {KILLED + 1} votes again: no lease it may have lost is left")
    else:
        stage.say("work", f"payment {run.payment} was delivered again and runs")


def _nodes_come_back(stage: Stage) -> None:
    stage.cluster.resume(STOPPED)
    stage.cluster.restart(KILLED)
    stage.say(
        "repair",
        f"node {STOPPED + 1} runs on; node {KILLED + 1} is back, empty: sits out {MAX_TTL:g} s",
    )


def _a_process_freezes(stage: Stage) -> Waiting:
    stage.send(ACTS[2])
    run = yield from _stop_a_body(stage)
    # Before anything is looked at again: without a lock the others go on being written.
    others = stage.pending(run.account) - {run.payment}
    stage.note("frozen", run.id)
    stage.say("fault", f"process {run.pid} frozen in {_holding(run)}")
    # Without a lock nobody has to wait for the frozen body, so all get a chance to be overwritten.
    enough = 1 if stage.scene.locked else len(others)
    yield from stage.until(
        lambda: len(others & stage.book.written) >= enough, "other bodies for the same account"
    )
    successor = stage.book.of_payment(min(others & stage.book.written))[-1]
    if stage.scene.locked:
        stage.say("lock", f"its lease ended; {_with_token(successor)}, is written")
    else:
        stage.say("work", f"nobody waits: {enough} more payments to account {run.account}")
    stage.note("woke", run.id)
    send_signal(run.pid, signal.SIGCONT)
    stage.say("repair", f"process {run.pid} wakes and goes on to write what it had computed")
    yield from stage.until(lambda: stage.book[run.id].left, "the frozen body to end")
    woken = stage.book[run.id]
    if woken.refused is None:
        stage.say("guard", f"the file takes it: what account {run.account} got meanwhile is gone")
        return
    stage.say("guard", f"the file refuses it: {short(run.token)} is older than {short(woken.seen)}")
    yield from stage.until(
        lambda: run.payment in stage.book.written, f"payment {run.payment} to be tried again"
    )
    stage.say("lock", f"payment {run.payment} was tried again and is written")


def _stop_a_body(stage: Stage) -> Generator[None, None, Run]:
    """Stop a process between its body's read and write, where others wait for the account."""
    while True:
        yield from stage.until(lambda: _candidates(stage), "a body between read and write")
        for run in _candidates(stage):
            if not send_signal(run.pid, signal.SIGSTOP):
                continue
            yield from stage.until(partial(is_stopped, run.pid), f"process {run.pid} to stop")
            stage.look()
            if stage.book[run.id] in _candidates(stage):
                return run
            send_signal(run.pid, signal.SIGCONT)
        yield


def _candidates(stage: Stage) -> list[Run]:
    """Return bodies that have read and not written, in their payment's first run."""
    payments = [run.payment for run in stage.book.runs]
    between = [r for r in stage.book.runs if r.is_between and payments.count(r.payment) == 1]
    return [run for run in reversed(between) if len(stage.pending(run.account)) > 1]


def _holding(run: Run) -> str:
    token = "" if run.token is None else f", token {short(run.token)}"
    return f"payment {run.payment} to {run.account}{token}"


def _with_token(run: Run) -> str:
    return f"payment {run.payment}, token {short(run.token)}"
