"""Looks at locks, however many there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.admin import live_view
from celery_redlock.admin.live_view import LiveView
from celery_redlock.protocol.commands import Waiter
from celery_redlock.tasks.message.owner_label import task_digest
from celery_redlock.transport import clock
from tests.support.commands import acquire
from tests.support.nodes import PREFIX, MemoryNodes
from tests.support.waiting import TIMEOUT, wait_until


@pytest.fixture
def nodes(redlock_memory_nodes: list[str]) -> Iterator[MemoryNodes]:
    found = MemoryNodes(redlock_memory_nodes)
    yield found
    found.close()


@pytest.fixture
def watched(nodes: MemoryNodes) -> LiveView:
    return LiveView(nodes.client(), {})


@pytest.fixture(autouse=True)
def time_for_all_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look take as long as it takes on a busy machine."""
    monkeypatch.setattr(live_view, "BUDGET", TIMEOUT)


def shown(state: dict[str, Any]) -> list[str]:
    return [group["key"] for group in state["locks"]["keys"]]


def hold(nodes: MemoryNodes, key: str, owner: str) -> None:
    nodes.hold(key, owner, range(len(nodes)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["account:7", "account:77", "report"]),
        ("account:*", ["account:7", "account:77"]),
        ("account:?", ["account:7"]),
        ("*7", ["account:7", "account:77"]),
        ("OUNT", ["account:7", "account:77"]),
        ("shop.inv", ["report"]),
        ("4711", ["report"]),
        ("w1@", ["report"]),
        ("running", ["report"]),
        ("nothing like that", []),
    ],
)
def test_a_filter_is_a_glob_on_keys_or_a_part_of_a_text(
    nodes: MemoryNodes, text: str, found: list[str]
) -> None:
    digest = task_digest("shop.invoice")
    hold(nodes, "account:7", "a 1 by hand")
    hold(nodes, "account:77", "b 1 by hand")
    hold(nodes, "report", f"c 1 running 4711 w1@host 12 task={digest}")

    states = LiveView(nodes.client(), {digest: "shop.invoice"}).look([text])

    assert shown(states[text]) == found


def test_rows_beyond_the_most_are_counted(
    nodes: MemoryNodes, watched: LiveView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "MOST_ROWS", 3)
    for number in range(5):
        hold(nodes, f"key:{number}", f"{number} 1 x")

    locks = watched.look([""])[""]["locks"]

    assert (locks["found"], locks["shown"], len(locks["keys"])) == (5, 3, 3)


def test_of_many_rows_those_stay_that_most_wait_for(
    nodes: MemoryNodes, watched: LiveView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "MOST_ROWS", 2)
    wanted = ("key:1", "key:3")
    for number in (0, 2, 4):
        hold(nodes, f"key:{number}", f"{number} 1 x")
    redlock = nodes.client()
    leases = [redlock.acquire(key) for key in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        for key in wanted:
            pool.submit(redlock.acquire, key, wait=TIMEOUT)
        wait_until(lambda: all(nodes.waiting(0, key) for key in wanted))

        state = watched.look([""])[""]

        for lease in leases:
            lease.release()
    assert shown(state) == ["key:1", "key:3"]


def test_a_look_ends_when_its_time_is_up(
    nodes: MemoryNodes, watched: LiveView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "BUDGET", 0.0)
    for number in range(1000):
        hold(nodes, f"key:{number}", f"{number} 1 x")

    locks = watched.look([""])[""]["locks"]

    assert locks["part"] < 1.0


def test_changes_are_not_guessed_from_rows_that_are_not_all(
    nodes: MemoryNodes, watched: LiveView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "MOST_ROWS", 1)
    hold(nodes, "a", "1 1 x")
    watched.look([""])
    hold(nodes, "b", "2 1 x")

    assert watched.look([""])[""]["changes"] == []


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (None, "1 1 x", ["acquired"]),
        ("1 1 x", None, ["ended"]),
        ("1 1 x", "2 2 y", ["has another holder"]),
        ("1 1 queued 4711 host 12", "2 2 running 4711 w1@host 13", ["now running"]),
        ("1 1 x", "1 1 x", []),
    ],
)
def test_a_change_is_what_two_looks_differ_in(
    nodes: MemoryNodes, watched: LiveView, before: str | None, after: str | None, what: list[str]
) -> None:
    for owner in (before, after):
        for node in range(len(nodes)):
            nodes.forget(node, "a")
        if owner is not None:
            hold(nodes, "a", owner)
        state = watched.look([""])[""]

    assert [change["what"] for change in state["changes"]] == what


def let_pass(seconds: float, nodes: MemoryNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this time pass at once, on the clocks of the nodes and of a live view."""
    now = clock.now
    monkeypatch.setattr(live_view, "clock", SimpleNamespace(now=lambda: now() + seconds))
    for node in nodes.nodes:
        node.skew += seconds


RUNNING, QUEUED = "1 1 running 4711 w1@host 12", "1 1 queued 4711 host 12"


@pytest.mark.parametrize(
    ("owner", "after", "what", "expired"),
    [
        ("1 1 x", None, ["expired"], 1),
        (RUNNING, None, ["expired"], 1),
        (RUNNING, "2 2 running 4712 w1@host 12", ["expired", "acquired"], 1),
        (QUEUED, None, ["ended"], 0),
    ],
)
def test_a_needed_lock_whose_time_is_over_has_expired(
    nodes: MemoryNodes,
    watched: LiveView,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    after: str | None,
    what: list[str],
    expired: int,
) -> None:
    hold(nodes, "a", owner)
    watched.look([""])
    let_pass(61.0, nodes, monkeypatch)
    if after is not None:
        hold(nodes, "a", after)

    state = watched.look([""])[""]

    assert [change["what"] for change in state["changes"]] == what
    assert state["expired"] == expired
    assert watched.look([""])[""]["expired"] == 0


def test_a_key_has_the_wait_of_the_waiter_that_is_next(
    nodes: MemoryNodes, watched: LiveView
) -> None:
    hold(nodes, "a", "1 1 x")
    hold(nodes, "b", "1 1 x")
    now_ms = round(time.time() * 1000)
    for ago in (60, 3600):
        waiter = Waiter(f"since {ago}", now_ms - ago * 1000, 60_000)
        nodes.run(0, acquire((f"{PREFIX}a",), "us", 60_000, 0, 0, "", waiter))

    groups = watched.look([""])[""]["locks"]["keys"]

    assert [(group["waiting"], round(group["waiting_for"], -2)) for group in groups] == [
        (2, 3600),
        (0, 0),
    ]


def test_a_filter_that_nobody_watches_is_forgotten(watched: LiveView) -> None:
    watched.look(["a", "b"])
    watched.look(["b"])

    assert list(watched._watched) == ["b"]


@pytest.mark.parametrize(
    ("texts", "common"), [([], ""), (["ab"], "ab"), (["abc", "abd"], "ab"), (["a", "ab"], "a")]
)
def test_nodes_are_asked_for_keys_with_what_all_filters_begin_with(
    texts: list[str], common: str
) -> None:
    assert live_view._common(texts) == common
