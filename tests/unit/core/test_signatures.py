"""The client for event loops is called as the one for threads is."""

from __future__ import annotations

import inspect

import pytest

from celery_redlock import AsyncRedlock, Redlock


def parameters(client: type, method: str) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(getattr(client, method)).parameters)
    found.pop("on_lost", None)  # a thread can be told, a coroutine can be cancelled
    return found


@pytest.mark.parametrize("method", ["__init__", "acquire", "lock"])
def test_both_clients_take_the_same(method: str) -> None:
    assert parameters(AsyncRedlock, method) == parameters(Redlock, method)
