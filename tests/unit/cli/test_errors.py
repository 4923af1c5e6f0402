"""What goes wrong on the command line is said in a sentence that names the mend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from celery_redlock import QuorumUnavailable
from celery_redlock.cli import locks, main
from celery_redlock.cli.commands import redlock
from celery_redlock.testing import LocalCluster


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("http://lock-1:6379", "redis://"),
        ("redis://lock-1:6379,redis://lock-1:6379", "one server"),
        ("", "No lock node is given"),
    ],
)
def test_a_node_url_that_cannot_be_used_is_explained(
    nodes: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--nodes", nodes]) == 2

    printed = capsys.readouterr()
    assert said in printed.err
    assert not printed.out


def test_an_even_number_of_nodes_is_advised_against_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", "--nodes", "memory://even-1,memory://even-2"]) == 0

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("celery-redlock: 2 lock nodes survive the loss of 0")


def test_without_a_command_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2

    printed = capsys.readouterr().out
    assert "COMMAND" in printed
    assert "init" in printed


@pytest.mark.parametrize("command", ["init", "doctor", "list", "watch", "web"])
def test_without_nodes_it_is_said_how_to_name_them(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 2
    assert "give --nodes URL[,URL...], or -A APP" in capsys.readouterr().err


def test_a_key_that_no_lock_can_have_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "", "--nodes", "memory://a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "key" in line


@pytest.mark.parametrize("name", sorted(redlock.commands))
def test_every_command_prints_json_on_demand(name: str) -> None:
    assert any("--json" in option.opts for option in redlock.commands[name].params)


ESCAPE = "\x1b]0;title\x07"


def test_nothing_that_nodes_have_controls_the_terminal(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in range(3):
        cluster.client(node).set(f"redlock:a{ESCAPE}", f"b{ESCAPE}", px=60_000)
    nodes = ",".join(cluster.urls)
    for shows_tables in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=shows_tables: shown, raising=False)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(click, "confirm", lambda *_, **__: None)
        for words in (["list"], ["show", f"a{ESCAPE}"], ["release", f"b{ESCAPE}"]):
            main([*words, "--nodes", nodes])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks, "release_lock", lambda *_, **__: [])
            main(["release", f"a{ESCAPE}", "--nodes", nodes])
    output = capsys.readouterr()
    assert "title" in output.out
    assert "\x1b]" not in output.out + output.err


def test_an_error_that_a_server_words_does_not_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise QuorumUnavailable(f"ERR {ESCAPE}", None, {})

    monkeypatch.setattr(locks, "show_lock", fail)
    assert main(["show", "key", "--nodes", "memory://a"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_full_disk_is_one_line() -> None:
    command = [sys.executable, "-m", "celery_redlock", "list", "--nodes", "memory://a"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "No space left" in line
