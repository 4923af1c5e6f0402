"""`celery-redlock web` on the command line."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from tests.support import forked
from tests.support.command_line import CommandLine
from tests.support.forked import Program
from tests.support.waiting import TIMEOUT

MODULES = ["starlette", "uvicorn"]


@contextmanager
def running(*options: str) -> Iterator[tuple[Program, str]]:
    """Give the command, and the line that it prints first."""
    command = ("-m", "celery_redlock", "web", "--nodes", "memory://a", *options)
    with forked.reading(*command, "--port", "0") as (process, printed):
        yield process, printed.readline()


def test_it_prints_its_address_serves_and_ends_when_interrupted() -> None:
    pytest.importorskip("uvicorn", reason="needs the extra `web`")
    with running() as (process, line):
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", line)
        with urlopen(address, timeout=TIMEOUT) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_json_has_the_address() -> None:
    pytest.importorskip("uvicorn", reason="needs the extra `web`")
    with (
        running("--json") as (_, line),
        urlopen(json.loads(line)["url"], timeout=TIMEOUT) as answer,
    ):
        assert answer.status == 200


def test_beyond_loopback_the_address_has_a_token() -> None:
    pytest.importorskip("uvicorn", reason="needs the extra `web`")
    with running("--host", "0.0.0.0") as (_, line):
        assert re.search(r"http://[^/]+:\d+/\?token=[\w-]{32,} ", line)


def test_a_port_that_is_taken_is_named(cli: CommandLine) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra `web`")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        printed = cli("web", "--nodes", "memory://a", "--port", str(port), status=2)

    (line,) = printed.err.splitlines()
    assert f"port {port}" in line
    assert "--port" in line


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_package_is_one_line_with_the_remedy(
    module: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in MODULES or name.startswith("celery_redlock.web"):
            monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=module)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    (line,) = cli("web", "--nodes", "memory://a", status=2).err.splitlines()
    assert f"needs the package {module}" in line
    assert 'pip install "celery-redlock[web]"' in line
