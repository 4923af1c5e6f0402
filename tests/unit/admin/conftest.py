"""The bench of the tests of tasks."""

from __future__ import annotations

from tests.unit.tasks.conftest import bench

__all__ = ["bench"]
