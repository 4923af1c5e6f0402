"""The connections on which nodes wake waiters: a silent one is asked before it is given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_redlock.core import client_of
from celery_redlock.transport import Listener, RedisTransport, clock
from celery_redlock.transport.redis import wake_ups
from tests.support.nodes import ServerNodes
from tests.support.waiting import wait_until


def test_a_node_that_was_only_just_asked_for_a_sign_of_life_has_time_to_answer(
    servers: ServerNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = client_of(servers.connected(node_timeout=5.0)).transport
    assert isinstance(transport, RedisTransport)
    silent = 0.0
    sent: list[str] = []
    send = wake_ups._Reader._send

    def note_and_send(self: wake_ups._Reader, *words: str) -> None:
        send(self, *words)
        sent.extend(words)

    def listen(channel: str) -> Listener:
        return Listener(transport.wake_ups, [channel], lambda *_: None, lambda: None)

    def connections() -> list[int]:
        return [
            servers.cluster.client(node).info("stats")["total_connections_received"]
            for node in range(5)
        ]

    monkeypatch.setattr(wake_ups, "clock", SimpleNamespace(now=lambda: clock.now() + silent))
    monkeypatch.setattr(wake_ups._Reader, "_send", note_and_send)
    first = listen("redlock-meta:wake:1")
    wait_until(lambda: sum(first.channels <= one.live for one in transport.wake_ups._readers) == 5)
    before = connections()
    servers.pause(*range(5))
    silent = 16.0
    listen("redlock-meta:wake:2")
    wait_until(lambda: sent.count("SUBSCRIBE") == 15)
    third = listen("redlock-meta:wake:3")
    wait_until(lambda: sent.count("redlock-meta:wake:3") == 5)
    servers.resume(*range(5))
    wait_until(lambda: third.is_live)
    assert connections() == before
