"""What goes wrong on the command line is said in a sentence that names the mend."""

from __future__ import annotations

import pytest

from celery_redlock import QuorumUnavailable
from celery_redlock.cli import locks
from celery_redlock.cli.commands import redlock
from tests.support.command_line import CommandLine


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("http://lock-1:6379", "redis://"),
        ("redis://lock-1:6379,redis://lock-1:6379", "one server"),
        ("", "No lock node is given"),
    ],
)
def test_a_node_url_that_cannot_be_used_is_explained(
    nodes: str, said: str, cli: CommandLine
) -> None:
    printed = cli("init", "--nodes", nodes, status=2)
    assert said in printed.err
    assert not printed.out


def test_an_even_number_of_nodes_is_advised_against_in_one_line(cli: CommandLine) -> None:
    (line,) = cli("init", "--nodes", "memory://even-1,memory://even-2").err.splitlines()
    assert line.startswith("celery-redlock: 2 lock nodes tolerate no failures, the same as 1.")


def test_without_a_command_the_help_lists_the_commands(cli: CommandLine) -> None:
    printed = cli(status=2).out
    assert "COMMAND" in printed
    assert "init" in printed


@pytest.mark.parametrize("command", ["init", "doctor", "list", "watch", "web"])
def test_without_nodes_it_is_said_how_to_name_them(command: str, cli: CommandLine) -> None:
    assert "give --nodes URL[,URL...], or -A APP" in cli(command, status=2).err


def test_a_key_that_no_lock_can_have_is_a_misuse(cli: CommandLine) -> None:
    (line,) = cli("show", "", "--nodes", "memory://a", status=2).err.splitlines()
    assert "key" in line


@pytest.mark.parametrize("name", sorted(redlock.commands))
def test_every_command_prints_json_on_demand(name: str) -> None:
    assert any("--json" in option.opts for option in redlock.commands[name].params)


def test_an_error_that_a_server_words_does_not_control_the_terminal(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise QuorumUnavailable("ERR \x1b]0;title\x07", None, {})

    monkeypatch.setattr(locks, "show_lock", fail)
    assert "\x1b" not in cli("show", "key", "--nodes", "memory://a", status=1).err
