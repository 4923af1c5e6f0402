"""What a command is about may be named before it or after it, or by Celery's own command."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_redlock.cli.commands import redlock
from tests.support.command_line import CommandLine

NODES = "memory://target-1,memory://target-2,memory://target-3"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app that a command line can name."""
    (tmp_path / "app_of_target.py").write_text(
        "from celery import Celery\n"
        "app = Celery('app_of_target', set_as_current=False)\n"
        f"app.conf.redlock_nodes = {NODES!r}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "app_of_target"


@pytest.mark.parametrize(
    "words", [["--nodes", NODES, "init"], ["init", "--nodes", NODES]], ids=["before", "after"]
)
def test_nodes_may_be_named_on_both_sides(words: list[str], cli: CommandLine) -> None:
    assert cli(*words).out.count("memory://target-") == 3


@pytest.mark.parametrize("where", [0, 1], ids=["before", "after"])
def test_an_app_may_be_named_on_both_sides(module: str, where: int, cli: CommandLine) -> None:
    words = ["init"]
    words[where:where] = ["-A", module]
    assert cli(*words).out.count("memory://target-") == 3


def test_what_stands_after_the_command_holds(cli: CommandLine) -> None:
    printed = cli("--nodes", "memory://elsewhere", "init", "--nodes", NODES)
    assert "elsewhere" not in printed.out


@pytest.fixture
def umbrella(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Celery's command, as it is where this package is installed."""
    monkeypatch.setitem(celery.commands, "redlock", redlock)
    return CliRunner()


def test_celery_s_command_has_it(umbrella: CliRunner, module: str) -> None:
    result = umbrella.invoke(celery, ["-A", module, "redlock", "init"])
    assert result.exit_code == 0
    assert result.output.count("memory://target-") == 3


def test_an_error_below_celery_s_command_is_one_line(umbrella: CliRunner, module: str) -> None:
    result = umbrella.invoke(celery, ["-A", module, "redlock", "init", "--nodes", "http://lock"])
    assert result.exit_code == 2
    assert result.output.startswith("celery-redlock: ")
    assert "Traceback" not in result.output


def test_a_command_without_an_app_names_the_option(cli: CommandLine) -> None:
    assert "give -A APP" in cli("beat", status=2).err
