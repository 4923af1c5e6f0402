"""Commands become bytes although signals strike meanwhile."""

from __future__ import annotations

import subprocess
import sys

STRUCK = """
import signal
from celery_redlock.protocol.commands import acquire
from celery_redlock.protocol.keys import Key
from celery_redlock.transport.redis.connection import PendingReply

class Struck(Exception):
    pass

def strike(*_):
    raise Struck

signal.signal(signal.SIGALRM, strike)
keys = (Key.of("", "key"),)
commands = [acquire(keys, "owner", 1000 + n, 10**15 + n, 60_000) for n in range(200)]
struck = 0
while struck < 5000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00002)
        while True:
            for command in commands:
                PendingReply(command, 0.0).packed()
    except Struck:
        struck += 1
"""


def test_a_handler_that_raises_while_a_command_is_packed_crashes_no_process() -> None:
    assert subprocess.run([sys.executable, "-c", STRUCK], check=False).returncode == 0
