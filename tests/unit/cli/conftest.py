"""The fixture that the tests of the commands share."""

from __future__ import annotations

from tests.support.command_line import cli

__all__ = ["cli"]
