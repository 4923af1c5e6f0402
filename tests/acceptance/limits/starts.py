"""The starts that the bodies of tasks with a rate have noted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def are_within(rate: int, begun: Iterable[dict[str, Any]]) -> bool:
    """
    Return whether no second has more grants than the rate.

    A grant is after its attempt began, and before its body did; so nothing slow breaks this.
    """
    begun = list(begun)
    asked, began = (sorted(entry[when] for entry in begun) for when in ("attempt", "at"))
    return all(later - earlier >= 1 for earlier, later in zip(asked, began[rate:], strict=False))
