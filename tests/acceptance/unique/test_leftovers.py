"""Hot keys, published faster than their tasks end: nothing stays where the tasks have ended."""

from __future__ import annotations

import pytest

from tests.acceptance.unique.load import Found, run


@pytest.fixture(
    scope="module", params=[0.0, pytest.param(0.04, marks=pytest.mark.full)], ids=["near", "far"]
)
def found(request: pytest.FixtureRequest) -> Found:
    """What some hundred calls have left behind, with nodes near to the publisher or some far."""
    return run(seconds=60.0, most=800, far=request.param, grace=1.0)


def test_no_key_is_left_beyond_the_grace(found: Found) -> None:
    assert found.sent > 0
    assert found.after_grace == {}


def test_every_key_gets_its_lock_afterwards_although_a_node_is_dead(found: Found) -> None:
    assert found.unlocked_then == 0
