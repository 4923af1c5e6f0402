"""Programs in processes whose threads are greenlets: waiting there is cooperative."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]

#: What a library puts before a program: everything is patched; `spawn` starts a greenlet, and
#: `join` waits for its end.
PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all(); from gevent import Greenlet, spawn; "
    "join = Greenlet.join",
    "eventlet": "import eventlet; eventlet.monkey_patch(); from eventlet import spawn; "
    "join = eventlet.greenthread.GreenThread.wait",
}


def run_with_greenlets(library: str, program: str, *arguments: str) -> str:
    """Run a program under this library, and return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{PATCH[library]}\n{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
