"""Names for what the holders of one slot write to, and what a wrong refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import Limit, Rate, Redlock
from celery_redlock.errors import InvalidResourceName, StaleFencingToken
from celery_redlock.fencing import FileTokenStore, MemoryTokenStore, slot_resource

ANOTHER_HOLDER = "A newer holder has acquired the lock"


@pytest.fixture
def redlock(redlock_memory_nodes: list[str]) -> Iterator[Redlock]:
    with Redlock(redlock_memory_nodes) as redlock:
        yield redlock


def test_the_slot_is_the_end_of_the_name() -> None:
    assert slot_resource("seat", 3) == "seat#3"


def test_the_slot_is_the_current_lease_s(redlock: Redlock) -> None:
    with redlock.lock(Limit("seats", 5)) as lease:
        assert slot_resource("seat") == f"seat#{lease.slot}"


def test_a_given_slot_goes_before_the_current_lease_s(redlock: Redlock) -> None:
    with redlock.lock(Limit("seats", 5)):
        assert slot_resource("seat", 100) == "seat#100"


def test_names_that_look_like_slots_stay_apart() -> None:
    names = {slot_resource(name, slot) for name in ("a", "a#1", "a#") for slot in (0, 1, 11)}

    assert len(names) == 9


@pytest.mark.parametrize("slot", [-1, 128, True, 1.0, "1"], ids=repr)
def test_what_is_no_slot_is_refused(slot: Any) -> None:
    with pytest.raises(InvalidResourceName, match="int from 0 to 127"):
        slot_resource("seat", slot)


@pytest.mark.parametrize("resource", ["", b"seat", None, Path("seat")], ids=repr)
def test_what_is_no_name_is_refused(resource: Any) -> None:
    with pytest.raises(InvalidResourceName, match="non-empty str"):
        slot_resource(resource, 1)


def test_outside_a_lease_the_slot_must_be_given() -> None:
    with pytest.raises(InvalidResourceName, match="not run under a lease that has one"):
        slot_resource("seat")


@pytest.mark.parametrize("key", ["seats", Rate("seats", "100/m")], ids=["plain", "rate"])
def test_a_lease_that_holds_no_slot_gives_no_name(redlock: Redlock, key: str | Rate) -> None:
    with redlock.lock(key), pytest.raises(InvalidResourceName, match="keeps its own name"):
        slot_resource("seat")


def test_of_several_slots_one_must_be_given(redlock: Redlock) -> None:
    keys = [Limit("tenant", 5), Limit("seats", 5)]
    with redlock.lock(keys) as lease:
        with pytest.raises(InvalidResourceName, match="slots of 2 keys"):
            slot_resource("seat")
        assert slot_resource("seat", lease.slots["seats"]) == f"seat#{lease.slots['seats']}"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_token_store_keeps_a_record_for_each_slot(kind: str, tmp_path: Path) -> None:
    store = MemoryTokenStore() if kind == "memory" else FileTokenStore(tmp_path, fsync=False)
    store.claim(slot_resource("seat", 0), 9)

    store.claim(slot_resource("seat", 1), 5)

    with pytest.raises(StaleFencingToken):
        store.claim(slot_resource("seat", 0), 5)


def refusal(store: MemoryTokenStore, token: int | None = None) -> str:
    """Return what the holder of a token learns that is below the highest one of a resource."""
    store.claim("seat", 2**53 - 1)
    with pytest.raises(StaleFencingToken) as caught:
        store.claim("seat", token)
    return str(caught.value)


def test_a_valid_holder_of_a_slot_learns_what_keeps_slots_apart(redlock: Redlock) -> None:
    with redlock.lock(Limit("seats", 5)):
        message = refusal(MemoryTokenStore())

    assert "slot_resource(name)" in message
    assert ANOTHER_HOLDER not in message


def test_a_holder_of_a_slot_that_has_lost_it_learns_that_there_is_another(
    redlock: Redlock,
) -> None:
    with redlock.lock(Limit("seats", 5)) as lease:
        lease.mark_lost()
        assert ANOTHER_HOLDER in refusal(MemoryTokenStore())


def test_a_token_of_another_lease_learns_nothing_of_this_one_s_slot(redlock: Redlock) -> None:
    with redlock.lock(Limit("seats", 5)):
        assert ANOTHER_HOLDER in refusal(MemoryTokenStore(), 5)


def test_a_valid_holder_without_a_slot_learns_that_there_is_another(redlock: Redlock) -> None:
    with redlock.lock("seats"):
        assert ANOTHER_HOLDER in refusal(MemoryTokenStore())
