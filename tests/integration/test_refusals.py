"""What a lock node refuses to its user is logged once, with the node, the script and the right."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_redlock import Lease, QuorumUnavailable, RedlockTask
from celery_redlock.core import client_of
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.nodes import CALM, ServerNodes
from tests.support.waiting import TIMEOUT, wait_until

RIGHTS = [
    *("on", ">change-me", "~redlock:*", "~redlock-meta:*", "resetchannels", "-@all"),
    *("+eval", "+evalsha", "+script|load", "+info", "+time"),
    *("+get", "+mget", "+set", "+del", "+pttl", "+pexpire"),
]


class RestrictedNodes(ServerNodes):
    """Servers on which the clients' user may be refused something."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.grant()
        self.urls = [url.replace("redis://", "redis://locks:change-me@") for url in cluster.urls]
        self.names = [url.removeprefix("redis://").removesuffix("/0") for url in cluster.urls]

    def grant(self, *, but: str = "") -> None:
        rights = [right for right in RIGHTS if right != but]
        for node in range(len(self.cluster.urls)):
            self.cluster.client(node).execute_command("ACL", "SETUSER", "locks", "reset", *rights)


@pytest.fixture(params=["embedded", pytest.param("debian", marks=pytest.mark.system)])
def nodes(
    request: pytest.FixtureRequest, redlock_cluster_factory: ClusterFactory
) -> Iterator[RestrictedNodes]:
    binary = None if request.param == "embedded" else "/usr/bin/redis-server"
    found = RestrictedNodes(redlock_cluster_factory(3, binary=binary))
    yield found
    found.grant()
    found.close()


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def refusals(caplog: pytest.LogCaptureFixture, script: str, right: str) -> list[str]:
    """Return the nodes that were logged as refusing a script for want of a right, in order."""
    pattern = rf"Lock node \S*?(127\.0\.0\.1:\d+)\S* refuses the script {script}: .*{right}\b"
    return sorted(
        found[1] for text in caplog.messages if (found := re.search(pattern, text)) is not None
    )


def test_a_refused_release_is_logged_once_for_each_node(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = nodes.connected()
    nodes.grant(but="+del")
    for number in range(3):
        assert not client.acquire(f"key-{number}", ttl=1.0, wait=TIMEOUT).release()
    wait_until(
        lambda: (
            client.acquire("late", ttl=1.0, wait=TIMEOUT).release()
            or len(refusals(caplog, "release", "del")) >= 3
        )
    )
    assert refusals(caplog, "release", "del") == sorted(nodes.names)
    assert "grant the user +del" in caplog.text
    assert "until their TTL expires" in caplog.text


def test_it_is_logged_again_after_it_has_worked(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = nodes.connected()
    for times in (1, 2):
        nodes.grant(but="+del")
        wait_until(
            lambda times=times: (
                client.acquire("refused", ttl=1.0, wait=TIMEOUT).release()
                or len(refusals(caplog, "release", "del")) == 3 * times
            )
        )
        nodes.grant()
        nodes.connect(client)
        wait_until(
            lambda: (
                client.acquire("other", wait=TIMEOUT).release()
                and not client_of(client).transport.refusals("release")
            )
        )


def test_a_refusal_is_found_in_an_answer_that_nobody_waited_for(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = nodes.connected()
    made = client_of(client).reserve(
        [client_of(client).key_of("key").stored], ttl=5.0, grace=5.0, label="", retry_for=CALM
    )
    nodes.grant(but="+del")
    assert client_of(client).cancel(made.reservation)
    # Whoever speaks to the nodes next reads it.
    wait_until(
        lambda: (
            client_of(client).inspect([client_of(client).key_of("key").stored])
            and refusals(caplog, "release", "del")
        )
    )


def test_a_refused_extension_is_logged_and_the_caller_gets_the_right(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = nodes.connected()
    lease = client.acquire("key", ttl=10.0)
    nodes.grant(but="+pexpire")
    with pytest.raises(QuorumUnavailable, match=r"grant the user .*\+pexpire"):
        lease.extend(30.0)
    assert set(refusals(caplog, "extend", "pexpire")) <= set(nodes.names)
    assert "although they are extended" in caplog.text


def test_a_refused_lengthening_is_logged(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = nodes.connected()
    made = client_of(client).reserve(
        [client_of(client).key_of("key").stored], ttl=60.0, grace=5.0, label="", retry_for=CALM
    )
    nodes.grant(but="+pexpire")
    client_of(client).confirm(made)
    wait_until(
        lambda: (
            client_of(client).inspect([client_of(client).key_of("key").stored])
            and refusals(caplog, "extend", "pexpire")
        )
    )


def test_a_refused_heal_is_logged(nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture) -> None:
    lease = nodes.lease_of(nodes.connected(), ttl=10.0)
    nodes.forget(0, "key")
    nodes.grant(but="+set")

    def healed() -> bool:
        lease.extend()
        return bool(refusals(caplog, "heal", "set"))

    wait_until(healed)


@pytest.mark.parametrize("right", ["+evalsha", "+get", "+time", "~redlock:*"])
def test_whoever_asks_for_a_lock_gets_the_right_that_is_lacking(
    nodes: RestrictedNodes, right: str
) -> None:
    client = nodes.connected()
    nodes.grant(but=right)
    with pytest.raises(QuorumUnavailable) as refused:
        client.acquire("key")
    says = "its lock keys and redlock-meta:*" if right.startswith("~") else right
    assert f"grant the user {says}" in str(refused.value)


def test_a_task_whose_release_is_refused_names_the_right_and_reports_no_loss(
    nodes: RestrictedNodes, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("refused", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(redlock_nodes=nodes.urls, redlock_node_timeout=CALM)
    held: list[Lease] = []

    @app.task(base=RedlockTask, bind=True, shared=False, lock_key="key", lock_ttl=30.0)
    def job(self: RedlockTask) -> None:
        held.append(self.lease)
        nodes.grant(but="+del")

    job.apply()
    wait_until(lambda: len(refusals(caplog, "release", "del")) >= 2)
    (warning,) = wait_until(
        lambda: [text for text in caplog.messages if "confirmed the release" in text]
    )
    assert "grant the user +del" in warning
    assert "ended without its lock" not in caplog.text
    assert not held[0].is_valid
