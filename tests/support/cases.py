"""Cases of a test that show one fact again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(cases: Iterable[Any]) -> list[Any]:
    """Return cases of which `make test` runs the first, and `make test-full` all."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.full) for case in others)]
