"""The commands of a node, for tests that name keys as nodes store them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from celery_redlock.protocol import commands
from celery_redlock.protocol.commands import Command, ReleaseAction
from celery_redlock.protocol.keys import Key


def keys_of(keys: Iterable[Key | str]) -> tuple[Key, ...]:
    """Return keys, or those with these names."""
    return tuple(key if isinstance(key, Key) else Key(key, key) for key in keys)


def limited(name: str, slots: int, period_ms: int = 0) -> Key:
    """Return the key with a limit that nodes store under a name, which has the key prefix."""
    return Key.of("", name, slots, period_ms)


def _named(command: Callable[..., Command]) -> Callable[..., Command]:
    @wraps(command)
    def call(keys: Iterable[Key | str], *args: Any, **kwargs: Any) -> Command:
        return command(keys_of(keys), *args, **kwargs)

    return call


acquire = _named(commands.acquire)
raise_fence = _named(commands.raise_fence)
move = _named(commands.move)
extend = _named(commands.extend)
heal = _named(commands.heal)
forget_waiter = _named(commands.forget_waiter)


def release(
    keys: Iterable[Key | str],
    owner: str,
    token: int,
    keep_ms: int = 0,
    actions: Mapping[Key | str, ReleaseAction] | None = None,
    waiter: str = "",
) -> Command:
    """Return a release, with the actions by key or by name."""
    actions = actions or {}
    by_key = dict(zip(keys_of(actions), actions.values(), strict=True))
    return commands.release(keys_of(keys), owner, token, keep_ms, by_key, waiter)
