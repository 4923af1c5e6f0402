"""The guide's example of a fence is one that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, _state

from celery_redlock import RedlockTask
from celery_redlock.errors import StaleFencingToken
from celery_redlock.testing.plugin import ClusterFactory

GUIDE = (Path(__file__).parents[3] / "docs" / "how-to" / "fence-your-writes.md").read_text()


@pytest.fixture
def example(
    redlock_memory_nodes: list[str],
    redlock_cluster_factory: ClusterFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, Any]]:
    """The names that the example defines, on a server that is there."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    (source,) = (block for block in blocks if "def deposit(" in block)
    app = Celery("bank", set_as_current=False)
    app.conf.update(task_always_eager=True, redlock_nodes=redlock_memory_nodes)
    names: dict[str, Any] = {"app": app, "RedlockTask": RedlockTask, "__name__": "example"}
    url = redlock_cluster_factory(1).urls[0]
    code = source.replace('redis.Redis("data")', f"redis.Redis.from_url({url!r})")
    exec(compile(code, "fence-your-writes.md", "exec"), names)
    yield names
    names["fence"].client.close()
    app.close()


def test_it_adds_up(example: dict[str, Any]) -> None:
    deposit: Callable[..., Any] = example["deposit"].delay
    deposit(7, 100).get()
    deposit(7, amount=50).get()
    assert example["fence"].get("balance:7") == b"150"


def test_it_refuses_an_earlier_holder(example: dict[str, Any]) -> None:
    example["deposit"].delay(7, 100).get()
    client: redis.Redis = example["fence"].client
    with pytest.raises(StaleFencingToken):
        example["fence"].set("balance:7", 0, 5)
    assert client.get("balance:7") == b"100"
