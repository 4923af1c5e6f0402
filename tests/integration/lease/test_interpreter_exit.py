"""A process ends, whatever its threads and generators were at when its interpreter ends."""

from __future__ import annotations

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.nodes import ServerNodes
from tests.support.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[3]

BEGIN = """
import logging, sys, time
from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.core.watchdog import process_watchdog
from tests.integration.lease.daemons import ended_in, ended_in_use

nodes, name = sys.argv[1].split(","), sys.argv[2]

def hold(client, key="key"):
    with client.lock(key, ttl=60.0, wait=5.0) as lease:
        yield lease
"""

#: What a module leaves behind; its generators are closed when no thread but the main one is left.
SHAPES = {
    "a generator that has a client": """
def work():
    with Redlock(nodes) as client:
        yield from hold(client)

left = work()
next(left)
""",
    "a generator whose client has no connection": """
client = Redlock(nodes)
left = hold(client)
next(left)
client_of(client).transport._idle.clear()
""",
    "the watchdog's lock": """
left = hold(Redlock(nodes))
next(left)
ended_in(process_watchdog()._lock)
""",
    "the lease's lock": """
left = hold(Redlock(nodes))
ended_in(next(left)._holding._lock)
""",
    "the lock of the connections": """
client = Redlock(nodes)
left = hold(client)
next(left)
ended_in(client_of(client).transport._lock)
""",
    "the lock of what is handed over": """
client = Redlock(nodes)
left = hold(client)
next(left)
for channel in client_of(client).transport._idle:
    ended_in(channel._connections._handover_lock)
    for node in range(len(nodes)):
        channel._connections.drop(node, "broken")
""",
    "a log handler's lock": """
logging.basicConfig()
logging._handlerList.clear()  # or logging's own end would wait for it
client = Redlock(nodes)
left = hold(client)
next(left)
client_of(client).transport.checkout = None
ended_in(logging.getLogger().handlers[0].lock)
""",
    "the lock of a node in memory": """
from celery_redlock.transport import parse_node
from celery_redlock.transport.memory import memory_node

left = hold(Redlock("memory://here"))
next(left)
ended_in(memory_node(parse_node("memory://here"))._lock)
""",
}

CROWD = """
client = Redlock(nodes)
left = [hold(client, f"{name} {number}") for number in range(2)]
for each in left:
    next(each)
for number in range(3):
    ended_in_use(client, f"{name} thread {number}")
time.sleep(0.05)
"""


def run(servers: ServerNodes, program: str) -> int:
    """Return what a process ends with; fail if it does not end."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + program, ",".join(servers.urls), uuid.uuid4().hex],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=2 * TIMEOUT,
        check=False,
    )
    return ended.returncode


@pytest.mark.parametrize("shape", SHAPES)
def test_a_process_ends_although_nobody_gives_up_what_it_would_wait_for(
    servers: ServerNodes, shape: str
) -> None:
    assert run(servers, SHAPES[shape]) == 0


def test_what_a_suspended_generator_held_is_free_when_its_process_has_ended(
    servers: ServerNodes,
) -> None:
    assert run(servers, SHAPES["the watchdog's lock"]) == 0
    servers.wait_free("key")


@pytest.mark.full
@pytest.mark.parametrize("program", [SHAPES["a generator that has a client"], CROWD])
def test_many_processes_end_one_like_the_other(servers: ServerNodes, program: str) -> None:
    program = program.replace("hold(client)", "hold(client, name)")
    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(lambda _: run(servers, program), range(18)))
    assert ends == [0] * 18
