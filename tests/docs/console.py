"""
Console blocks: commands are run as people type them, and what they print is held against the page.
"""

from __future__ import annotations

import re
import subprocess
import time
import tomllib
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.support.waiting import TIMEOUT, wait_until

__all__ = ["Command", "Shell", "commands_of", "is_only_checked"]

PROMPT = "$ "
#: Marks the omitted part of a line.
ANYTHING = "..."
#: A page in a hurry still gets the time that a busy machine needs.
COMMAND_PATIENCE = 4 * TIMEOUT
START_PATIENCE = 3 * TIMEOUT
REPEAT_PATIENCE = 2 * TIMEOUT

INSTALL = re.compile(r"pip install (?P<what>.+)")
MAKE = re.compile(r"make (?P<target>[\w-]+)")
#: Commands that only prepare the reader's own shell.
SETTING_UP = re.compile(r"python3? -m venv |\. \S+/activate$|cd |mkdir ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and the lines that the page shows as its output."""

    line: str
    shown: list[str] = field(default_factory=list)


def commands_of(text: str) -> list[Command]:
    """Return the commands of a console block."""
    commands: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(PROMPT):
            commands.append(Command(line=line.removeprefix(PROMPT).strip()))
        elif line.strip():
            assert commands, f"a console block begins with {PROMPT!r}, not with {line!r}"
            commands[-1].shown.append(line.rstrip())
    return commands


def is_only_checked(command: Command) -> bool:
    """
    Return whether a command is checked instead of run, and check it.

    Installing needs a network, and `make` would run these tests again.
    """
    line = command.line.partition("  #")[0].strip()
    if install := INSTALL.search(line):
        for requirement in re.findall(r'"[^"]+"|\S+', install["what"]):
            _check_requirement(requirement.strip('"'))
        return True
    if make := MAKE.match(line):
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert make["target"] in targets, f"there is no make {make['target']}"
        return True
    return bool(SETTING_UP.match(line))


def _check_requirement(requirement: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match = re.fullmatch(r"([\w./-]+)(?:\[([\w,]+)\])?(?:[=<>~!]=?.*)?", requirement)
    assert match, f"{requirement!r} is no requirement"
    name, extras = match[1], (match[2] or "").split(",")
    if name in (project["name"], "."):
        unknown = set(extras) - {"", *project["optional-dependencies"]}
        assert not unknown, f"{requirement} names extras that there are not: {unknown}"
    elif not requirement.startswith("-"):
        path = ROOT / requirement
        known = chain(project["dependencies"], *project["optional-dependencies"].values())
        names = {re.match(r"[\w-]+", each)[0].lower() for each in known}  # type: ignore[index]
        assert path.exists() or name.lower() in names, f"{requirement} is nothing of this project"


class Shell:
    """Runs commands in one directory; ends what it has left in the background when it is closed."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, command: Command, status: int = 0) -> None:
        """
        Run a command to its end.

        Raises:
            AssertionError: it ends otherwise, or prints something else than the page shows.
        """
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_PATIENCE,
        )
        report = f"$ {command.line}\n{done.stdout}{self._background_output()}"
        assert done.returncode == status, f"exit status {done.returncode}, not {status}:\n{report}"
        check_output(command, done.stdout)

    def repeat(self, command: Command) -> None:
        """Run a command until it prints what the page shows; errors as `run`, if it never does."""
        deadline = time.monotonic() + REPEAT_PATIENCE
        while True:
            try:
                self.run(command)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def start(self, command: Command, until: str) -> None:
        """Leave a command running in the background, once it has printed a text."""
        output = self._directory / f".output-{len(self._running)}"
        with output.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.line}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append((process, output))

        def printed() -> bool:
            assert process.poll() is None, (
                f"it has ended:\n$ {command.line}\n{output.read_text(errors='replace')}"
            )
            return until in output.read_text(errors="replace")

        wait_until(
            printed,
            START_PATIENCE,
            message=lambda: f"{until!r} in\n{output.read_text(errors='replace')}",
        )

    def _background_output(self) -> str:
        return "".join(
            f"\n--- {process.args[-1]}\n{output.read_text(errors='replace')[-3000:]}"  # type: ignore[index]
            for process, output in self._running
        )

    def close(self) -> None:
        """End what still runs, the newest first, kindly first."""
        for process, _ in reversed(self._running):
            for end in (process.terminate, process.kill):
                if process.poll() is not None:
                    break
                end()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    continue
        self._running.clear()


def check_output(command: Command, output: str) -> None:
    """
    Hold the lines that a page shows against those that came; others may lie between.

    How wide the space between words is does not matter: tables fit their contents.
    """
    lines = (" ".join(line.split()) for line in output.splitlines())
    for shown in command.shown:
        parts = (re.escape(" ".join(part.split())) for part in shown.split(ANYTHING))
        wanted = re.compile(".*".join(parts))
        assert any(wanted.fullmatch(line) for line in lines), (
            f"the page shows {shown!r}, which does not come (in this order):\n"
            f"$ {command.line}\n{output}"
        )
