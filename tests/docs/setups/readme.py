"""What the README's examples write to."""

from __future__ import annotations

from typing import Any

__all__ = ["write_report", "write_to_ledger"]


def write_to_ledger(account_id: int, amount: int, *, fencing_token: int) -> None:
    """Be a ledger."""


def write_report(**_: Any) -> None:
    """Be a report."""
