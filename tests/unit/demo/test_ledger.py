"""The demo's shared files refuse whoever comes with an older token than they have seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.demo.ledger import Ledger
from celery_redlock.errors import StaleFencingToken


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path)
    ledger.open_account("A")
    return ledger


def test_a_holder_may_write_what_it_has_computed(ledger: Ledger) -> None:
    ledger.write("A", ledger.read("A", 5) + 1, 5)

    assert ledger.balance("A") == 1


def test_a_write_with_an_older_token_changes_nothing(ledger: Ledger) -> None:
    ledger.write("A", 1, 6)

    with pytest.raises(StaleFencingToken) as refused:
        ledger.write("A", 100, 5)

    assert (refused.value.seen, refused.value.offered) == (6, 5)
    assert ledger.balance("A") == 1


def test_a_holder_that_has_only_read_is_safe_from_the_one_before(ledger: Ledger) -> None:
    ledger.read("A", 6)

    with pytest.raises(StaleFencingToken):
        ledger.write("A", 100, 5)


def test_without_tokens_the_last_writer_wins(ledger: Ledger) -> None:
    first, second = ledger.read("A", None), ledger.read("A", None)
    ledger.write("A", first + 1, None)
    ledger.write("A", second + 1, None)

    assert ledger.balance("A") == 1
