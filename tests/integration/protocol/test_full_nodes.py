"""On full nodes, a release keeps what it shall keep, and an extension lengthens the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.core import ReleaseAction, client_of
from celery_redlock.core.lease import release_with
from celery_redlock.protocol.commands import extend_together
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.votes import Acknowledged, LeaseVotes, NotHeld
from tests.support.commands import extend, limited, release
from tests.support.nodes import PREFIX, ServerNodes
from tests.support.waiting import wait_until

MARKER = "redlock-meta:message:one"


@pytest.fixture
def full(servers: ServerNodes) -> Iterator[ServerNodes]:
    """Nodes that can be filled."""
    yield servers
    limit(servers, "0")


def limit(nodes: ServerNodes, memory: str) -> None:
    for node in range(len(nodes)):
        nodes.cluster.client(node).config_set("maxmemory", memory)


def test_a_window_and_a_marker_are_kept(full: ServerNodes) -> None:
    client = full.connected()
    lease = client_of(client).acquire_for_task(["key"], [MARKER])
    full.wait_held(lease)
    limit(full, "1")
    over = ReleaseAction(keep_ms=3_600_000, value="over")
    assert release_with(lease, {client_of(client).key_of("key"): over, Key.record(MARKER): over})
    for name in ("key", MARKER):
        wait_until(lambda name=name: full.owners(name) == ["over"] * 5)
        assert all(full.left(node, name) > 3000 for node in range(5))


def test_the_slot_of_a_rate_is_kept_where_others_granted_it(full: ServerNodes) -> None:
    slot = limited("rate", 1, 60_000).at(0)
    limit(full, "1")
    command = release([slot], "us", 7, actions={slot: ReleaseAction(keep_ms=60_000)})
    full.run(0, command)
    assert full.cluster.client(0).pttl(slot.stored) > 50_000


def test_an_extension_lengthens_what_stands_behind_a_counter_that_cannot_be_raised(
    full: ServerNodes,
) -> None:
    full.put(0, "held", "us", ttl=5.0)
    limit(full, "1")
    commands = [extend((PREFIX + key,), "us", 60_000, 7) for key in ("lost", "held")]
    assert full.run(0, extend_together(commands)) == LeaseVotes(
        (NotHeld(missing=True), Acknowledged())
    )


def test_a_release_of_what_was_lost_says_so(full: ServerNodes) -> None:
    limit(full, "1")
    assert full.run(0, release((PREFIX + "lost",), "us", 7)) == NotHeld(missing=False)
