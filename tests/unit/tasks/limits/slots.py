"""The slots of a key with a limit or a rate on the node of a `Bench`."""

from __future__ import annotations

from typing import Any

from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role
from tests.support.tasks import Bench
from tests.support.unique import declare

LIMIT = "redlock-meta:limit:redlock:k#"
QUEUE = "redlock-meta:limit:redlock-meta:queued:redlock:k#"
#: Of two in an hour.
RATE = "redlock-meta:rate:3672000:redlock:k#"


def limited(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a task of which two have the key at once."""
    return declare(bench, body, **{"lock_limit": 2, **options})


def rated(bench: Bench, body: Any = None, **options: Any) -> Any:
    """Declare a task of which two in an hour have the key."""
    return declare(bench, body, **{"lock_rate": "2/h", **options})


def taken(bench: Bench, key: str = LIMIT) -> dict[int, str]:
    """Return the owner values of the slots that are taken, by their numbers."""
    now = bench.node.now_us()
    found = {place: bench.node.state.owner(place, now) for place in list(bench.node.state.keys)}
    return {
        int(place.removeprefix(key)): owner
        for place, owner in found.items()
        if place.startswith(key) and owner is not None
    }


def roles(bench: Bench, key: str = LIMIT) -> list[Role]:
    """Return what the tasks do that have the slots."""
    owners = [parse_owner(owner) for owner in taken(bench, key).values()]
    return sorted(owner.role for owner in owners if owner is not None)
