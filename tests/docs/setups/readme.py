"""The ledger and the report of the README's examples."""

from __future__ import annotations

from typing import Any

__all__ = ["write_report", "write_to_ledger"]


def write_to_ledger(account_id: int, amount: int, *, fencing_token: int) -> None:
    """Be a ledger."""
    assert fencing_token > 0


def write_report(*, fencing_token: int, day: object = None) -> None:
    """Be a report."""
    assert fencing_token > 0


def after(text: str, names: dict[str, Any]) -> None:
    """Run the tasks that a block has defined."""
    if "def settle(" in text:
        names["settle"].apply(args=(7, 100), throw=True)
