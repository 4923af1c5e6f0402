"""A lock that people take away is lost to its holder, and free for the next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celery_redlock import Limit, LossReason, QuorumUnavailable, Rate, Redlock, StaleFencingToken
from celery_redlock.admin import lock_list
from celery_redlock.admin.lock_list import show_lock
from celery_redlock.admin.lock_release import release_lock, release_task
from celery_redlock.admin.node_readers import Readers
from celery_redlock.core import client_of
from celery_redlock.fencing import FileFence
from celery_redlock.protocol.commands import Command, Waiter
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.votes import Vote
from celery_redlock.tasks.message.node_keys import MARKER_DIGITS, QUEUED, dedupe_key_of
from celery_redlock.tasks.message.owner_label import label_for, parse_owner
from celery_redlock.tasks.message.withdrawal import revoke
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.testing import LocalCluster
from tests.support.commands import acquire
from tests.support.nodes import CALM, PREFIX, Nodes, ServerNodes, place
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until

EVERYWHERE = range(5)
MARKER = "0" * MARKER_DIGITS


def owner_of(
    nodes: Nodes, role: Role, task: str = "job", task_id: str = "id", marker: str | None = None
) -> str:
    label = label_for(role, task_id, "host", task=task, marker=marker)
    return client_of(nodes.client()).new_owner_value(label)


def test_the_body_loses_its_lease_and_the_next_gets_the_lock(nodes: Nodes) -> None:
    redlock = nodes.connected()
    lease = redlock.acquire("key", ttl=CALM)
    redlock.watch(lease)
    nodes.wait_held(lease)
    (taken,) = release_lock(redlock, "key")
    assert (taken.key, taken.owner) == ("key", lease.owner)
    next_one = redlock.acquire("key", ttl=60, wait=TIMEOUT)
    wait_until(lambda: not lease.is_valid)
    assert lease.lost == LossReason.GONE
    assert next_one.is_valid
    assert next_one.fencing_token > lease.fencing_token


def test_the_late_write_of_the_holder_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    redlock, fence = nodes.connected(), FileFence(tmp_path / "report", fsync=False)
    lease = nodes.lease_of(redlock, ttl=60)
    fence.write(b"by the first", lease.fencing_token)
    release_lock(redlock, "key")
    fence.write(b"by the second", redlock.acquire("key", ttl=60, wait=TIMEOUT).fencing_token)
    with pytest.raises(StaleFencingToken):
        fence.write(b"too late", lease.fencing_token)


def test_a_key_is_released_with_its_slots_and_its_queued_message(nodes: Nodes) -> None:
    redlock = nodes.connected()
    nodes.hold(QUEUED + PREFIX + "key", owner_of(nodes, Role.QUEUED), EVERYWHERE)
    nodes.hold("key", owner_of(nodes, Role.RUNNING), EVERYWHERE)
    nodes.hold("key2", owner_of(nodes, Role.RUNNING), EVERYWHERE)
    for _ in range(2):
        redlock.acquire(Limit("key", 2), ttl=60)
    taken = release_lock(redlock, "key")
    assert len(taken) == 4
    assert redlock.holders(Limit("key", 2)) == (None, None)
    nodes.wait_free("key")
    nodes.wait_free(QUEUED + PREFIX + "key")
    assert all(nodes.owners("key2"))


def test_a_key_that_is_free_has_nothing_to_take_away(nodes: Nodes) -> None:
    assert release_lock(nodes.client(), "key") == []


def test_a_release_that_no_quorum_confirms_names_what_became_of_it_on_each_node(
    nodes: Nodes, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    releases = Readers.execute

    def nodes_end_before(readers: Readers, command: Command) -> dict[str, Vote]:
        nodes.kill(0, 1, 2)
        return releases(readers, command)

    monkeypatch.setattr(Readers, "execute", nodes_end_before)
    with pytest.raises(QuorumUnavailable, match="'key' is not confirmed: 2 of 5 nodes") as error:
        release_lock(redlock, "key", timeout=1.0)
    assert list(error.value.nodes) == list(redlock.node_names)
    assert list(error.value.nodes.values())[3:] == ["released", "released"]
    assert "released" not in list(error.value.nodes.values())[:3]


def test_nodes_that_answer_later_than_clients_wait_release_a_lock(
    redlock_cluster_factory: Callable[..., LocalCluster],
) -> None:
    servers = ServerNodes(redlock_cluster_factory(3, proxy=True))
    servers.hold("key", "them", range(3))
    for node in (1, 2):
        servers.cluster.delay(node, 0.2, only="replies")
    redlock = servers.client(node_timeout=0.05)
    (taken,) = release_lock(redlock, "key", timeout=TIMEOUT)
    assert list(taken.on_release.values()) == ["released"] * 3
    assert not any(servers.owners("key"))


def test_nodes_that_answer_later_than_clients_wait_revoke_a_message(
    redlock_cluster_factory: Callable[..., LocalCluster],
) -> None:
    servers = ServerNodes(redlock_cluster_factory(3, proxy=True))
    owner = owner_of(servers, Role.QUEUED, marker=MARKER)
    servers.hold("key", owner, range(3))
    for node in (1, 2):
        servers.cluster.delay(node, 0.2, only="replies")
    redlock = servers.client(node_timeout=0.05)
    (taken,) = release_lock(redlock, "key", revoke=True, timeout=TIMEOUT)
    assert taken.owner == owner
    assert sum(map(bool, servers.owners(dedupe_key_of(MARKER)))) >= 2


def test_the_error_about_a_message_that_cannot_be_revoked_names_no_key_of_this_package(
    nodes: Nodes,
) -> None:
    owner = parse_owner(owner_of(nodes, Role.QUEUED, marker=MARKER))
    assert owner is not None
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable, match="The marker of this message") as error:
        revoke(client_of(nodes.client(node_timeout=0.5)), owner, marker_ttl=60.0)
    assert "redlock-meta" not in str(error.value)


def test_a_node_without_the_lock_is_named_with_what_was_released(nodes: Nodes) -> None:
    redlock = nodes.connected()
    nodes.hold("key", "them", [0, 1, 2])
    nodes.kill(4)
    (taken,) = release_lock(redlock, "key", timeout=1.0)
    *replies, silent = taken.on_release.values()
    assert replies == ["released"] * 3 + ["did not have it"]
    assert silent not in replies


def test_a_key_is_released_without_a_look_at_all_keys(
    nodes: Nodes, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    monkeypatch.delattr(lock_list, "_scan")
    assert len(release_lock(redlock, "key")) == 1


def test_an_owner_value_that_is_no_text_is_taken_away(servers: ServerNodes) -> None:
    redlock = servers.connected()
    for node in EVERYWHERE:
        servers.cluster.client(node).set(place("key"), b"\xff\xfe", px=60_000)
    assert len(release_lock(redlock, "key")) == 1
    servers.wait_free("key")


def test_those_who_wait_for_a_foreign_owner_are_woken(nodes: Nodes, redlock: Redlock) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(redlock.acquire, "key", ttl=60, wait=2 * TIMEOUT, retry=WHEN_WOKEN)
        wait_until(lambda: show_lock(redlock, "key")[0].waiting == 1)
        release_lock(redlock, "key")
        assert waits.result(TIMEOUT).is_valid


def test_one_more_is_woken_than_slots_become_free(servers: ServerNodes) -> None:
    redlock, slots = servers.connected(), 4
    key = Key.of(PREFIX, "key", slots)
    for _ in range(slots):
        redlock.acquire(Limit("key", slots), ttl=60)
    assert servers.woken(0) == []
    for at in range(1, slots + 3):
        waiter = Waiter(f"w{at}", at, 60_000)
        servers.run(0, acquire((key,), waiter.name, 60_000, 0, 0, "", waiter))
    release_lock(redlock, "key")
    assert [name for _, name in servers.woken(0)] == [f"w{at}" for at in range(1, slots + 2)]


def test_a_leftover_is_taken_away(nodes: Nodes, redlock: Redlock) -> None:
    nodes.hold("key", "them", [1])
    (taken,) = release_lock(redlock, "key")
    assert taken.state == "leftover"
    nodes.wait_free("key")


def test_what_a_rate_has_counted_stays_unless_it_is_asked_for(nodes: Nodes) -> None:
    redlock = nodes.connected()
    redlock.acquire(Rate("key", "1/h"), ttl=60).release()
    assert release_lock(redlock, "key") == []
    assert redlock.holder(Rate("key", "1/h")) is not None  # type: ignore[arg-type]
    assert len(release_lock(redlock, "key", rates=True)) == 1
    redlock.acquire(Rate("key", "1/h"), ttl=60)


def test_without_a_quorum_nothing_is_released(nodes: Nodes, redlock: Redlock) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable):
        release_lock(redlock, "key", timeout=1.0)
    assert nodes.owner(3, "key") == "them"


def test_with_a_task_what_a_rate_has_counted_stays(nodes: Nodes, redlock: Redlock) -> None:
    label = label_for(Role.RUNNING, "id", "host", task="job")
    redlock.acquire(Rate("key", "1/h"), ttl=60, label=label)
    assert list(release_task(redlock, "job", state=None)) == []
    assert redlock.holder(Rate("key", "1/h")) is not None  # type: ignore[arg-type]


@pytest.fixture
def queue(nodes: Nodes) -> Nodes:
    """Nodes with queued, running and finished calls of two tasks."""
    for task in ("job", "other"):
        for role in (Role.QUEUED, Role.RUNNING, Role.FINISHED):
            nodes.hold(f"{task}:{role}", owner_of(nodes, role, task), EVERYWHERE)
    nodes.hold(QUEUED + PREFIX + "job:running", owner_of(nodes, Role.QUEUED), EVERYWHERE)
    nodes.hold("foreign", "them", EVERYWHERE)
    return nodes


def held(nodes: Nodes) -> set[str]:
    names = [f"{task}:{role}" for task in ("job", "other") for role in ("queued", "running")]
    names += ["job:finished", "other:finished", "foreign", QUEUED + PREFIX + "job:running"]
    return {name for name in names if any(nodes.owners(name))}


def test_a_tasks_queued_locks_are_released_and_no_others(queue: Nodes) -> None:
    before = held(queue)
    gone = list(release_task(queue.connected(), "job"))
    assert sorted(entry.key for entry in gone) == ["job:queued", "job:running"]
    assert {entry.task for entry in gone} == {"job"}
    wait_until(
        lambda: held(queue) == before - {"job:queued", QUEUED + PREFIX + "job:running"},
        message=lambda: str(held(queue)),
    )


def test_without_a_state_all_locks_of_the_task_are_released(queue: Nodes) -> None:
    assert len(list(release_task(queue.connected(), "job", state=None))) == 4
    wait_until(lambda: not any(name.startswith("job") for name in held(queue)))
    assert {"foreign", "other:queued", "other:running", "other:finished"} <= held(queue)


def test_a_dry_run_changes_nothing(queue: Nodes) -> None:
    before = held(queue)
    found = list(release_task(queue.connected(), "job", dry_run=True))
    assert len(found) == 2
    assert held(queue) == before


def test_a_lock_that_has_another_owner_by_now_stays(nodes: Nodes) -> None:
    keys = {"first", "second"}
    for key in keys:
        nodes.hold(key, owner_of(nodes, Role.QUEUED), EVERYWHERE)
    # Both are read in one step, and released one by one.
    rows = release_task(nodes.connected(), "job", state="queued")
    (other,) = keys - {next(rows).key}
    nodes.hold(other, "the worker", EVERYWHERE)
    assert [entry.key for entry in rows] == []
    assert nodes.owners(other) == ["the worker"] * 5
