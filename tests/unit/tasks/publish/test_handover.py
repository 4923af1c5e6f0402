"""A message that continues a running task takes no lock of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kombu.exceptions import OperationalError

from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.publish import publish as publishing
from tests.support.commands import keys_of
from tests.support.tasks import Bench
from tests.support.unique import KEY, declare


def test_a_task_that_is_handed_on_takes_no_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(bench)
    handed = Handed()
    monkeypatch.setattr(publishing, "handover_for", handed)
    message = bench.send(task, task_id="running")
    assert Envelope.read(message).handovers == 3
    assert handed.asked == ("running", keys_of((KEY,)))
    assert (handed.told, bench.is_held("k")) == (True, False)


def test_a_hand_over_that_cannot_be_sent_is_not_told_to_the_holder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, break_broker: Callable[[], None]
) -> None:
    task = declare(bench)
    handed = Handed()
    monkeypatch.setattr(publishing, "handover_for", handed)
    break_broker()
    with pytest.raises(OperationalError):
        task.apply_async(task_id="running")
    assert handed.told is False


class Handed:
    """Stands for a running body that has the lock."""

    envelope = Envelope(nonce="n", handovers=3)
    told = False
    asked: tuple[str, tuple[str, ...]]

    def __call__(
        self, name: str, task_id: str, places: tuple[str, ...], expires_at: float, **message: str
    ) -> Handed:
        self.asked = (task_id, places)
        return self

    def sent(self) -> None:
        self.told = True
