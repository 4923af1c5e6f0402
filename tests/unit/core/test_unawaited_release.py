"""A release that no caller waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_redlock.core.release import UnawaitedRelease
from celery_redlock.protocol.rounds import Phase
from celery_redlock.protocol.votes import ACKNOWLEDGED


def test_a_release_paused_while_it_is_sent_gives_nodes_their_whole_timeout() -> None:
    now = 0.0
    transport: Any = SimpleNamespace(names="abcde", now=lambda: now, drain=lambda _: None)
    phases: list[Phase] = []
    sent = UnawaitedRelease(transport, transport, 0.2, phases.append)
    sent.record_vote(0, ACKNOWLEDGED, now)
    now = 60.0
    assert not sent.settle()
    for node in (1, 2):
        sent.record_vote(node, ACKNOWLEDGED, now)
    assert sent.settle()
    assert phases == [Phase.GRANTED]
