"""What goes wrong on the command line is said in a sentence that names the mend."""

from __future__ import annotations

import pytest

from celery_redlock.cli import main


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
