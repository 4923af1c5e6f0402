"""The demo loses updates without the lock, and gives its terminal back."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.examples.running import EXAMPLE_TIMEOUT, ROOT, Example, processes_of, started
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(EXAMPLE_TIMEOUT + 2 * TIMEOUT)]


def test_without_the_lock_the_files_lose_updates_that_celery_reports_as_success(
    tmp_path: Path,
) -> None:
    # A broker that is not there: the demo has to start its own.
    process = started(
        Example.of("demo"),
        tmp_path,
        options=("--no-lock",),
        CELERY_BROKER_URL="redis://127.0.0.1:1",
    )
    output, _ = process.communicate(timeout=EXAMPLE_TIMEOUT)

    assert process.returncode == 0, output
    assert "of 60 updates are lost" in output
    assert "payments written exactly once        60          60          ok" in output
    assert "late write of the frozen body        refused     accepted    NOT SO" in output
    assert output.isascii()


def test_a_recording_ends_with_what_the_demo_has_found(tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"

    process = started(Example.of("demo"), tmp_path, options=("--record", str(file)))
    output, _ = process.communicate(timeout=EXAMPLE_TIMEOUT)

    assert process.returncode == 0, output
    texts = list(ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text"))
    seen_last = ["".join(text.itertext()) for text in texts if text.get("visibility") is None]
    seen_before = ["".join(text.itertext()) for text in texts if text.get("visibility")]
    assert "All 60 updates are there, whatever failed." in seen_last
    assert any("is killed in payment" in text for text in seen_before)


class Terminal:
    """The demo in a terminal of its own, of 100 columns and 35 lines."""

    def __init__(self, temporary: Path) -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 35, 100, 0, 0))
        self._output = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, *Example.of("demo").command],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary), "TERM": "xterm-256color"},
            stdin=other,
            stdout=other,
            stderr=other,
            # A session of its own: Ctrl-C in this terminal reaches the demo alone.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        # Reading fails once the last process that has the terminal open has ended.
        try:
            while chunk := os.read(self._main, 65536):
                self._output += chunk
        except OSError:
            pass

    @property
    def output(self) -> str:
        return self._output.decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._main, key)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._main)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_ctrl_c_ends_all_processes_and_gives_the_terminal_back(
    terminal: Terminal, tmp_path: Path
) -> None:
    # By then a node and a process are stopped or dead, which must not keep anything from ending.
    wait_until(lambda: "is killed in payment" in terminal.output, 3 * TIMEOUT)

    terminal.press(b"\x03")

    assert terminal.process.wait(TIMEOUT) == 128 + signal.SIGINT
    wait_until(lambda: not processes_of(tmp_path), message=lambda: str(processes_of(tmp_path)))
    assert not list(tmp_path.iterdir())
    assert "Traceback" not in terminal.output
    assert terminal.output.rindex("\x1b[?25h") > terminal.output.rindex("\x1b[?25l")
