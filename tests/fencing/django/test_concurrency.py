"""Two transactions at once: the token is compared with what the other one has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from celery_redlock.errors import StaleFencingToken
from tests.fencing.django.bank.models import Account
from tests.support.waiting import TIMEOUT, wait_until

Race = Callable[[Callable[[], Any], Callable[[], Any]], Future]

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture
def race(database: str, request: pytest.FixtureRequest) -> Iterator[Race]:
    """Start the second while the first has written and not committed; then commit."""
    begun = threading.Event()

    def elsewhere(work: Callable[[], Any]) -> Any:
        try:
            begun.set()
            return work()
        finally:
            connections.close_all()

    def wait_until_blocked() -> None:
        assert begun.wait(TIMEOUT)
        if database == "postgresql":
            address = request.getfixturevalue("postgres_address")
            with psycopg.connect(f"postgresql://{address}", autocommit=True) as watcher:
                wait_until(lambda: watcher.execute(WAITING).fetchone()[0], message="a lock wait")

    with ThreadPoolExecutor(1) as pool:

        def run(newer: Callable[[], Any], older: Callable[[], Any]) -> Future:
            with transaction.atomic():
                newer()
                result = pool.submit(elsewhere, older)
                wait_until_blocked()
            return result

        yield run


def test_a_stale_write_that_waited_for_the_newer_one_is_refused(race: Race) -> None:
    account = Account.objects.create()
    rows = Account.objects.filter(pk=account.pk)

    older = race(
        lambda: rows.fenced_update(balance=6, token=6),
        lambda: rows.all().fenced_update(balance=5, token=5),
    )

    with pytest.raises(StaleFencingToken) as refused:
        older.result(TIMEOUT)
    assert refused.value.seen == 6
    assert rows.get().balance == 6


def test_a_stale_write_of_several_rows_that_waited_for_one_of_them_writes_none(race: Race) -> None:
    first, second = Account.objects.create(), Account.objects.create()

    older = race(
        lambda: Account.objects.filter(pk=second.pk).fenced_claim(token=6),
        lambda: Account.objects.all().fenced_update(balance=5, token=5),
    )

    with pytest.raises(StaleFencingToken):
        older.result(TIMEOUT)
    first.refresh_from_db()
    assert (first.balance, first.fencing_token) == (0, 0)


def test_an_instance_that_is_saved_while_it_is_written_keeps_the_newer_token(race: Race) -> None:
    account = Account.objects.create()

    saved = race(
        lambda: Account.objects.filter(pk=account.pk).fenced_claim(token=6),
        account.save,
    )

    saved.result(TIMEOUT)
    account.refresh_from_db()
    assert account.fencing_token == 6
