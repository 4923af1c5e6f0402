"""What these tests share with the unit tests of the beats."""

from __future__ import annotations

from tests.unit.beat.conftest import make_world, world

__all__ = ["make_world", "world"]
