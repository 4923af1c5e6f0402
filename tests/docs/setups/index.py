"""What the first example writes to."""

from __future__ import annotations

from tests.docs.setups.readme import write_to_ledger

__all__ = ["write_to_ledger"]
