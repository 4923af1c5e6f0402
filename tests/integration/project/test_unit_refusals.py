"""A unit test that starts a process or opens a socket fails, and is told where it belongs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "unit" / "conftest.py"


def run(directory: Path, body: str, before: str = "") -> str:
    """Run a unit test with this body in a directory of its own; return what pytest prints."""
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "test_it.py").write_text(f"{before}\ndef test_it():\n    {body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import subprocess; subprocess.run(['true'])", "starts a process"),
        ("import os; os.fork() or os._exit(0)", "starts a process"),
        ("import socket; socket.socket().bind(('127.0.0.1', 0))", "opens a socket"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "looks up a host"),
    ],
)
def test_it_is_refused_with_the_place_where_it_belongs(
    tmp_path: Path, body: str, told: str
) -> None:
    printed = run(tmp_path, body)
    assert f"a unit test {told}" in printed
    assert "move it to tests/integration" in printed


def test_it_fails_also_where_the_code_under_test_swallows_the_refusal(tmp_path: Path) -> None:
    swallowing = "import contextlib, os\n    with contextlib.suppress(Exception): os.system('true')"
    assert "1 error" in run(tmp_path, swallowing)


def test_what_does_neither_passes(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, "import socket; socket.socketpair()")


LEAVES_A_THREAD = """
import socket, threading

is_next, is_done = threading.Event(), threading.Event()

def look_up():
    try:
        socket.getaddrinfo("localhost", 9)
    finally:
        is_done.set()

def start_another():
    is_next.wait()
    threading.Thread(target=look_up).start()

def test_before():
    threading.Thread(target=start_another).start()
"""


def test_threads_of_an_earlier_test_do_not_fail_it(tmp_path: Path) -> None:
    printed = run(tmp_path, "is_next.set(); assert is_done.wait(20)", before=LEAVES_A_THREAD)
    assert "2 passed in" in printed


def test_its_own_threads_fail_it(tmp_path: Path) -> None:
    alone = LEAVES_A_THREAD.replace("test_before", "begin")  # no other thread ends the wait
    printed = run(tmp_path, "begin(); is_next.set(); is_done.wait(20)", alone)
    assert "a unit test looks up a host" in printed
