"""How a schedule stands, and how the command line shows it."""

from __future__ import annotations

import io
import os
import re
import sys
import types
from functools import partial

import pytest

from celery_redlock.beat.leader_record import HOST, schedule_status
from celery_redlock.cli import main
from celery_redlock.tasks.config.client import client_for
from tests.support.command_line import CommandLine, cli
from tests.unit.beat.world import World

__all__ = ["cli"]


@pytest.fixture
def module(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with the world's app, as `-A` finds it."""
    name = world.name.replace("-", "_")
    found = types.ModuleType(name)
    found.app = world.app()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, found)
    return name


@pytest.fixture
def status(cli: CommandLine, module: str) -> CommandLine:
    """Ask for the status of the world's schedule."""
    return partial(cli, "beat", "-A", module)


def test_a_leader_is_known_with_its_token(world: World) -> None:
    a = world.beat("a")
    world.run(5)
    standing = schedule_status(a.app)
    assert standing.leader is not None
    assert (standing.leader.host, standing.leader.pid) == (HOST, os.getpid())
    assert standing.leader.token == world.sent[-1].tick.token  # type: ignore[union-attr]
    assert 0 < standing.lease_remaining <= 12  # type: ignore[operator]
    entry = standing.entries["job"]
    assert (list(standing.entries), entry.count) == (["job"], 5)
    assert entry.last_due == world.sent[-1].tick.due_at  # type: ignore[union-attr]


def test_its_token_is_known_although_the_counters_have_counted_on(world: World) -> None:
    a = world.beat("a")
    world.run(5)
    for node in world.nodes:
        for name in node.state.fences:
            node.state.fences[name] += 1000
    assert schedule_status(a.app).leader.token == world.sent[-1].tick.token  # type: ignore[union-attr]


def test_when_nobody_leads_the_last_leader_is_known(world: World) -> None:
    a = world.beat("a")
    world.run(5)
    world.stop(a)
    standing = schedule_status(a.app)
    assert standing.leader is standing.lease_remaining is None
    assert standing.last_leader is not None
    assert standing.last_leader.token == world.sent[-1].tick.token  # type: ignore[union-attr]


def test_the_command_shows_leader_and_entries(world: World, status: CommandLine) -> None:
    world.schedule["never"] = {"task": "job", "schedule": 3600.0}
    world.beat("a")
    world.run(5)
    lines = status().lines
    assert lines[0] == f"schedule  beat:{world.name}"
    assert re.fullmatch(
        rf"leader    {HOST}, pid {os.getpid()}, since 2026-03-10 12:00:00 UTC, token \d+, "
        r"lease \d+\.\d s left",
        lines[1],
    )
    assert lines[2].split("  ")[0] == "ENTRY"
    job, never = (re.split(r"  +", line) for line in lines[3:])
    assert job[:4] == ["job", "2026-03-10 12:00:05", "2026-03-10 12:00:05", "5"]
    assert never[:4] == ["never", "-", "-", "0"]


def test_the_command_says_when_nobody_has_led(status: CommandLine) -> None:
    printed = status(status=1)
    assert "none has led before: start one with celery -A ... beat -S redlock" in printed.out


def test_the_command_says_who_led_last(world: World, status: CommandLine) -> None:
    a = world.beat("a")
    world.run(2)
    world.stop(a)
    assert f"none now; the last was {HOST}, pid {os.getpid()}" in status(status=1).out


def test_without_entries_the_command_says_so(world: World, status: CommandLine) -> None:
    world.schedule.clear()
    world.beat("a")
    world.run(3)
    assert "none is recorded" in status().out


def test_the_command_prints_json(world: World, status: CommandLine) -> None:
    a = world.beat("a")
    world.run(5)
    printed = status("--json").json
    assert printed["leader"]["pid"] == os.getpid()
    assert printed["entries"] == [
        {
            "entry": "job",
            "last_due": "2026-03-10T12:00:05+00:00",
            "last_run": printed["entries"][0]["last_run"],
            "runs": 5,
            "token": printed["leader"]["token"],
        }
    ]
    world.stop(a)
    printed = status("--json", status=1).json
    assert printed["leader"] is printed["lease_remaining"] is None


def test_on_a_terminal_a_name_is_no_markup(
    world: World, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    world.schedule["[bold]"] = {"task": "job", "schedule": 1.0}
    world.beat("a")
    world.run(5)
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", shown)
    assert main(["beat", "-A", module]) == 0
    assert "[bold]" in shown.getvalue()


def test_a_stranger_who_holds_the_lock_is_shown_with_the_mend(
    world: World, status: CommandLine
) -> None:
    client = client_for(world.app())
    lease = client.acquire_for_task([f"beat:{world.name}"], label="somebody")
    told = f"held by {lease.owner!r}. Give the schedule a name of its own"
    assert told in status(status=1).out


def test_too_few_nodes_are_an_error(world: World, status: CommandLine) -> None:
    for node in world.nodes[:3]:
        node.kill()
    printed = status(status=1)
    assert printed.out == ""
    assert printed.err.startswith("celery-redlock: The holder of")


@pytest.mark.parametrize("name", ["nowhere_at_all", "os:path", "json"])
def test_an_app_that_is_none_is_an_error_with_the_mend(name: str, cli: CommandLine) -> None:
    assert f"-A {name} cannot be loaded" in cli("beat", "-A", name, status=2).err


def test_a_setting_that_cannot_be_used_is_an_error(module: str, status: CommandLine) -> None:
    sys.modules[module].app.conf.redlock_beat_ttl = "soon"
    assert "redlock_beat_ttl='soon'" in status(status=2).err
