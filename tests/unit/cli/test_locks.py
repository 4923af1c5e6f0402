"""`celery-redlock list`, `show` and `release` on the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import pytest

from celery_redlock import Limit, QuorumUnavailable, Rate, Redlock
from celery_redlock.admin.lock_list import show_lock
from celery_redlock.cli import locks
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role
from tests.support.command_line import CommandLine

NODES = "memory://cli-locks-1,memory://cli-locks-2,memory://cli-locks-3"

Terminal = Callable[[Callable[..., object]], None]


@pytest.fixture
def redlock() -> Iterator[Redlock]:
    """A client of nodes that hold nothing at the end."""
    with Redlock(NODES.split(",")) as redlock:
        yield redlock


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An app with a unique task, three calls of which are queued."""
    (tmp_path / "app_of_locks.py").write_text(
        "from celery import Celery\n"
        "from celery_redlock import RedlockTask\n"
        "app = Celery('locks', broker='memory://', set_as_current=False)\n"
        f"app.conf.redlock_nodes = {NODES!r}\n"
        "@app.task(base=RedlockTask, shared=False, name='shop.bill',\n"
        "          lock_key='bill:{number}', lock_mode='until_executed')\n"
        "def bill(number): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "app_of_locks", raising=False)
    import app_of_locks  # type: ignore[import-not-found]

    for number in range(3):
        app_of_locks.bill.delay(number)
    return "app_of_locks"


@pytest.fixture
def run(cli: CommandLine) -> CommandLine:
    """Run a command on the nodes."""
    return partial(cli, "--nodes", NODES)


@pytest.fixture
def run_with_app(cli: CommandLine, module: str) -> CommandLine:
    """Run a command on the nodes of the app."""
    return partial(cli, "-A", module)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Have somebody at a terminal, who is asked by this function."""

    def answer(confirm: Callable[..., object]) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(click, "confirm", confirm)

    return answer


def test_a_lock_is_a_row(redlock: Redlock, run: CommandLine) -> None:
    with redlock.lock("report"):
        head, row = run("list").out.splitlines()
    assert head.split()[:2] == ["KEY", "STATE"]
    assert row.split()[:2] == ["report", "foreign"]


def test_rows_are_of_keys_that_match(redlock: Redlock, run: CommandLine) -> None:
    with redlock.lock("report"), redlock.lock("bill"):
        assert "bill" not in run("list", "rep*").out


def test_json_is_one_object(redlock: Redlock, run: CommandLine) -> None:
    with redlock.lock(["a", Limit("b", 2)]):
        found = run("list", "--json").json
    assert {lock["key"] for lock in found["locks"]} == {"a", "b"}
    assert set(found["locks"][0]) >= {"key", "state", "task", "token", "votes", "waiting"}


def test_without_a_lock_json_is_an_empty_list(run: CommandLine) -> None:
    assert run("list", "--json", status=1).json == {"locks": []}


def test_an_object_that_nodes_cut_short_has_the_error(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, run: CommandLine
) -> None:
    def cut_short(*_: object, **__: object) -> Iterator[object]:
        yield from show_lock(redlock, "report")
        raise QuorumUnavailable("too few", None, {})

    monkeypatch.setattr(locks, "list_locks", cut_short)
    with redlock.lock("report"):
        found = run("list", "--json", status=1).json
    assert [lock["key"] for lock in found["locks"]] == ["report"]
    assert found["error"] == "too few"


def test_without_a_lock_that_is_what_is_printed(run: CommandLine) -> None:
    assert run("list", status=1).out == "No lock is held.\n"


def test_one_key_is_shown_node_by_node(redlock: Redlock, run: CommandLine) -> None:
    with redlock.lock("report", label="monthly"):
        shown = run("show", "report").out
    assert shown.count("memory://cli-locks-") == 3
    assert shown.count("monthly") == 4


def test_the_waiters_of_a_key_are_shown_with_their_priorities(
    redlock: Redlock, run: CommandLine
) -> None:
    now_ms = round(time.time() * 1000)
    with redlock.lock("report") as lease:
        client = client_of(redlock)
        (key,) = (client.key_of(name).stored for name in lease.keys)
        for name, rank in (("plain", 0), ("urgent", -7)):
            client.inspect([key], waiters=[(key, Waiter(name, now_ms, 60_000, rank=rank))])
        shown = run("show", "report").out
        data = run("show", "report", "--json").json
    waits = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith("waits")]
    assert [waits[0].startswith("urgent, since"), waits[0].endswith("priority 7")] == [True, True]
    assert "priority" not in waits[1]
    (lock,) = data["locks"]
    assert [waiter["priority"] for waiter in lock["waiters"]] == [7, 0]


def test_a_lock_that_is_released_is_shown_as_it_was(redlock: Redlock, run: CommandLine) -> None:
    redlock.acquire("report")
    released = run("release", "report", "--yes", "--json").json
    assert [lock["key"] for lock in released["released"]] == ["report"]
    assert redlock.holder("report") is None


def test_nothing_is_released_unless_it_is_confirmed(redlock: Redlock, run: CommandLine) -> None:
    with redlock.lock("report"):
        assert "Give --yes" in run("release", "report", status=2).err
        assert redlock.holder("report") is not None


def test_the_locks_of_a_task_are_released_by_its_name(run_with_app: CommandLine) -> None:
    released = run_with_app("release", "--task", "shop.bill", "--yes", "--json").json["released"]
    assert {lock["key"] for lock in released} == {"bill:0", "bill:1", "bill:2"}
    assert {lock["task"] for lock in released} == {"shop.bill"}


def test_only_what_was_shown_is_released(
    redlock: Redlock, run: CommandLine, terminal: Terminal
) -> None:
    shown = redlock.acquire("report")

    def passes_on(*_: object, **__: object) -> None:
        shown.release()
        redlock.acquire("report")

    terminal(passes_on)
    output = run("release", "report", status=1)
    assert "No lock was released." in output.out
    assert "rate" not in output.err
    assert redlock.holder("report") is not None
    redlock.force_release("report")


def test_only_calls_that_were_shown_lose_their_locks(
    run_with_app: CommandLine, terminal: Terminal
) -> None:
    import app_of_locks

    terminal(lambda *_, **__: app_of_locks.bill.delay(77))
    run_with_app("release", "--task", "shop.bill")
    assert app_of_locks.bill.lock_holder(77) is not None
    assert app_of_locks.bill.lock_holder(0) is None
    app_of_locks.bill.release_lock(77)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["key", "--state", "running"], "--state is for --task"),
        (["--task", "name", "--rates"], "--rates is for a key"),
        (["--task", "name", "--state", "running", "--revoke"], "--revoke is for queued messages"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    redlock: Redlock, words: list[str], said: str, run: CommandLine
) -> None:
    with redlock.lock("key"):
        assert said in run("release", *words, "--yes", status=2).err
        assert redlock.holder("key") is not None


def test_an_app_has_its_own_prefix(run_with_app: CommandLine) -> None:
    printed = run_with_app("list", "--key-prefix", "other:", status=2)
    assert "an app has its own prefix" in printed.err


def test_a_task_that_the_app_does_not_have_is_named(run_with_app: CommandLine) -> None:
    printed = run_with_app("release", "--task", "shop.nope", "--yes", status=1)
    assert "no task 'shop.nope'" in printed.err


def test_what_a_rate_has_counted_is_named_where_it_stays(
    redlock: Redlock, run: CommandLine
) -> None:
    redlock.acquire(Rate("mail", "1/h")).release()
    assert "--rates" in run("release", "mail", "--yes", status=1).err
    assert "counted" in run("list", "mail").out
    run("release", "mail", "--yes", "--rates")


@pytest.mark.parametrize("words", [[], ["key", "--task", "name"]], ids=["neither", "both"])
def test_a_key_or_a_task_is_released(words: list[str], run: CommandLine) -> None:
    assert "either a key or --task" in run("release", *words, status=2).err


def test_one_call_is_released_and_revoked_by_its_id(run_with_app: CommandLine) -> None:
    import app_of_locks

    holder = app_of_locks.bill.lock_holder(1)
    words = ["release", "--task", "shop.bill", "--id", holder.task_id, "--revoke", "--yes"]
    released = run_with_app(*words, "--json").json["released"]
    assert [lock["key"] for lock in released] == ["bill:1"]
    with Redlock(NODES.split(",")) as redlock:
        marker = client_of(redlock).inspect((dedupe_key_of(parse_owner(holder.owner).marker),))[0]
    assert parse_owner(marker.owner).role is Role.REVOKED


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--revoke"], "messages among them will not run"), ([], "--revoke would prevent that")],
)
def test_the_question_says_what_becomes_of_queued_messages(
    words: list[str], said: str, run_with_app: CommandLine, terminal: Terminal
) -> None:
    asked: list[str] = []
    terminal(lambda question, **_: asked.append(question))
    run_with_app("release", "bill:0", *words)
    assert said in asked[0]
