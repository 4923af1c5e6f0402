"""The ledger of the site's first example: the same as the README's."""

from __future__ import annotations

from tests.docs.setups import readme

__all__ = ["write_to_ledger"]

write_to_ledger = readme.write_to_ledger
after = readme.after
