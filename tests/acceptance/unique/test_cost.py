"""What a caller of `apply_async` waits for: one exchange with the lock nodes, never a second."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import is_duplicate
from celery_redlock.transport.redis.channel import RedisChannel
from tests.acceptance.apps.unique_tasks import MODES
from tests.acceptance.unique.conftest import MakePublisher
from tests.acceptance.unique.publisher import Publisher


class Waits:
    """How often this process has waited for the answers of lock nodes."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, exchange: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> None:
            self.count += 1
            exchange(*args, **kwargs)

        return counted


@pytest.fixture
def publisher(make_publisher: MakePublisher, key: str) -> Publisher:
    """A publisher whose messages nobody takes, and whose connections are made."""
    publisher = make_publisher(key)
    publisher.send("unique.until_executed", f"{key}-before")
    return publisher


@pytest.fixture
def waits(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    monkeypatch.setattr(RedisChannel, "exchange", waits(RedisChannel.exchange))
    return waits


@pytest.mark.parametrize("mode", MODES)
def test_sending_a_unique_task_waits_once_for_the_nodes(
    mode: str, publisher: Publisher, waits: Waits, key: str
) -> None:
    result = publisher.send(f"unique.{mode}", key)

    assert not is_duplicate(result)
    assert waits.count == 1


@pytest.mark.parametrize("mode", MODES)
def test_finding_a_duplicate_waits_once_for_the_nodes(
    mode: str, publisher: Publisher, waits: Waits, key: str
) -> None:
    publisher.send(f"unique.{mode}", key)

    duplicate = publisher.send(f"unique.{mode}", key)

    assert is_duplicate(duplicate)
    assert waits.count == 2


def test_sending_a_plain_task_does_not_wait_for_the_nodes(
    publisher: Publisher, waits: Waits, key: str
) -> None:
    publisher.send("unique.plain", key)

    assert waits.count == 0
