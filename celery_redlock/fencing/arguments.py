"""
The arguments of a fence: its token, the name of its resource, and where it writes.

A fence whose client, path or store cannot work is refused when it is made, not at the first write.
Objects that create their methods dynamically (`__getattr__`: proxies, mocks, clients of an
application not yet bound) are accepted.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_redlock.core.lease import current_lease
from celery_redlock.core.validation import checked_token
from celery_redlock.errors import (
    ConfigurationError,
    InvalidFencingToken,
    InvalidResourceName,
    StaleFencingToken,
)
from celery_redlock.protocol.keys import MAX_SLOTS
from celery_redlock.protocol.timing import MAX_TOKEN


def token_or_current(token: int | None = None) -> int:
    """
    Return `token`, or that of the lease under which the calling code runs.

    The lease need not be valid: only the resource knows whether a newer holder has written.

    Raises:
        InvalidFencingToken: the token is invalid; or none was given and the code does not run under
            a lease: outside a task, in a thread that the body started, or in a task without its
            lock.
    """
    if token is not None:
        return checked_token(token)
    lease = current_lease()
    if lease is None:
        raise InvalidFencingToken(
            "No fencing token was given, and this code does not run under a lease. Give the token "
            "(lease.fencing_token), or call this in the body of a task that holds its lock, in "
            "the body's own thread."
        )
    return checked_token(lease.fencing_token)


def token_in(text: str) -> int | None:
    """Return the token that a resource has stored as this text; None if it is no token."""
    if re.fullmatch(r"[1-9][0-9]{0,15}", text) and int(text) <= MAX_TOKEN:
        return int(text)
    return None


def stale(resource: str, seen: int, offered: int) -> StaleFencingToken:
    """Return the error for a token that is below the highest one a resource has seen."""
    return StaleFencingToken(
        f"{resource!r} has seen fencing token {seen}; token {offered} is older and was refused. "
        f"{_advice(offered)}",
        resource,
        seen,
        offered,
    )


def _advice(offered: int) -> str:
    lease = current_lease()
    if lease and lease.slots and lease.fencing_token == offered and lease.is_valid:
        return (
            "The lease is still valid, so the newer token is another slot's or another key's, "
            "unless the lock was released by force. Give each slot a fence record of its own: "
            "slot_resource(name)."
        )
    return (
        "A newer holder has acquired the lock: discard this work. If there is none, the resource "
        "is written under another key, too, or the nodes have lost their counters."
    )


def slot_resource(resource: str, slot: int | None = None) -> str:
    """
    Return the name of a resource for the holders of one slot: `resource#slot`.

    Tokens order the holders of one slot of a key with a limit; tokens of different slots are not
    comparable. Under this name each slot has a fence record of its own, so a fence refuses an
    earlier holder of the same slot, but no holder of another slot. Every fence that takes a name
    takes this one. Two resources or two slots never share a name; the name of a resource that is
    written without a slot must not end like this.

    Args:
        resource: the resource's name, the same for all slots.
        slot: the slot of a lease (`lease.slot`, `lease.slots[key]`); the current lease's if not
            given.

    Raises:
        InvalidResourceName: the resource is not a non-empty str; the slot is not a slot number;
            or no slot was given and the code does not run under a lease with exactly one slot.

    Example:
        >>> with redlock.lock(Limit("seats", 5)):
        ...     fence.set(slot_resource("seat"), "taken")
    """
    if not isinstance(resource, str) or not resource:
        raise InvalidResourceName(
            f"The name of a resource must be a non-empty str, not {kind_of(resource)}."
        )
    return f"{resource}#{_current_slot() if slot is None else _checked_slot(slot)}"


def _checked_slot(slot: Any) -> int:
    if type(slot) is int and 0 <= slot < MAX_SLOTS:
        return slot
    raise InvalidResourceName(
        f"A slot is an int from 0 to {MAX_SLOTS - 1}, not {slot!r:.40}. Give lease.slot as it is."
    )


def _current_slot() -> int:
    lease = current_lease()
    slots = lease.slots if lease else {}
    if len(slots) == 1:
        (slot,) = slots.values()
        return slot
    if slots:
        raise InvalidResourceName(
            f"The current lease has slots of {len(slots)} keys. Give the slot of the key under "
            "which the resource is written: lease.slots[key]."
        )
    raise InvalidResourceName(
        "No slot was given, and this code does not run under a lease that has one. Give "
        "lease.slot, or call this under the lease of a key with a limit. A resource under a key "
        "without a limit keeps its own name."
    )


def kind_of(value: Any) -> str:
    """Name the type of an argument for an error, which must not show confidential content."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)


def refuse(taker: str, wanted: str, value: Any, remedy: str) -> ConfigurationError:
    """Return the error for an argument that cannot work."""
    return ConfigurationError(f"{taker} takes {wanted}, not {kind_of(value)}. {remedy}")


def require_methods(taker: str, wanted: str, value: Any, names: tuple[str, ...], how: str) -> None:
    """Raise `ConfigurationError` unless a value is an object with these methods."""
    if not isinstance(value, type) and (
        hasattr(type(value), "__getattr__")
        or all(callable(getattr(value, name, None)) for name in names)
    ):
        return
    raise refuse(taker, wanted, value, how)


def require_call(
    taker: str, wanted: str, value: Any, count: int, how: str, *, method: str = "__call__"
) -> None:
    """Raise `ConfigurationError` unless a value, or a method of it, takes that many arguments."""
    called: Callable[..., Any] | None = value if method == "__call__" else getattr(value, method)
    if not callable(called):
        raise refuse(taker, wanted, value, how)
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise refuse(taker, wanted, value, how) from None


def checked_path(taker: str, path: Any) -> Path:
    """Return a path without symbolic links and relative parts, or raise `ConfigurationError`."""
    if isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str) and str(path):
        return Path(path).resolve()
    raise refuse(taker, "a path as str or os.PathLike", path, "Give it the name of a file.")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
