"""The tables of rules, explored by every combination of the facts that they read."""

from __future__ import annotations

import pytest

from evidence.models.examine import examine
from evidence.models.tables import TABLES


@pytest.mark.parametrize("name", [setting.name for setting in TABLES])
def test_a_table_of_rules_keeps_its_promises_for_all_facts_and_uses_each_row(name: str) -> None:
    outcome = examine(name, 2_000_000)
    assert not outcome.violation, outcome.trace
    assert not outcome.missing
    assert outcome.exhausted
