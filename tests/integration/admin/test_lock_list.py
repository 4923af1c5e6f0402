"""What the nodes hold, as a list: of a quorum, whatever becomes of single nodes and keys."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from celery_redlock import Limit, LockContended, LockKeyError, QuorumUnavailable, Rate, Redlock
from celery_redlock.admin.lock_list import LEFTOVER, LockEntry, list_locks, show_lock
from celery_redlock.core import client_of
from celery_redlock.core.client_label import HOST, process_of
from celery_redlock.protocol.commands import MAX_RANK, Waiter
from celery_redlock.protocol.keys import META_PREFIX, Key, fence_key, wait_queue_key
from celery_redlock.tasks.message.node_keys import QUEUED, dedupe_key_of, stop_request_key
from celery_redlock.tasks.message.owner_label import label_for, task_digest
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.transport.base import SCANNED_AT_ONCE
from tests.support.commands import acquire
from tests.support.nodes import PREFIX, Nodes, ServerNodes

EVERYWHERE = range(5)
#: More than one step of a scan.
MANY = 1200


def states(redlock: Redlock, pattern: str = "*") -> dict[str, str]:
    return {entry.key: entry.state for entry in list_locks(redlock, pattern=pattern)}


def running(nodes: Nodes, redlock: Redlock, key: str | Limit | Rate) -> None:
    lease = client_of(redlock).acquire_for_task(
        (key,), ttl=60, label=label_for(Role.RUNNING, "id-1", "w@host", task="job")
    )
    if isinstance(key, str):
        nodes.wait_held(lease)


def hold_many(nodes: Nodes, count: int = MANY) -> None:
    for node in EVERYWHERE:
        nodes.put_many(node, {f"many:{number}": f"owner {number}" for number in range(count)})


def test_free_nodes_have_no_locks(nodes: Nodes) -> None:
    assert list(list_locks(nodes.client())) == []


def test_a_key_without_waiters_has_no_wait(nodes: Nodes) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    (entry,) = list_locks(nodes.client())
    assert (entry.waiting, entry.waiting_since) == (0, None)


def test_a_running_task_is_listed_with_all_that_is_known(nodes: Nodes, redlock: Redlock) -> None:
    running(nodes, redlock, "account:7")
    (entry,) = list_locks(redlock, names={task_digest("job"): "job"})
    assert (entry.key, entry.state, entry.task_id) == ("account:7", "running", "id-1")
    assert (entry.host, entry.task, entry.votes, len(entry.nodes)) == ("w@host", "job", 5, 5)
    assert entry.node_key == PREFIX + "account:7"
    assert 0 < entry.expires_in <= 60
    assert entry.token == redlock.holders("account:7")[0].token  # type: ignore[union-attr]
    assert entry.token is not None


def test_a_holder_that_is_no_task_is_foreign_and_has_its_token(nodes: Nodes) -> None:
    redlock = nodes.connected()
    lease = nodes.lease_of(redlock, ttl=60, label="cron on web-3")
    (entry,) = list_locks(redlock)
    assert (entry.state, entry.task_id, entry.owner) == ("foreign", None, lease.owner)
    assert entry.token == lease.fencing_token


def test_a_holder_outside_celery_without_a_label_is_its_process(nodes: Nodes) -> None:
    redlock = nodes.connected()
    lease = redlock.acquire("key", ttl=60)
    (entry,) = show_lock(redlock, "key")
    assert (entry.state, entry.host, entry.pid) == ("foreign", HOST, os.getpid())
    assert entry.since is not None
    assert abs(entry.since.timestamp() - time.time()) < 60
    with pytest.raises(LockContended, match=f"held by 'client {HOST} {os.getpid()}'"):
        nodes.connected().acquire("key")
    assert process_of(lease.owner) is not None
    assert process_of(lease.owner + " x") is None


@pytest.mark.parametrize(
    ("owners", "row"),
    [
        ({"them": [2, 4]}, (LEFTOVER, "them", 2, None)),
        ({"them": [0], "others": [1, 3]}, (LEFTOVER, "others", 2, None)),
        ({"them": [2, 3, 4]}, ("foreign", "them", 3, None)),
    ],
    ids=["of a minority", "of several minorities", "not of the first node"],
)
def test_a_key_that_some_nodes_have_is_one_row(
    nodes: Nodes, owners: dict[str, list[int]], row: tuple[object, ...]
) -> None:
    for owner, which in owners.items():
        nodes.hold("key", owner, which)
    (entry,) = list_locks(nodes.client())
    assert (entry.state, entry.owner, entry.votes, entry.token) == row


def test_each_slot_of_a_limit_is_listed(nodes: Nodes, redlock: Redlock) -> None:
    for _ in range(3):
        running(nodes, redlock, Limit("key", 3))
    found = list(list_locks(redlock))
    assert {entry.slot for entry in found if entry.state == "running"} == {0, 1, 2}
    assert {entry.key for entry in found} == {"key"}


def test_a_slot_of_a_rate_is_listed_as_one(nodes: Nodes, redlock: Redlock) -> None:
    running(nodes, redlock, Rate("key", "2/h"))
    entry = next(list_locks(redlock))
    assert (entry.key, entry.is_rate) == ("key", True)
    assert entry.slot in (0, 1)


def test_the_lock_of_a_queued_message_has_the_key_of_the_task(nodes: Nodes) -> None:
    redlock = nodes.connected()
    owner = client_of(redlock).new_owner_value(label_for(Role.QUEUED, "id", "pub"))
    nodes.hold(QUEUED + PREFIX + "key", owner, EVERYWHERE)
    nodes.hold(f"{META_PREFIX}limit:{QUEUED}{PREFIX}limited#1", owner, EVERYWHERE)
    found = {(entry.key, entry.slot, entry.state) for entry in list_locks(redlock)}
    assert found == {("key", None, "queued"), ("limited", 1, "queued")}


@pytest.mark.parametrize(
    "name",
    [
        dedupe_key_of("0" * 32),
        stop_request_key(Key.of(PREFIX, "key")).stored,
        META_PREFIX + "poll",
        META_PREFIX + "limit:nothing",
        f"{META_PREFIX}limit:other:key#0",
        f"{QUEUED}other:key",
    ],
)
def test_other_records_and_other_apps_keys_are_no_locks(nodes: Nodes, name: str) -> None:
    nodes.hold(name, "them", EVERYWHERE)
    assert states(nodes.client()) == {}


def test_an_app_with_another_prefix_has_its_own_list(nodes: Nodes) -> None:
    ours, others = nodes.connected(), nodes.client(key_prefix="other:")
    nodes.wait_held(ours.acquire("ours", ttl=60))
    others.acquire("theirs", ttl=60)
    others.acquire(Limit("limited", 1), ttl=60)
    assert states(ours).keys() == {"ours"}
    assert states(others).keys() == {"theirs", "limited"}


def test_without_a_prefix_each_lock_is_listed_once(nodes: Nodes) -> None:
    redlock = nodes.client(key_prefix="")
    redlock.acquire("key", ttl=60)
    redlock.acquire(Limit("limited", 1), ttl=60)
    assert sorted(entry.key for entry in list_locks(redlock)) == ["key", "limited"]


ODD = [
    "with space",
    "line\nbreak",
    "größe:é",
    "a*b",
    "a?b",
    "a[b]",
    "back\\slash",
    "#3",
    "a#3",
    "{x}",
]


@pytest.mark.parametrize("key", ODD)
def test_a_key_of_odd_characters_is_listed_as_it_is(nodes: Nodes, key: str) -> None:
    redlock = nodes.connected()
    running(nodes, redlock, key)
    running(nodes, redlock, Limit(key, 1))
    assert [entry.key for entry in list_locks(redlock)] == [key, key]


@pytest.mark.parametrize("key", ODD)
def test_one_key_is_shown_without_its_neighbours(nodes: Nodes, key: str) -> None:
    redlock = nodes.client()
    for name in (key, f"{key}x", f"x{key}", "aXb", "ab"):
        nodes.hold(name, "them", EVERYWHERE)
    assert [entry.key for entry in show_lock(redlock, key)] == [key]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("account:*", {"account:1", "account:22"}),
        ("account:?", {"account:1"}),
        ("*:[12]*", {"account:1", "account:22", "étage:1"}),
        ("?tage:1", {"étage:1"}),
        ("a[*]b", {"a*b"}),
        ("account:1", {"account:1"}),
        ("ACCOUNT:*", set()),
        ("\udcff*", set()),
    ],
)
def test_a_pattern_chooses_keys(nodes: Nodes, pattern: str, found: set[str]) -> None:
    for key in ("account:1", "account:22", "étage:1", "a*b", "aab"):
        nodes.hold(key, "them", EVERYWHERE)
    assert states(nodes.client(), pattern).keys() == found


def test_a_pattern_chooses_slots_and_queued_messages(nodes: Nodes, redlock: Redlock) -> None:
    for key in ("account:1", "other"):
        running(nodes, redlock, Limit(key, 1))
        running(nodes, redlock, Rate(key, "1/h"))
        nodes.hold(QUEUED + PREFIX + key, "them", EVERYWHERE)
    assert [entry.key for entry in list_locks(redlock, pattern="account:*")] == ["account:1"] * 3


@pytest.mark.parametrize("down", [0, 4])
def test_with_a_node_down_the_others_locks_are_listed(nodes: Nodes, down: int) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    nodes.kill(down)
    (entry,) = list_locks(nodes.client())
    assert (entry.state, entry.votes) == ("foreign", 4)
    assert isinstance(list(entry.nodes.values())[down], str)


def test_with_a_node_stopped_the_others_locks_are_listed(nodes: Nodes) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    nodes.pause(0)
    (entry,) = list_locks(nodes.client(), timeout=3.0)
    assert (entry.state, entry.votes) == ("foreign", 4)
    nodes.resume(0)


def test_without_a_quorum_there_is_no_list(nodes: Nodes) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    redlock = nodes.client()
    nodes.kill(0, 2, 3)
    with pytest.raises(QuorumUnavailable, match="3 of 5 nodes have to answer") as error:
        next(list_locks(redlock))
    assert set(error.value.nodes) == {redlock.node_names[node] for node in (0, 2, 3)}


def begun(redlock: Redlock) -> tuple[list[LockEntry], Iterator[LockEntry]]:
    """Return the first row of a list, and the others."""
    rows = list_locks(redlock, timeout=1.0)
    return [next(rows)], rows


@pytest.mark.parametrize("dies", [0, 1, 4])
def test_a_node_that_dies_meanwhile_neither_ends_nor_repeats_the_list(
    nodes: Nodes, dies: int
) -> None:
    hold_many(nodes)
    first, others = begun(nodes.client())
    nodes.kill(dies)
    found = [entry.key for entry in [*first, *others]]
    assert sorted(found) == sorted(f"many:{number}" for number in range(MANY))


def test_the_list_ends_when_too_few_nodes_are_left(nodes: Nodes) -> None:
    hold_many(nodes)
    _, others = begun(nodes.client())
    nodes.kill(0, 1, 2)
    with pytest.raises(QuorumUnavailable):
        list(others)


def test_keys_that_vanish_meanwhile_are_not_listed(nodes: Nodes) -> None:
    hold_many(nodes)
    first, others = begun(nodes.client())
    kept = {first[0].key, *(f"many:{number}" for number in range(0, MANY, 2))}
    vanish = {f"many:{number}" for number in range(MANY)} - kept
    for node in EVERYWHERE:
        nodes.forget(node, *vanish)
    found = [entry.key for entry in [*first, *others]]
    assert kept <= set(found)
    # The step that was read before may have had some.
    assert len(found) <= len(kept) + 100


def test_listing_changes_nothing(servers: ServerNodes, redlock: Redlock) -> None:
    running(servers, redlock, "key")
    running(servers, redlock, Limit("limited", 2))
    servers.hold("left", "them", [3])

    def contents() -> list[dict[bytes, object]]:
        return [
            {name: servers.cluster.client(node).dump(name) for name in clients_keys(node)}
            for node in EVERYWHERE
        ]

    def clients_keys(node: int) -> list[bytes]:
        return sorted(servers.cluster.client(node).keys())

    before = contents()
    assert len(list(list_locks(redlock))) == 3
    assert len(show_lock(redlock, "limited")) == 1
    assert contents() == before


def test_progress_goes_up_to_all_keys(nodes: Nodes) -> None:
    hold_many(nodes, 600)
    seen: list[tuple[int, int]] = []
    list(list_locks(nodes.client(), progress=lambda done, total: seen.append((done, total))))
    done = [looked_at for looked_at, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {done[-1]}
    assert done[0] < 600 <= done[-1]


def test_one_key_is_shown_with_those_that_wait(nodes: Nodes) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    now = time.time() * 1000
    for node in EVERYWHERE:
        for ago, name in ((1000, "second"), (5000, "first"), (10, "third")):
            waiter = Waiter(name, round(now - ago), 60_000)
            keys = (PREFIX + "key",)
            nodes.run(node, acquire(keys, f"owner of {name}", 60_000, 0, 0, "", waiter))
    (entry,) = show_lock(nodes.client(), "key")
    assert [waiter.name for waiter in entry.waiters] == ["first", "second", "third"]
    since = entry.waiters[0].since
    assert since is not None
    assert since.timestamp() == pytest.approx((now - 5000) / 1000, abs=0.01)
    (entry,) = list_locks(nodes.client())
    assert (entry.waiting, entry.waiting_since, entry.waiters) == (3, since, ())


@pytest.mark.parametrize("rank", [7, -7, MAX_RANK, -MAX_RANK])
def test_a_waiter_is_shown_with_its_priority_and_since_when_it_waits(
    nodes: Nodes, rank: int
) -> None:
    nodes.hold("key", "them", EVERYWHERE)
    since_ms = round((time.time() - 3600) * 1000)
    for node in EVERYWHERE:
        waiter = Waiter("us", since_ms, 60_000, rank=rank)
        nodes.run(node, acquire((PREFIX + "key",), "us", 60_000, 0, 0, "", waiter))
    ((shown,),) = (entry.waiters for entry in show_lock(nodes.client(), "key"))
    assert shown.since is not None
    assert (shown.priority, round(shown.since.timestamp() * 1000)) == (abs(rank), since_ms)


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-1e18", "1e15"])
def test_a_waiter_with_a_score_that_is_no_time_waits_since_no_time(
    servers: ServerNodes, score: str
) -> None:
    servers.hold("key", "them", EVERYWHERE)
    servers.cluster.client(0).zadd(wait_queue_key(PREFIX + "key"), {"them": score})
    ((waiter,),) = (entry.waiters for entry in show_lock(servers.client(), "key"))
    assert (waiter.name, waiter.since) == ("them", None)


def test_what_is_shown_names_the_value_of_each_node(nodes: Nodes) -> None:
    nodes.hold("key", "them", [0, 1, 2])
    nodes.hold("key", "others", [3])
    for node in EVERYWHERE:
        nodes.set_fence(node, "key", 40 + node)
    redlock = nodes.client()
    (entry,) = show_lock(redlock, "key")
    owners = [state.owner for state in entry.nodes.values() if not isinstance(state, str)]
    counters = [state.counter for state in entry.nodes.values() if not isinstance(state, str)]
    assert list(entry.nodes) == list(redlock.node_names)
    assert owners == ["them", "them", "them", "others", None]
    assert counters == [40, 41, 42, 43, 44]


def test_what_cannot_be_a_key_is_not_shown(nodes: Nodes) -> None:
    with pytest.raises(LockKeyError):
        show_lock(nodes.client(), "")


def test_a_value_that_is_no_text_is_foreign(servers: ServerNodes) -> None:
    for node in EVERYWHERE:
        servers.cluster.client(node).rpush(PREFIX + "key", "x")
    (entry,) = list_locks(servers.client())
    assert (entry.state, entry.votes) == ("foreign", 5)
    assert entry.expires_in < 0


@pytest.mark.full
def test_many_locks_are_listed_from_the_first_step_on_in_little_memory(
    servers: ServerNodes,
) -> None:
    count = 20_000
    for node in range(3):
        client = servers.cluster.client(node)
        client.eval(
            "for n = 1, ARGV[1] do redis.call('SET', KEYS[1] .. n, 'owner', 'PX', 600000) end",
            1,
            PREFIX + "key:",
            count,
        )
    looked_at: list[int] = []
    redlock = servers.client(nodes=servers.urls[:3])
    rows = list_locks(redlock, progress=lambda done, _: looked_at.append(done))
    next(rows)
    assert looked_at == [3 * SCANNED_AT_ONCE]
    tracemalloc.start()
    try:
        at_first = tracemalloc.get_traced_memory()[0]
        listed = 1 + sum(1 for _ in rows)
        peak = tracemalloc.get_traced_memory()[1] - at_first
    finally:
        tracemalloc.stop()
    assert listed == count
    # A dict of the keys alone would have some 3 MB; the steps and 8 bytes a key have less.
    assert peak < 1_500_000


def test_a_user_without_the_right_to_scan_is_named_with_it(servers: ServerNodes) -> None:
    for node in EVERYWHERE:
        servers.cluster.client(node).execute_command(
            "ACL", "SETUSER", "lister", "on", ">secret", "~*", "&*", "+@all", "-scan"
        )
    urls = [url.replace("redis://", "redis://lister:secret@") for url in servers.urls]
    with pytest.raises(QuorumUnavailable, match=r"\+scan and \+dbsize") as error:
        list(list_locks(servers.client(nodes=urls)))
    assert "secret" not in str(error.value)
    for node in EVERYWHERE:
        servers.cluster.client(node).execute_command("ACL DELUSER lister")


def test_a_counter_is_no_lock(nodes: Nodes) -> None:
    nodes.wait_held(nodes.connected().acquire("key", ttl=60))
    assert states(nodes.client(), "*fence*") == {}
    assert fence_key(PREFIX + "key") not in states(nodes.client())
