"""Native threads leave logging and callbacks to whoever may wait for a lock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from celery_redlock._greenlets.threads import (
    Hub,
)
from tests.support.greenlets import PATCH, run_with_greenlets

SCRIPT = """
import json, logging, os, sys, threading, time
from celery_redlock._greenlets import threads
from celery_redlock._greenlets.threads import answer_from_app, call_in_app, start_native_thread
from celery_redlock._greenlets.unpatched import native_lock, unpatched
from tests.support.waiting import TIMEOUT

ident = unpatched("_thread", "get_ident")
main = ident()
facts = {}
time.sleep(0)

def until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)

# Where calls run, and in which order.
ran = []
def find_out():
    facts["the thread is native"] = ident() != main
    for number in range(3):
        call_in_app(lambda number=number: ran.append((number, ident())))
    start_native_thread(lambda: call_in_app(lambda: ran.append((3, ident()))))
start_native_thread(find_out)
until(lambda: len(ran) == 4)
facts["calls run among the greenlets"] = [ran_in == main for _, ran_in in ran] == [True] * 4
facts["calls begin in their order"] = [number for number, _ in ran] == [0, 1, 2, 3]

# A lock of the greenlets that is taken, and a thread that has to say what needs it.
lock = threading.Lock()
lock.acquire()
said, gone_on = [], []
def say():
    with lock:
        said.append(ident())
def meet_lock():
    call_in_app(say)
    call_in_app(ran.append, "behind")
    gone_on.append(True)
start_native_thread(meet_lock)
until(lambda: gone_on and "behind" in ran)
facts["a thread is not held up by a lock"] = gone_on == [True]
facts["a call that waits holds up no other"] = "behind" in ran and not said
lock.release()
until(lambda: said)
facts["a call gets the lock it waits for"] = said == [main]

# What fails is the greenlet's business.
def fail():
    raise ValueError("on purpose")
start_native_thread(lambda: (call_in_app(fail), call_in_app(ran.append, "after")))
until(lambda: "after" in ran)
facts["a call that fails holds up no other"] = "after" in ran

# A thread that needs an answer, for which the greenlets have to wait.
answers = []
def give():
    time.sleep(0.01)
    return ident()
def ask():
    answers.append(answer_from_app(give))
    try:
        answer_from_app(fail)
    except ValueError as exc:
        answers.append(str(exc))
start_native_thread(ask)
until(lambda: len(answers) == 2)
facts["a thread gets an answer of the greenlets"] = answers[0] == main
facts["a thread gets an exception of the greenlets"] = answers[1] == "on purpose"

# In the hub itself.
here = threads.current_hub()
in_hub = []
start_native_thread(lambda: here.run(lambda: in_hub.append(ident())))
until(lambda: in_hub)
facts["the hub runs what it is asked to"] = in_hub == [main]
facts["a hub is known once"] = threads.current_hub() is here

# The greenlet that runs does not yield before the process ends; a child has nothing of it.
left = []
start_native_thread(lambda: (call_in_app(print, "said at the end"), left.append(True)))
while not left:
    pass
child = os.fork()
if child == 0:
    here.run_pending()
    os._exit(0)
unpatched("os", "waitpid")(child, 0)
print(json.dumps(facts))
sys.stdout.flush()
"""

FACTS = (
    "the thread is native",
    "calls run among the greenlets",
    "calls begin in their order",
    "a thread is not held up by a lock",
    "a call that waits holds up no other",
    "a call gets the lock it waits for",
    "a call that fails holds up no other",
    "a thread gets an answer of the greenlets",
    "a thread gets an exception of the greenlets",
    "the hub runs what it is asked to",
    "a hub is known once",
)


@pytest.fixture(scope="module", params=list(PATCH))
def output(request: pytest.FixtureRequest) -> list[str]:
    return run_with_greenlets(request.param, SCRIPT).splitlines()


@pytest.mark.parametrize("fact", FACTS)
def test_beside_greenlets(output: list[str], fact: str) -> None:
    assert json.loads(output[0])[fact]


def test_what_no_greenlet_has_come_to_runs_once_at_the_end_of_the_process(
    output: list[str],
) -> None:
    assert output[1:] == ["said at the end"]


class Recorder(Hub):
    """A hub whose loop is run by hand."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []
        self.gone = gone

    def run(self, call: Callable[[], None]) -> None:
        if self.gone:
            raise RuntimeError("destroyed")
        self.calls.append(call)


def test_a_forked_child_has_nothing_of_what_was_left_in_its_parent() -> None:
    ran: list[str] = []
    hub = Recorder()
    hub.spawn(lambda: ran.append("said"))
    child = os.fork()
    if child == 0:
        hub.run_pending()
        os._exit(len(ran))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hub.run_pending()
    assert ran == ["said"]
