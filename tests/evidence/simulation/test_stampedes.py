"""A hundred publishers of one key find out which one has it, however late their processes are."""

from __future__ import annotations

from typing import Any

import pytest

from evidence.simulation.stampedes import stampede


def full(*values: float) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize("turn", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", [0, full(1), full(2)])
def test_one_gets_the_key_and_all_others_know_who(seed: int, turn: float) -> None:
    outcomes = stampede(seed, turn=turn)
    assert outcomes == {"got it": 1, "knows who": 99}


@pytest.mark.parametrize("turn", [full(0.0), 0.3])
@pytest.mark.parametrize(("left", "down"), [(1, 0), (2, 0), (0, 1), (1, 1)])
def test_nodes_that_a_killed_publisher_has_or_that_are_down_keep_nobody_from_the_key(
    left: int, down: int, turn: float
) -> None:
    outcomes = stampede(0, turn=turn, left=left, down=down)
    assert outcomes == {"got it": 1, "knows who": 99}


def test_nobody_gets_a_key_that_a_quorum_of_nodes_keeps_for_a_killed_publisher() -> None:
    assert stampede(0, turn=0.0, left=3) == {"knows who": 100}
