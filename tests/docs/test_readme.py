"""The first example of the README runs as it is typed, with one Redis."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from tests.acceptance.program import ROOT, Program

README = (ROOT / "README.md").read_text()
REDIS = "localhost:6379"


def test_the_first_example_runs_as_it_is_typed(tmp_path: Path, redlock_cluster_factory) -> None:
    (store,) = redlock_cluster_factory(1).urls
    address = store.removeprefix("redis://").partition("/")[0]
    example, typed = re.findall(r"```(?:python|text)\n(.*?)```", README, flags=re.DOTALL)[:2]
    _, start, call = re.findall(r"^\$ (.*?)(?: +#.*)?$", typed, flags=re.MULTILINE)
    (tmp_path / "bank.py").write_text(example.replace(REDIS, address))

    worker = _typed("worker", start, tmp_path)
    try:
        worker.wait_for_log(" ready.")
        assert _typed("call", call, tmp_path).wait_for_exit() == 0
        worker.wait_for_log(": 'account 7: 1, token ")
    finally:
        worker.stop()


def _typed(name: str, command: str, directory: Path) -> Program:
    """Start a command as a shell in the environment would."""
    program, *arguments = shlex.split(command)
    path = str(Path(sys.executable).with_name(program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Program(name, [path, *arguments], environment, directory, cwd=directory)
