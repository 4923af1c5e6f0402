"""The guarded query set: what is written, what is refused, and what Django makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, models, transaction
from django.db.models import F
from django.template import Context, Engine, Template
from django.test.utils import CaptureQueriesContext

from celery_redlock import Lease
from celery_redlock.errors import (
    ConfigurationError,
    FencedResourceMissing,
    InvalidFencingToken,
    StaleFencingToken,
)
from celery_redlock.fencing.django import FencingTokenField
from tests.fencing.django.bank.models import (
    Account,
    Favourite,
    Job,
    Owner,
    SavingsAccount,
    Unfenced,
)

pytestmark = pytest.mark.usefixtures("database")

NO_TOKENS = [0, -1, 1.0, "1", True, False, b"1", 2**53, 2**63, [1]]


@pytest.fixture
def account(database: str) -> Account:
    return Account.objects.create(balance=100, fencing_token=10)


def of(account: Account) -> Any:
    return Account.objects.filter(pk=account.pk)


def stored(account: Account) -> tuple[int, int]:
    return of(account).values_list("balance", "fencing_token").get()


def test_a_newer_token_writes_and_is_remembered(account: Account) -> None:
    assert of(account).fenced_update(balance=5, token=11) == 1

    assert stored(account) == (5, 11)


def test_the_same_token_writes_again_and_again(account: Account) -> None:
    for _ in range(3):
        of(account).fenced_update(balance=F("balance") - 10, token=11)

    assert stored(account) == (70, 11)


def test_an_older_token_is_refused_and_changes_nothing(account: Account) -> None:
    with pytest.raises(StaleFencingToken) as refused:
        of(account).fenced_update(balance=5, token=9)

    assert (refused.value.seen, refused.value.offered) == (10, 9)
    assert refused.value.resource == f"bank_account where id = {account.pk}"
    assert stored(account) == (100, 10)


def test_a_row_that_is_not_there_is_another_error(account: Account) -> None:
    with pytest.raises(FencedResourceMissing):
        Account.objects.filter(pk=99).fenced_update(balance=5, token=11)


def test_an_empty_query_set_is_missing(account: Account) -> None:
    with pytest.raises(FencedResourceMissing):
        Account.objects.none().fenced_update(balance=5, token=11)


def test_one_row_by_its_key_costs_a_single_statement(account: Account) -> None:
    with CaptureQueriesContext(connection) as queries:
        Account.objects.filter(balance=100).filter(pk=account.pk).fenced_update(balance=5, token=11)

    assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]


def test_several_rows_are_written_together(account: Account) -> None:
    Account.objects.create(balance=1)

    assert Account.objects.all().fenced_update(balance=0, token=10) == 2


def test_one_newer_row_among_several_refuses_them_all(account: Account) -> None:
    other = Account.objects.create(balance=1)

    with pytest.raises(StaleFencingToken):
        Account.objects.all().fenced_update(balance=0, token=9)

    assert stored(other) == (1, 0)


def test_a_query_set_that_was_evaluated_before_its_claim_is_evaluated_again(
    account: Account,
) -> None:
    rows = of(account)
    assert [row.balance for row in rows] == [100]
    of(account).fenced_update(balance=150, token=11)

    rows.fenced_claim(token=12)

    assert [row.balance for row in rows] == [150]


def test_rows_that_were_prefetched_are_fetched_again_after_their_claim(account: Account) -> None:
    of(account).update(owner=Owner.objects.create(name="me"))
    (owner,) = Owner.objects.prefetch_related("account_set")
    of(account).fenced_update(balance=150, token=11)

    owner.account_set.fenced_claim(token=12)

    assert [row.balance for row in owner.account_set.all()] == [150]


def test_a_row_that_appears_between_look_and_write_is_not_written(account: Account) -> None:
    appeared = []

    def before_the_write(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and not appeared:
            appeared.append(Account(balance=1, fencing_token=3))
            appeared[0].save()
        return execute(sql, *rest)

    with connection.execute_wrapper(before_the_write):
        hit = Account.objects.filter(balance__gt=0).fenced_update(balance=0, token=11)

    # SQLite looks and writes in one statement, which begins after the row is there.
    assert (hit, stored(appeared[0])) == (
        (1, (1, 3)) if connection.vendor == "postgresql" else (2, (0, 11))
    )


def test_null_where_none_may_be_refuses_all_rows(account: Account) -> None:
    Account.objects.create(balance=1)
    with connection.schema_editor() as editor:
        field = Account._meta.get_field("fencing_token")
        nullable = FencingTokenField(null=True)
        nullable.set_attributes_from_name("fencing_token")
        editor.alter_field(Account, field, nullable)
    of(account).update(fencing_token=None)

    with pytest.raises(ConfigurationError, match="NULL"):
        Account.objects.all().fenced_update(balance=0, token=11)

    assert stored(account) == (100, None)
    assert not Account.objects.filter(balance=0).exists()


def test_a_refusal_leaves_the_open_transaction_usable(account: Account) -> None:
    Account.objects.create(balance=1)
    with transaction.atomic():
        with pytest.raises(StaleFencingToken):
            Account.objects.all().fenced_update(balance=0, token=9)
        of(account).fenced_update(balance=7, token=11)

    assert stored(account) == (7, 11)


def test_the_caller_rolls_back_and_commits(account: Account) -> None:
    with transaction.atomic():
        of(account).fenced_update(balance=5, token=11)
        transaction.set_rollback(True)

    assert stored(account) == (100, 10)


def test_a_claim_makes_room_for_ordinary_changes(account: Account) -> None:
    with transaction.atomic():
        assert of(account).fenced_claim(token=11) == 1
        loaded = of(account).get()
        loaded.balance -= 40
        loaded.save()

    assert stored(account) == (60, 11)
    with pytest.raises(StaleFencingToken):
        of(account).fenced_claim(token=10)


def test_saving_an_old_instance_does_not_lower_the_token(account: Account) -> None:
    of(account).fenced_update(token=11)

    account.balance = 7
    account.save()

    assert stored(account) == (7, 11)


def test_another_database_can_be_named(account: Account) -> None:
    copy = Account.objects.using("second").create(pk=account.pk, fencing_token=20)

    assert Account.objects.using("second").filter(pk=copy.pk).fenced_update(token=20) == 1
    with pytest.raises(StaleFencingToken):
        Account.objects.using("second").filter(pk=copy.pk).fenced_update(token=19)
    assert of(account).fenced_update(token=19) == 1


def test_an_order_does_not_matter(account: Account) -> None:
    assert of(account).order_by("-balance").fenced_update(balance=5, token=11) == 1


def test_a_field_that_is_called_token_is_given_in_a_mapping(account: Account) -> None:
    of(account).fenced_update({"token": "secret"}, token=11)

    assert of(account).get().token == "secret"


def test_a_proxy_model_is_its_original(account: Account) -> None:
    assert Favourite.objects.filter(pk=account.pk).fenced_update(balance=5, token=11) == 1


def test_foreign_keys_are_own_columns(account: Account) -> None:
    owner = Owner.objects.create(name="me")
    of(account).fenced_update(owner=owner, token=11)

    assert Account.objects.filter(owner=owner).fenced_update(balance=5, token=11) == 1


def test_null_counts_as_unwritten_where_the_model_allows_it(database: str) -> None:
    job = Job.objects.create(size=1)

    assert Job.objects.busy().fenced_update(size=2, token=5) == 1
    with pytest.raises(StaleFencingToken):
        Job.objects.filter(pk=job.pk).fenced_update(size=3, token=4)


def test_a_coroutine_writes_claims_and_is_refused(account: Account) -> None:
    async def work() -> None:
        await of(account).afenced_claim(token=11)
        assert await of(account).afenced_update(balance=5, token=11) == 1
        with pytest.raises(StaleFencingToken):
            await of(account).afenced_update(balance=5, token=10)
        await sync_to_async(connections.close_all)()

    asyncio.run(work())

    assert stored(account) == (5, 11)


@pytest.mark.parametrize("token", NO_TOKENS, ids=repr)
def test_what_is_no_token_is_refused(account: Account, token: Any) -> None:
    with pytest.raises(InvalidFencingToken):
        of(account).fenced_update(balance=5, token=token)

    assert stored(account) == (100, 10)


def test_a_token_must_be_given_where_no_lease_is_held(account: Account) -> None:
    with pytest.raises(InvalidFencingToken, match="not run under a lease"):
        of(account).fenced_update(balance=5)


def test_the_token_is_that_of_the_current_lease(account: Account, lease: Lease) -> None:
    of(account).fenced_update(balance=5)

    assert stored(account) == (5, lease.fencing_token)


def test_templates_do_not_write(account: Account) -> None:
    template = Template("{{ rows.fenced_claim }}", engine=Engine())

    assert template.render(Context({"rows": of(account)})) == ""


def test_rows_that_belong_to_an_object_are_guarded_too(account: Account) -> None:
    owner = Owner.objects.create(name="me")
    of(account).update(owner=owner)

    assert owner.account_set.fenced_update(balance=5, token=11) == 1


def test_the_fence_itself_is_no_value(account: Account) -> None:
    with pytest.raises(ConfigurationError, match="token="):
        of(account).fenced_update(fencing_token=5, token=11)


def test_a_model_without_the_field_is_told_what_to_add(database: str) -> None:
    with pytest.raises(ConfigurationError, match="FencedModel"):
        Unfenced.objects.filter(pk=1).fenced_update(token=5)


@pytest.mark.parametrize("values", [{"rate": 1}, {"balance": 1}, {}])
def test_a_model_in_two_tables_is_refused(database: str, values: dict[str, int]) -> None:
    savings = SavingsAccount.objects.create()

    with pytest.raises(ConfigurationError, match=r"Account\.objects"):
        SavingsAccount.objects.filter(pk=savings.pk).fenced_update(values, token=5)


def test_rows_that_are_selected_through_other_tables_are_refused(account: Account) -> None:
    with pytest.raises(ConfigurationError, match="pk__in"):
        Account.objects.filter(owner__name="me").fenced_update(balance=5, token=11)


def test_the_mend_for_that_works(account: Account) -> None:
    owner = Owner.objects.create(name="me")
    of(account).update(owner=owner)
    chosen = Account.objects.filter(owner__name="me").values("pk")

    with CaptureQueriesContext(connection) as queries:
        assert Account.objects.filter(pk__in=chosen).fenced_update(balance=5, token=11) == 1

    (update,) = [query["sql"] for query in queries if query["sql"].startswith("UPDATE")]
    # Outside the subquery, the database compares again after it has waited for another writer.
    assert '"bank_account"."fencing_token" <= 11' in update.partition("WHERE")[2]


def test_a_token_field_of_another_name_is_refused_at_declaration() -> None:
    with pytest.raises(ConfigurationError, match=r"a field named fencing_token"):
        FencingTokenField().contribute_to_class(models.Model, "token")
