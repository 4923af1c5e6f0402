"""Fixtures that these tests share with the unit tests of the core."""

from __future__ import annotations

from tests.support.observing import events, interrupt, receive

__all__ = ["events", "interrupt", "receive"]
