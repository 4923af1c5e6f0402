"""
Plays one page in a process of its own, block after block, as somebody would who follows it.

Its Python blocks share one namespace, its commands and files one directory. Host names that the
pages use stand for servers that the tests have started.
"""

from __future__ import annotations

import ast
import configparser
import doctest
import json
import os
import re
import sys
import tomllib
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from celery_redlock.testing import LocalCluster
from tests.docs import setups
from tests.docs.blocks import ROOT, Block, blocks_of
from tests.docs.console import Shell, commands_of, is_only_checked

__all__ = ["play"]

LOCK_NODE = re.compile(r"\block(\d):6379\b")
STORE = re.compile(r"\b(?:localhost|data):6379\b")
BARE_DATA = re.compile(r'redis\.Redis\("data"\)')
IN_BACKGROUND = r'in the background until "(.+)"'
REPEATED = "(repeated) until it shows this"

PARSERS = {
    "py": ast.parse,
    "pycon": doctest.DocTestParser().get_examples,
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "toml": tomllib.loads,
    "ini": lambda text: configparser.ConfigParser(strict=False).read_string(text),
}


class Page:
    """
    A page that is played.

    Args:
        path: the page.
        directory: where its files and commands are; empty.
        nodes: addresses used as `lock1`, `lock2`, ...
        store: address used as the broker, the result backend and the data.
    """

    def __init__(self, path: Path, directory: Path, nodes: list[str], store: str) -> None:
        self.path = path
        self.directory = directory
        self._nodes = nodes
        self._store = store
        self.counts: Counter[str] = Counter()
        self.not_run: list[str] = []
        self._files: dict[str, Block] = {}
        # A module that can be imported: what looks up names of classes and functions does so.
        module = sys.modules["page"] = ModuleType("page")
        self._names = vars(module)
        self._names.update(setups.names_for(path))
        self._after_block = setups.after_block(path)
        self._shell = Shell(directory, _environment())

    def play(self) -> None:
        """
        Play all blocks in their order.

        Raises:
            AssertionError: one does not do what the page shows; the message names its line.
        """
        os.chdir(self.directory)
        os.environ["PATH"] = _environment()["PATH"]
        sys.path.insert(0, str(self.directory))
        try:
            for block in blocks_of(self.path):
                kind = self._play(block)
                self.counts[kind] += 1
            unused = [block.where for block in self._files.values()]
            assert not unused, f"nothing on the page uses the files at {', '.join(unused)}"
        finally:
            self._shell.close()

    def _play(self, block: Block) -> str:
        if reason := block.ordered("not run: (.+)"):
            self.not_run.append(f"{block.where}: {reason}")
            return "not run"
        try:
            return self._do(block)
        except BaseException as exc:
            trace = "".join(traceback.format_exception(exc))
            raise AssertionError(f"{block.where}: {exc}\n{trace}") from None

    def _do(self, block: Block) -> str:
        text = self._stand_in(block.text)
        if block.file and block.language != "console":
            path = self.directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.name == "redis.conf":
                _serve_with(text)
                return "executed"
            if block.language == "python":
                compile(text, block.where, "exec", dont_inherit=True)
                self._files[path.stem] = block
                return "executed"
        if block.language == "python":
            self._forget_used_files(text)
            self._run_python(block, text)
            return "executed"
        if block.language == "console":
            self._forget_used_files(text)
            return self._run_commands(block, text)
        if block.language in PARSERS:
            PARSERS[block.language](text)
            return "parsed"
        assert block.language == "text", (
            f"nothing is known about language {block.language!r}; "
            "a drawing is ```text, and a block that cannot run gives the reason"
        )
        return "shown as text"

    def _run_python(self, block: Block, text: str) -> None:
        source = "\n" * (block.line - 1) + text
        code = compile(source, str(block.page), "exec", dont_inherit=True)
        wanted = block.ordered(r"raises (\w+)")
        try:
            exec(code, self._names)
        except Exception as exc:
            if wanted not in {kind.__name__ for kind in type(exc).__mro__}:
                raise
        else:
            assert wanted is None, f"it does not raise {wanted}"
            self._after_block(text, self._names)

    def _run_commands(self, block: Block, text: str) -> str:
        commands = commands_of(text)
        until = block.ordered(IN_BACKGROUND)
        status = int(block.ordered(r"exit status (\d+)") or 0)
        repeated = block.ordered(REPEATED) is not None
        ran = False
        for command in commands:
            if is_only_checked(command):
                continue
            ran = True
            last = command is commands[-1]
            if until is not None and last:
                self._shell.start(command, until)
            elif repeated and last:
                self._shell.repeat(command)
            else:
                self._shell.run(command, status if last else 0)
        return "executed" if ran else "checked"

    def _forget_used_files(self, text: str) -> None:
        # pytest reads this file by itself.
        text += " conftest" * ("pytest" in text)
        used = [stem for stem in self._files if re.search(rf"\b{re.escape(stem)}\b", text)]
        # A file that another file of the page imports is used with it.
        while used:
            block = self._files.pop(used.pop(), None)
            if block is not None:
                used += [stem for stem in self._files if re.search(rf"\b{stem}\b", block.text)]

    def _stand_in(self, text: str) -> str:
        text = LOCK_NODE.sub(lambda match: self._nodes[int(match[1]) - 1], text)
        text = BARE_DATA.sub(f'redis.Redis.from_url("redis://{self._store}")', text)
        return STORE.sub(self._store, text)


def _serve_with(configuration: str) -> None:
    """Start a server with these lines, which refuses to start if it does not understand them."""
    lines = [line for line in configuration.splitlines() if line and not line.startswith("#")]
    config: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(" ")
        config.setdefault(name, []).append(value.strip())
    with LocalCluster(1, config=config) as cluster:
        cluster.client(0).ping()


def _environment() -> dict[str, str]:
    """Return what commands see: the tests' Python first, and nothing of the tests themselves."""
    kept = {
        name: value
        for name, value in os.environ.items()
        # pytest-xdist sets the width of a terminal that a command does not have.
        if not name.startswith(("CELERY_", "PYTEST_", "COV_"))
        and name not in ("PYTHONPATH", "COLUMNS")
    }
    scripts = str(Path(sys.executable).parent)
    return {**kept, "PATH": f"{scripts}:{kept.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}


def play(job: dict[str, Any]) -> dict[str, Any]:
    """Play a page, and return how its blocks were treated."""
    page = Page(ROOT / job["page"], Path(job["directory"]), job["nodes"], job["store"])
    page.play()
    return {"counts": page.counts, "not_run": page.not_run}


if __name__ == "__main__":
    result = Path(sys.argv[2])
    result.write_text(json.dumps(play(json.loads(sys.argv[1]))))
