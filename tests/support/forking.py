"""Forked children of a test."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_child(run: Callable[[], object]) -> int:
    """Run something in a forked child; return its process id in the parent."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def end_of(pid: int) -> int:
    """Wait for the end of a child; return its exit code, not 0 if it raised."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
