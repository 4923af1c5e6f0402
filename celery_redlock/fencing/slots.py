"""
Names for resources that the holders of a key with a limit write.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.core.current import current_lease
from celery_redlock.errors import InvalidResourceName
from celery_redlock.fencing.checks import kind_of
from celery_redlock.protocol.keys import MAX_SLOTS


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
