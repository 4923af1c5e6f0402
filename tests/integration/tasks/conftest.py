"""What these tests share with the unit tests of tasks."""

from __future__ import annotations

from tests.unit.tasks.conftest import bench, break_broker, mode

__all__ = ["bench", "break_broker", "mode"]
