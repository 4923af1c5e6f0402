"""Both clients take the same options, and a wrong name is named with the one that was meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from celery_redlock import AsyncRedlock, Redlock
from celery_redlock.core.options import AcquireOptions, checked_options
from celery_redlock.core.settings import ClientOptions, client_settings
from celery_redlock.errors import ConfigurationError

NODES = "memory://options"


def acquire(**options: Any) -> None:
    with Redlock(NODES) as redlock:
        redlock.acquire("k", **options)


def lock(**options: Any) -> None:
    with Redlock(NODES) as redlock, redlock.lock("k", **options):
        pass


def acquire_async(**options: Any) -> None:
    async def run() -> None:
        async with AsyncRedlock(NODES) as redlock:
            await redlock.acquire("k", **options)

    asyncio.run(run())


def lock_async(**options: Any) -> None:
    async def run() -> None:
        async with AsyncRedlock(NODES) as redlock, redlock.lock("k", **options):
            pass

    asyncio.run(run())


@pytest.mark.parametrize("call", [acquire, lock, acquire_async, lock_async])
def test_a_wrong_option_of_a_call_is_named_with_a_suggestion(call: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tll'\. Did you mean 'ttl'"):
        call(tll=5)


@pytest.mark.parametrize("call", [lock, lock_async])
def test_the_options_of_a_block_are_suggested_too(call: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=r"Did you mean 'max_hold'"):
        call(max_holds=5)


@pytest.mark.parametrize("client", [Redlock, AsyncRedlock])
def test_a_wrong_option_of_a_client_is_named_with_a_suggestion(client: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{client.__name__}\(\) got .* 'node_timeout'"):  # type: ignore[attr-defined]
        client(NODES, node_timeouts=1.0)


def test_without_a_similar_name_all_are_listed() -> None:
    with pytest.raises(TypeError, match=r"It has at_least_for, label, retry, ttl, wait\."):
        acquire(colour="red")


def test_internal_arguments_are_no_options() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'reservation'"):
        acquire(reservation=None)


#: Parameters of the checking functions that are no options.
OTHERS = (
    *("return", "nodes", "fail_over", "settings", "key", "records", "reservation"),
    *("decide", "waiter", "first_waiter", "registers_as"),
)


@pytest.mark.parametrize(
    ("options", "checks"),
    [(ClientOptions, client_settings), (AcquireOptions, checked_options)],
    ids=["client", "acquire"],
)
def test_the_typed_options_are_those_that_are_checked(
    options: type, checks: Callable[..., Any]
) -> None:
    hints = get_type_hints(checks)
    assert get_type_hints(options) == {
        name: hint for name, hint in hints.items() if name not in OTHERS
    }


@pytest.mark.parametrize(
    ("on_lost", "message"),
    [
        ("interrupt", "on_lost='interrupt' cannot be called; give a function"),
        (lambda: 1, r"on_lost=.*<lambda> is called with \(lease\) but takes \(\)"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_before_the_lock_is_taken(
    redlock_memory_nodes: list[str], on_lost: Any, message: str
) -> None:
    with Redlock(redlock_memory_nodes) as client:
        with pytest.raises(ConfigurationError, match=message), client.lock("k", on_lost=on_lost):
            pass
        assert client.holder("k") is None
