"""Paused keys are named, with who paused them and for how long."""

from __future__ import annotations

import pytest

from celery_redlock import Limit, LockContended, Rate, Redlock
from celery_redlock.admin.diagnosis import Severity, diagnose
from celery_redlock.admin.live_view import LiveView
from celery_redlock.admin.lock_list import LEFTOVER, PAUSED, list_locks, show_lock
from celery_redlock.admin.lock_release import release_lock
from celery_redlock.admin.node_report import report_nodes
from celery_redlock.core.client_label import person_label
from celery_redlock.protocol.commands import Waiter, pause
from celery_redlock.protocol.keys import Key, owner_label
from celery_redlock.tasks.config.settings import RedlockSettings
from tests.support.commands import acquire
from tests.support.nodes import CALM, PREFIX, Nodes

KEY = Key.of(PREFIX, "api")


def found(nodes: Nodes) -> dict[str, Severity]:
    reports = report_nodes(nodes.urls, timeout=CALM)
    findings = diagnose(reports, RedlockSettings(node_timeout=CALM))
    return {one.code: one.severity for one in findings if "pause" in one.code}


def test_a_paused_key_is_listed_although_nobody_holds_it(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("api", 60)
    (entry,) = list_locks(redlock)
    assert (entry.key, entry.state, entry.votes) == ("api", PAUSED, 5)
    assert 0 < entry.expires_in <= 60


def test_it_is_listed_by_whom_and_since_when(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("api", 60)
    (entry,) = list_locks(redlock, pattern="a*")
    assert owner_label(entry.owner) == person_label()
    assert entry.since is not None


@pytest.mark.parametrize("key", ["api", Limit("api", 2), Rate("api", 2, per=60)])
def test_it_is_listed_beside_its_holders(nodes: Nodes, key: str | Limit | Rate) -> None:
    redlock = nodes.connected()
    redlock.acquire(key)
    redlock.pause(key, 60)
    states = {entry.key: entry.state for entry in list_locks(redlock) if entry.state == PAUSED}
    assert states == {"api": PAUSED}
    assert len(list(list_locks(redlock))) == 2


def test_pauses_of_another_key_prefix_are_not_listed(nodes: Nodes) -> None:
    nodes.client(key_prefix="other:").pause("api", 60)
    assert list(list_locks(nodes.client())) == []


def test_show_has_the_pause_and_those_that_wait_for_it(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("api", 60)
    nodes.run(0, acquire((KEY,), "us", 60_000, 0, 0, "", Waiter("us", 1, 60_000)))
    (entry,) = show_lock(redlock, "api")
    assert (entry.state, entry.waiting, entry.waiters[0].name) == (PAUSED, 1, "us")


def test_a_pause_on_a_minority_of_nodes_is_a_leftover(nodes: Nodes, redlock: Redlock) -> None:
    nodes.run(0, pause(KEY, "somebody", 60_000))
    (entry,) = list_locks(redlock)
    assert entry.state == LEFTOVER


def test_a_release_of_the_key_leaves_the_pause(nodes: Nodes, redlock: Redlock) -> None:
    redlock.acquire("api")
    redlock.pause("api", 60)
    assert [entry.state for entry in release_lock(redlock, "api")] == ["foreign"]
    with pytest.raises(LockContended, match="paused"):
        redlock.acquire("api")


def test_the_release_of_its_row_on_the_page_ends_the_pause(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("api", 60)
    (entry,) = list_locks(redlock)
    assert LiveView(redlock, {}).release("api", entry.node_key, entry.owner) == 1
    assert redlock.acquire("api")


def test_the_doctor_names_the_pause_that_lasts_longest(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("other", 60)
    redlock.pause("api", 600)
    assert {one.paused for one in report_nodes(nodes.urls, timeout=CALM)} == {"api"}
    assert found(nodes) == {"key-paused": Severity.INFO}


def test_the_doctor_names_no_pause_that_was_ended(nodes: Nodes, redlock: Redlock) -> None:
    redlock.pause("api", 600)
    redlock.resume("api")
    assert found(nodes) == {}


def test_the_doctor_warns_of_a_node_that_has_forgotten_it(nodes: Nodes) -> None:
    nodes.connected().pause("api", 600)
    nodes.flush(4)
    assert found(nodes) == {"pause-incomplete": Severity.WARNING}
