"""What these tests share with the unit tests of tasks."""

from __future__ import annotations

from tests.unit.tasks.conftest import bench, mode

__all__ = ["bench", "mode"]
