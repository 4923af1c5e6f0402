"""`celery-redlock list`, `show` and `release` on the command line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from celery_redlock import Limit, QuorumUnavailable, Rate, Redlock
from celery_redlock.admin.lock_list import show_lock
from celery_redlock.cli import locks, main
from celery_redlock.core import client_of
from celery_redlock.protocol.commands import Waiter
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role

NODES = "memory://cli-locks-1,memory://cli-locks-2,memory://cli-locks-3"


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


def printed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main([*words, "--nodes", NODES]) == status
    return capsys.readouterr().out


def test_a_lock_is_a_row(redlock: Redlock, capsys: pytest.CaptureFixture[str]) -> None:
    with redlock.lock("report"):
        head, row = printed(capsys, "list").splitlines()
    assert head.split()[:2] == ["KEY", "STATE"]
    assert row.split()[:2] == ["report", "foreign"]


def test_rows_are_of_keys_that_match(redlock: Redlock, capsys: pytest.CaptureFixture[str]) -> None:
    with redlock.lock("report"), redlock.lock("bill"):
        assert "bill" not in printed(capsys, "list", "rep*")


def test_json_is_one_object(redlock: Redlock, capsys: pytest.CaptureFixture[str]) -> None:
    with redlock.lock(["a", Limit("b", 2)]):
        found = json.loads(printed(capsys, "list", "--json"))
    assert {lock["key"] for lock in found["locks"]} == {"a", "b"}
    assert set(found["locks"][0]) >= {"key", "state", "task", "token", "votes", "waiting"}


def test_without_a_lock_json_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "list", "--json", status=1)) == {"locks": []}


def test_an_object_that_nodes_cut_short_has_the_error(
    redlock: Redlock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(*_: object, **__: object) -> Iterator[object]:
        yield from show_lock(redlock, "report")
        raise QuorumUnavailable("too few", None, {})

    monkeypatch.setattr(locks, "list_locks", cut_short)
    with redlock.lock("report"):
        found = json.loads(printed(capsys, "list", "--json", status=1))
    assert [lock["key"] for lock in found["locks"]] == ["report"]
    assert found["error"] == "too few"


def test_without_a_lock_that_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list", status=1) == "No lock is held.\n"


def test_one_key_is_shown_node_by_node(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    with redlock.lock("report", label="monthly"):
        shown = printed(capsys, "show", "report")
    assert shown.count("memory://cli-locks-") == 3
    assert shown.count("monthly") == 4


def test_the_waiters_of_a_key_are_shown_with_their_priorities(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ms = round(time.time() * 1000)
    with redlock.lock("report") as lease:
        client = client_of(redlock)
        (key,) = (client.key_of(name).stored for name in lease.keys)
        for name, rank in (("plain", 0), ("urgent", -7)):
            client.inspect([key], waiters=[(key, Waiter(name, now_ms, 60_000, rank=rank))])
        shown = printed(capsys, "show", "report")
        data = json.loads(printed(capsys, "show", "report", "--json"))
    waits = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith("waits")]
    assert [waits[0].startswith("urgent, since"), waits[0].endswith("priority 7")] == [True, True]
    assert "priority" not in waits[1]
    (lock,) = data["locks"]
    assert [waiter["priority"] for waiter in lock["waiters"]] == [7, 0]


def test_a_lock_that_is_released_is_shown_as_it_was(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    redlock.acquire("report")
    released = json.loads(printed(capsys, "release", "report", "--yes", "--json"))
    assert [lock["key"] for lock in released["released"]] == ["report"]
    assert redlock.holder("report") is None


def test_nothing_is_released_unless_it_is_confirmed(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    with redlock.lock("report"):
        assert main(["release", "report", "--nodes", NODES]) == 2
        assert "Give --yes" in capsys.readouterr().err
        assert redlock.holder("report") is not None


def test_the_locks_of_a_task_are_released_by_its_name(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "--task", "shop.bill", "--yes", "-A", module, "--json"]) == 0
    released = json.loads(capsys.readouterr().out)["released"]
    assert {lock["key"] for lock in released} == {"bill:0", "bill:1", "bill:2"}
    assert {lock["task"] for lock in released} == {"shop.bill"}


def test_only_what_was_shown_is_released(
    redlock: Redlock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = redlock.acquire("report")

    def passes_on(*_: object, **__: object) -> None:
        shown.release()
        redlock.acquire("report")

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", passes_on)
    assert main(["release", "report", "--nodes", NODES]) == 1
    output = capsys.readouterr()
    assert "No lock is held." in output.out
    assert "rate" not in output.err
    assert redlock.holder("report") is not None
    redlock.force_release("report")


def test_only_calls_that_were_shown_lose_their_locks(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import app_of_locks

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: app_of_locks.bill.delay(77))
    assert main(["release", "--task", "shop.bill", "-A", module]) == 0
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
    redlock: Redlock, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with redlock.lock("key"):
        assert main(["release", *words, "--yes", "--nodes", NODES]) == 2
        assert redlock.holder("key") is not None
    assert said in capsys.readouterr().err


def test_an_app_has_its_own_prefix(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "-A", module, "--key-prefix", "other:"]) == 2
    assert "an app has its own prefix" in capsys.readouterr().err


def test_a_task_that_the_app_does_not_have_is_named(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", "--task", "shop.nope", "--yes", "-A", module]) == 1
    assert "no task 'shop.nope'" in capsys.readouterr().err


def test_what_a_rate_has_counted_is_named_where_it_stays(
    redlock: Redlock, capsys: pytest.CaptureFixture[str]
) -> None:
    redlock.acquire(Rate("mail", "1/h")).release()
    assert main(["release", "mail", "--yes", "--nodes", NODES]) == 1
    assert "--rates" in capsys.readouterr().err
    assert "counted" in printed(capsys, "list", "mail")
    printed(capsys, "release", "mail", "--yes", "--rates")


@pytest.mark.parametrize("words", [[], ["key", "--task", "name"]], ids=["neither", "both"])
def test_a_key_or_a_task_is_released(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", *words, "--nodes", NODES]) == 2
    assert "either a key or --task" in capsys.readouterr().err


def test_one_call_is_released_and_revoked_by_its_id(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import app_of_locks

    holder = app_of_locks.bill.lock_holder(1)
    words = ["release", "--task", "shop.bill", "--id", holder.task_id, "--revoke", "--yes"]
    assert main([*words, "-A", module, "--json"]) == 0
    released = json.loads(capsys.readouterr().out)["released"]
    assert [lock["key"] for lock in released] == ["bill:1"]
    with Redlock(NODES.split(",")) as redlock:
        marker = client_of(redlock).inspect((dedupe_key_of(parse_owner(holder.owner).marker),))[0]
    assert parse_owner(marker.owner).role is Role.REVOKED


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--revoke"], "messages among them will not run"), ([], "--revoke would prevent that")],
)
def test_the_question_says_what_becomes_of_queued_messages(
    module: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda question, **_: asked.append(question))
    assert main(["release", "bill:0", *words, "-A", module]) == 0
    assert said in asked[0]
