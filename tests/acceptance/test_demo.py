"""The demo shows what it is there to show, ends when told to, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

DEMO = (sys.executable, "-m", "celery_redlock", "demo")
ROOT = Path(__file__).resolve().parents[2]
LONGEST = 110.0
MARK = "REDLOCK_DEMO_TEST"
ROWS = (
    "updates in the account files",
    "payments written exactly once",
    "bodies that began beside another",
    "fencing tokens above the one before",
    "writes by superseded holders",
    "late write of the frozen body",
    "payment of the killed process",
)


@dataclass
class Finished:
    """A demo that has run to its end."""

    status: int
    output: str
    errors: str
    temporary: Path
    table: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        lines = (re.split(r" {2,}", line.strip()) for line in self.output.splitlines())
        self.table = {cells[0]: cells[1:] for cells in lines if cells[0] in ROWS}

    def events(self, kind: str) -> list[str]:
        """The timeline's texts of one kind."""
        found = re.findall(rf"^ *[\d.]+ s  {kind} +(.*)$", self.output, re.MULTILINE)
        return [str(text) for text in found]


def run_demo(temporary: Path, *options: str) -> Finished:
    finished = subprocess.run(
        [*DEMO, *options],
        cwd=ROOT,
        env=environment(temporary),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    return Finished(finished.returncode, finished.stdout, finished.stderr, temporary)


def environment(temporary: Path) -> dict[str, str]:
    # A broker that is not there: the demo has to use its own, whatever the shell says.
    elsewhere = "redis://127.0.0.1:1/0"
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        MARK: str(temporary),
        "TERM": "xterm-256color",
        "CELERY_BROKER_URL": elsewhere,
        "CELERY_RESULT_BACKEND": elsewhere,
    }


def processes_of(temporary: Path) -> list[str]:
    """The processes that have inherited a demo's environment."""
    found = []
    mark = f"{MARK}={temporary}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(f"{entry.name}: {(entry / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return found


def wait_until_nothing_is_left(temporary: Path) -> None:
    wait_until(
        lambda: not processes_of(temporary) and not list(temporary.iterdir()),
        message=lambda: f"the end of {processes_of(temporary)}, {list(temporary.iterdir())}",
    )


@pytest.fixture(scope="module")
def with_lock(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_demo(tmp_path_factory.mktemp("with_lock"))


@pytest.fixture(scope="module")
def without_lock(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_demo(tmp_path_factory.mktemp("without_lock"), "--no-lock")


def test_every_row_of_the_table_is_as_expected(with_lock: Finished) -> None:
    assert with_lock.status == 0, with_lock.output + with_lock.errors
    assert list(with_lock.table) == list(ROWS)
    for subject, (expected, found, mark) in with_lock.table.items():
        assert found == expected, subject
        assert mark == "ok", subject


def test_sixty_updates_were_expected_and_none_may_overlap(with_lock: Finished) -> None:
    assert with_lock.table["updates in the account files"][0] == "60"
    assert with_lock.table["bodies that began beside another"][0] == "0"
    assert with_lock.table["late write of the frozen body"][0] == "refused"


def test_all_four_faults_happened(with_lock: Finished) -> None:
    faults = with_lock.events("fault")

    assert [re.sub(r"\d+.*", "", text) for text in faults] == [
        "node ",
        "node ",
        "process ",
        "process ",
    ]
    assert [re.findall("stopped|killed|frozen", text) for text in faults] == [
        ["stopped"],
        ["killed"],
        ["killed"],
        ["frozen"],
    ]


def test_the_late_write_was_refused_for_a_newer_token(with_lock: Finished) -> None:
    (refusal,) = with_lock.events("guard")

    offered, seen = map(int, re.findall(r"\.\.(\d+)", refusal))
    assert offered < seen


def test_the_killed_node_came_back_and_voted_again(with_lock: Finished) -> None:
    assert any("node 4 votes again" in text for text in with_lock.events("repair"))


def test_the_same_run_without_the_lock_loses_updates(without_lock: Finished) -> None:
    assert without_lock.status == 0, without_lock.output + without_lock.errors
    expected, found, *_ = without_lock.table["updates in the account files"]
    assert int(found) < int(expected)
    assert f"{int(expected) - int(found)} of {expected} updates are lost" in without_lock.output


def test_without_the_lock_every_body_believes_that_it_has_written(without_lock: Finished) -> None:
    assert without_lock.table["payments written exactly once"][1] == "60"
    assert without_lock.table["late write of the frozen body"][1] == "taken"


def test_a_pipe_gets_plain_lines(with_lock: Finished) -> None:
    assert "\x1b" not in with_lock.output
    assert with_lock.output.isascii()


@pytest.mark.parametrize("run", ["with_lock", "without_lock"])
def test_a_finished_demo_leaves_nothing(run: str, request: pytest.FixtureRequest) -> None:
    finished: Finished = request.getfixturevalue(run)

    wait_until_nothing_is_left(finished.temporary)


class Terminal:
    """A demo in a terminal of its own, of 100 columns and 35 lines."""

    def __init__(self, temporary: Path) -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 35, 100, 0, 0))
        self._shown = bytearray()
        self.process = subprocess.Popen(
            DEMO,
            cwd=ROOT,
            env=environment(temporary),
            stdin=other,
            stdout=other,
            stderr=other,
            # Its own session, so that this terminal is the one whose Ctrl-C reaches it.
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._main, 65536)
            except OSError:
                return
            if not chunk:
                return
            self._shown += chunk

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in self.shown,
            LONGEST / 2,
            message=lambda: f"{text!r} in {self.shown[-3000:]}",
        )

    def wait_for_end(self) -> None:
        """Wait until it has ended, and all that it has written is here."""
        self.process.wait(30)
        self._reader.join(30)

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


def test_ctrl_c_ends_everything_that_the_demo_has_started(
    terminal: Terminal, tmp_path: Path
) -> None:
    # By then a node and a process are stopped or dead, which must not keep anything from ending.
    terminal.wait_for("killed in payment")

    terminal.press(b"\x03")

    assert terminal.process.wait(30) == 128 + signal.SIGINT
    wait_until_nothing_is_left(tmp_path)
    assert "Traceback" not in terminal.shown


def test_the_live_view_gives_the_terminal_back_as_it_was(terminal: Terminal) -> None:
    terminal.wait_for("payments sent")

    terminal.press(b"\x03")
    terminal.wait_for_end()

    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_demo_that_is_ended_from_outside_leaves_nothing(
    how: signal.Signals, terminal: Terminal, tmp_path: Path
) -> None:
    terminal.wait_for("payments sent")

    terminal.process.send_signal(how)

    terminal.process.wait(30)
    wait_until_nothing_is_left(tmp_path)
