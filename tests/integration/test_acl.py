"""The rights in docker/redis/lock.acl let a client do everything, and none of them is to spare."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from celery_redlock import Lease, QuorumUnavailable, Rate, Redlock
from celery_redlock.admin.lock_list import list_locks
from celery_redlock.admin.lock_release import release_lock
from celery_redlock.core import Register, arm_nodes, client_of, probe_nodes
from celery_redlock.core.lease import holding_of
from celery_redlock.errors import LockContended, RedlockError
from celery_redlock.protocol.commands import Waiter
from celery_redlock.protocol.keys import turns_key, wait_queue_key, wake_channel
from celery_redlock.protocol.wait_queue import MAX_WAITERS
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.waiting import TIMEOUT, WHEN_WOKEN, wait_until

DOCKER = Path(__file__).parents[2] / "docker"
ACL = DOCKER / "redis/lock.acl"
README = (DOCKER / "README.md").read_text()
PASSWORD = "hunter2"
NODES = 3
# What is refused is refused at once; only used up where a right is missing.
SOON = TIMEOUT


def _rules() -> list[str]:
    """The words after `user redlock`, with a password filled in as the start script does."""
    (line,) = (line for line in ACL.read_text().splitlines() if line.startswith("user redlock "))
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    return line.replace("@PASSWORD_SHA256@", digest).split()[2:]


RULES = _rules()
RIGHTS = [rule for rule in RULES if rule.startswith(("+", "~", "&"))]


@pytest.fixture(params=["embedded", pytest.param("debian", marks=pytest.mark.system)])
def cluster(
    request: pytest.FixtureRequest, redlock_cluster_factory: ClusterFactory
) -> LocalCluster:
    binary = None if request.param == "embedded" else "/usr/bin/redis-server"
    return redlock_cluster_factory(NODES, binary=binary)


@pytest.fixture(autouse=True)
def user(cluster: LocalCluster) -> Iterator[None]:
    """The user `redlock`, on nodes that are brand-new."""
    _define(cluster, RULES)
    _renew(cluster)
    yield
    for index in range(NODES):
        cluster.client(index).execute_command("ACL", "DELUSER", "redlock")


def _renew(cluster: LocalCluster) -> None:
    for index in range(NODES):
        cluster.flush(index)
        cluster.client(index).script_flush()
        cluster.client(index).acl_log_reset()


def _define(cluster: LocalCluster, rules: list[str]) -> None:
    for index in range(NODES):
        cluster.client(index).execute_command("ACL", "SETUSER", "redlock", "reset", *rules)


def _urls(cluster: LocalCluster) -> list[str]:
    return [url.replace("redis://", f"redis://redlock:{PASSWORD}@") for url in cluster.urls]


def do_everything(cluster: LocalCluster) -> None:
    """Whatever a worker, a publisher, a beat or `celery-redlock init` does on a node."""
    urls = _urls(cluster)
    assert [node.state for node in arm_nodes(urls)] == ["armed"] * NODES
    assert [probe.problem for probe in probe_nodes(urls)] == [None] * NODES
    # Patient with nodes: these tests are about what is allowed, not about how fast.
    with Redlock(urls, max_ttl=60.0, node_timeout=2.0) as redlock:
        # A client that has just begun goes on with the nodes that it has reached first.
        wait_until(lambda: _reaches_all(cluster, redlock), SOON, message="all nodes")
        lease = redlock.acquire(["a", "b"], ttl=10.0)
        with pytest.raises(LockContended) as raised:
            redlock.acquire("a", ttl=10.0)
        assert 0 < (raised.value.expires_in or 0) <= 10.0
        assert [held and held.owner for held in client_of(redlock).inspect(["redlock:a"])] == [
            lease.owner
        ]

        lease.extend(30.0)
        _wait_until(cluster, "redlock:a", 10.0, 30.0)
        cluster.client(0).delete("redlock:a")
        # A node that tells that it lost the key only when a quorum has answered is healed the
        # next time.
        wait_until(
            lambda: lease.extend(40.0) or cluster.client(0).exists("redlock:a"),
            SOON,
            message="heal",
        )

        # A server that forgot its scripts is told them again.
        for index in range(NODES):
            cluster.client(index).script_flush()
        assert lease.release()
        _wait_until(cluster, "redlock:a", -1.0, 0.0)

        held = redlock.acquire("c", ttl=30.0)
        holding_of(held).hold_at_least(10.0)
        assert held.release()
        _wait_until(cluster, "redlock:c", 0.0, 10.0)

        register = Register(client_of(redlock), "beat")
        register.claim(7)
        register.write(7, {"entry": (1, "state"), "gone": (1, "state")})
        register.write(7, {"gone": None})
        assert list(register.read()) == ["entry"]
        assert register.read(["entry"])["entry"].text == "state"

        assert redlock.pause("paused", 60.0) == {}
        with pytest.raises(LockContended, match="is paused"):
            redlock.acquire("paused")
        assert redlock.resume("paused")

        wake(cluster, redlock)
        go_in_order(redlock)
        take_turns(cluster, redlock)


def wake(cluster: LocalCluster, redlock: Redlock) -> None:
    """Let a call wait for a lock, and another be one too many."""

    def waiting(key: str) -> list[int]:
        queue = wait_queue_key(f"redlock:{key}")
        return [cluster.client(index).zcard(queue) for index in range(NODES)]

    def listening() -> list[int]:
        channel = wake_channel("redlock:d")
        heard = [cluster.client(index).pubsub_numsub(channel) for index in range(NODES)]
        return [listeners for ((_, listeners),) in heard]

    holder = redlock.acquire("d", ttl=30.0)
    with ThreadPoolExecutor(1) as pool:
        # For longer than what follows may take: it gets the lock only if it is woken.
        call = pool.submit(redlock.acquire, "d", wait=4 * SOON, retry=WHEN_WOKEN)
        try:
            wait_until(lambda: sum(waiting("d")) > NODES // 2, SOON, message="to be remembered")
            wait_until(lambda: sum(listening()) > NODES // 2, SOON, message="to listen")
            holder.release()
            wait_until(call.done, SOON, message="to be woken")
        except BaseException:
            redlock.close()  # ends the call
            raise
        call.result().release()
    wait_until(lambda: not any(waiting("d")), SOON, message="to be forgotten")

    crowd = {str(number): float(number) for number in range(MAX_WAITERS + 1)}
    for index in range(NODES):
        cluster.client(index).zadd(wait_queue_key("redlock:e"), crowd)
        cluster.client(index).expire(wait_queue_key("redlock:e"), 60)
    another = redlock.acquire("e", ttl=10.0)
    with pytest.raises(LockContended):
        ask(redlock, "e", "one too many", 1)
    another.release()
    wait_until(
        lambda: sum(count <= MAX_WAITERS for count in waiting("e")) > NODES // 2,
        SOON,
        message="the crowd to be bounded",
    )


def ask(
    redlock: Redlock,
    key: str | Rate,
    name: str,
    since: int,
    *,
    wait: float = 0.0,
    grace: int = 50_000,
) -> Lease:
    """Ask for a lock whose waiters go in order."""
    waiter = Waiter(name, since, 300_000, grace)
    return client_of(redlock).acquire_for_task(
        (key,), ttl=10.0, waiter=waiter, first_waiter=waiter, wait=wait
    )


def go_in_order(redlock: Redlock) -> None:
    """Let two wait for locks whose waiters go in order, and the first one of a third not come."""
    for key in ("f", "g", "i"):
        holder = redlock.acquire(key, ttl=30.0)
        for name, since in (("first", 1), ("second", 2)):
            with pytest.raises(LockContended):
                ask(redlock, key, name, since)
        assert holder.release()
    ask(redlock, "f", "first", 1, wait=SOON).release()
    ask(redlock, "i", "second", 2, wait=SOON, grace=1).release()
    try:
        ask(redlock, "g", "second", 2)
    except LockContended:
        return
    raise AssertionError("the second went first")


def take_turns(cluster: LocalCluster, redlock: Redlock) -> None:
    """Let two wait for a key with a rate, beside one that did not come when it was its turn."""
    rate = Rate("h", "1/m")
    redlock.acquire(rate, ttl=10.0)
    node_key = client_of(redlock).key_of(rate).stored
    for index in range(NODES):
        for key in (wait_queue_key(node_key), turns_key(node_key)):
            cluster.client(index).zadd(key, {"gone": 0.0})

    def turn(ask_for: Callable[[], Lease]) -> float:
        with pytest.raises(LockContended) as raised:
            ask_for()
        return raised.value.expires_in or 0.0

    second = turn(partial(ask, redlock, rate, "second", 2))
    first = turn(partial(ask, redlock, rate, "first", 1))
    again = turn(partial(ask, redlock, rate, "second", 2))
    assert max(first, second) < 62 < again
    assert turn(partial(redlock.acquire, rate, ttl=10.0)) > 2 * 61


def _reaches_all(cluster: LocalCluster, redlock: Redlock) -> bool:
    with redlock.lock("warm-up", ttl=10.0, wait=SOON):
        return all(cluster.client(index).exists("redlock:warm-up") for index in range(NODES))


def _wait_until(cluster: LocalCluster, key: str, above: float, below: float) -> None:
    """Wait until a key ends in so many seconds on as many nodes as a client waits for."""

    def ttls() -> list[float]:
        return [cluster.client(index).pttl(key) / 1000 for index in range(NODES)]

    wait_until(
        lambda: sum(above < ttl <= below for ttl in ttls()) > NODES // 2,
        SOON,
        message=lambda: f"{key} to end in {above} to {below} s on a quorum: {ttls()}",
    )


def test_the_user_can_do_everything(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        do_everything(cluster)

    assert caplog.messages == []


def test_nothing_is_refused_to_the_user_but_the_name_of_its_driver(cluster: LocalCluster) -> None:
    do_everything(cluster)

    assert _refused(cluster) <= {"client|setinfo"}


def _refused(cluster: LocalCluster) -> set[str]:
    """The commands and keys that a node has refused."""
    return {entry["object"] for index in range(NODES) for entry in cluster.client(index).acl_log()}


@pytest.mark.parametrize("right", RIGHTS)
def test_without_any_one_of_its_rights_something_fails(
    cluster: LocalCluster, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SOON", 1.0)
    _define(cluster, [rule for rule in RULES if rule != right])

    def is_missed() -> bool:
        """Whether it fails where it is refused; on a busy machine it may fail before, or pass."""
        _renew(cluster)
        with contextlib.suppress(AssertionError, RedlockError):
            do_everything(cluster)
            return False
        if right.startswith("+"):
            return right.removeprefix("+") in _refused(cluster)
        return any(name.startswith(right[1:-1]) for name in _refused(cluster))

    wait_until(is_missed, message=lambda: f"refused was {_refused(cluster)}")


@pytest.mark.parametrize(
    ("ending", "right"), [("/1", "+select"), ("/0?client_name=shop", "+client|setname")]
)
def test_an_address_that_says_more_takes_the_right_that_the_readme_tells(
    cluster: LocalCluster, ending: str, right: str
) -> None:
    assert f"`{right}`" in README
    urls = [url.removesuffix("/0") + ending for url in _urls(cluster)]

    assert not [node.state for node in arm_nodes(urls) if node.serves]
    _define(cluster, [*RULES, right])
    assert [node.state for node in arm_nodes(urls)] == ["armed"] * NODES


#: What people need beside the rights of the locks' user, as its page has it.
TO_LIST = ("+scan", "+dbsize")


def test_the_page_about_users_grants_people_exactly_what_the_user_lacks_to_list_locks() -> None:
    page = (DOCKER.parent / "docs/how-to/acl-user.md").read_text()
    (rules,) = re.findall(r"^user people on >\S+ (.+)$", page, flags=re.MULTILINE)
    granted = [rule for rule in rules.split() if rule.startswith(("+", "~", "&"))]
    assert sorted(granted) == sorted([*RIGHTS, *TO_LIST])
    assert all(f"`{right}`" in README for right in TO_LIST)


def test_with_two_more_rights_people_list_and_release_locks(cluster: LocalCluster) -> None:
    _define(cluster, [*RULES, *TO_LIST])
    arm_nodes(_urls(cluster))
    with Redlock(_urls(cluster), node_timeout=2.0) as redlock:
        redlock.acquire("a", ttl=10.0)
        assert [entry.key for entry in list_locks(redlock)] == ["a"]
        assert [entry.key for entry in release_lock(redlock, "a")] == ["a"]
    assert _refused(cluster) <= {"client|setinfo"}


@pytest.mark.parametrize("right", TO_LIST)
def test_without_any_one_of_these_rights_people_list_no_locks(
    cluster: LocalCluster, right: str
) -> None:
    _define(cluster, [*RULES, *(one for one in TO_LIST if one != right)])
    arm_nodes(_urls(cluster))
    with (
        Redlock(_urls(cluster), node_timeout=2.0) as redlock,
        pytest.raises(QuorumUnavailable, match=re.escape("+scan and +dbsize")),
    ):
        list(list_locks(redlock))


def test_the_user_can_do_nothing_else() -> None:
    assert {"on", "resetkeys", "resetchannels", "-@all"} <= set(RULES)
    assert not [rule for rule in RIGHTS if rule.startswith("+@")]
    assert [rule for rule in RIGHTS if rule.startswith("~")] == ["~redlock:*", "~redlock-meta:*"]


def test_the_readme_lists_exactly_these_rights() -> None:
    table = README.split("<!-- rights: begin")[1].split("<!-- rights: end")[0]
    first_cells = " ".join(re.findall(r"^\| (.+?) \| ", table, flags=re.MULTILINE))
    told = re.findall(r"`([+~&].+?)`", first_cells.replace("\\|", "|"))

    assert sorted(told) == sorted(RIGHTS)


def test_nobody_else_is_let_in() -> None:
    users = [line.split() for line in ACL.read_text().splitlines() if line.startswith("user ")]
    assert [user[1:3] for user in users] == [["default", "off"], ["redlock", "on"]]


def test_the_user_that_loads_the_append_only_file_may_do_everything_and_log_in_nowhere() -> None:
    (rules,) = re.findall(r"^user default (.+)$", ACL.read_text(), flags=re.MULTILINE)
    assert rules.split() == ["off", "resetpass", "allkeys", "resetchannels", "+@all"]
