"""A real process with a log: watched through it, and ended by pid."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest

from tests.support.waiting import TIMEOUT, wait_until

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_LINES = 80

#: What has run for a test, and how long its log was when the test got it.
PROGRAMS_OF_TEST = pytest.StashKey[dict["Program", int]]()


class Program:
    """
    One process of its own; its children follow it (PDEATHSIG).

    Attributes:
        name: what it is called in messages.
        process: the process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        logs: Path,
        *,
        cwd: Path = ROOT,
    ) -> None:
        self.name = name
        self._log = logs / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def log_tail(self) -> str:
        return _tail(self.log)

    def show_if_it_fails(self, test: pytest.Item) -> Self:
        """Have what is logged from now on printed with the test, if that fails."""
        test.stash.setdefault(PROGRAMS_OF_TEST, {}).setdefault(self, len(self.log))
        return self

    @classmethod
    def add_logs(cls, test: pytest.Item, report: pytest.TestReport) -> None:
        """Add to a report what a test's programs have logged since it began."""
        for program, length in test.stash.get(PROGRAMS_OF_TEST, {}).items():
            title = f"log of {program.name} since the test began; all of it: {program._log}"
            report.sections.append((title, _tail(program.log[length:])))

    def wait_for_log(self, text: str) -> None:
        """Wait until this stands in the log, unless the process ends before."""

        def there() -> bool:
            # In this order: what it writes last, it may write while its end is being looked for.
            ended, found = not self.is_running, text in self.log
            if ended and not found:
                raise AssertionError(
                    f"{self.name} ended with {self.process.returncode}, without {text!r}:\n"
                    f"{self.log_tail}"
                )
            return found

        wait_until(there, message=lambda: f"{text!r} in the log of {self.name}:\n{self.log_tail}")

    def wait_for_exit(self) -> int:
        try:
            return self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.log_tail}") from None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """End the process, kindly first; a stopped one is let run on."""
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
            if not self.is_running:
                break
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                continue


def _tail(log: str) -> str:
    return "\n".join(log.splitlines()[-LOG_TAIL_LINES:])


def stop_all(programs: Iterable[Program]) -> None:
    """End the processes at the same time: each of them takes a while."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(Program.stop, programs))
