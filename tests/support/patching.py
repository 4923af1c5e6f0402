"""The channels of a client, and methods that fail, or are followed by something, in one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.core import client_of
from celery_redlock.transport import borrowed


def channel_type(client: Redlock) -> type:
    """Return the type of the channels on which a client speaks to its nodes."""
    with borrowed(client_of(client).transport) as channel:
        return type(channel)


def failing(client: Redlock) -> list[str]:
    """Return why nodes fail, as far as this process knows; of a client of servers."""
    with borrowed(client_of(client).transport) as channel:
        health = channel._health  # type: ignore[attr-defined]
    return [one.reason for one in health if one.reason is not None]


def fail_first(
    patch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    failures: list[Any],
    when: Callable[..., bool] = lambda *_: True,
) -> None:
    """Let the first calls that count raise one of these each, which are taken out then."""
    real = getattr(owner, method)

    def fail_or_do(*args: Any, **options: Any) -> Any:
        if failures and when(*args):
            raise failures.pop()
        return real(*args, **options)

    patch.setattr(owner, method, fail_or_do)


def follow(patch: pytest.MonkeyPatch, owner: type, method: str, then: Callable[[], Any]) -> None:
    """Let something happen after each call of a method."""
    real = getattr(owner, method)

    def do_and_then(*args: Any, **options: Any) -> Any:
        done = real(*args, **options)
        then()
        return done

    patch.setattr(owner, method, do_and_then)
