"""
Rows that refuse a stale writer, with Django's ORM.

    class Account(FencedModel):
        balance = models.BigIntegerField()

    Account.objects.filter(pk=1).fenced_update(balance=F("balance") - 10)

Guarantee: no call changes a row that a newer token has written, whatever the timing, and a refused
call changes nothing. A call writes with one `UPDATE … WHERE … fencing_token <= …`, in the open
transaction (`atomic()`) or in one of its own.
Limit: only these methods are fenced; `save()`, `update()` and the admin are not. After a
`fenced_update` or `fenced_claim` of a row, everything else that the transaction does to the row is
fenced as well, since the row stays locked until the transaction ends.

Import this where you define models: it needs Django's app registry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, models, transaction
from django.db.models import Exists, F, Q
from django.db.models.lookups import Exact
from django.db.models.sql.where import AND

from celery_redlock.errors import ConfigurationError, FencedResourceMissing
from celery_redlock.fencing.arguments import stale, token_or_current

__all__ = ["FencedManager", "FencedModel", "FencedQuerySet", "FencingTokenField"]

NAME = "fencing_token"


class FencingTokenField(models.BigIntegerField):
    """
    The highest token that has written a row; 0 if no holder of a lock has written it.

    `save()` leaves it unchanged, so an instance that was loaded long ago cannot lower it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("default", 0)
        kwargs.setdefault("editable", False)
        super().__init__(*args, **kwargs)

    def contribute_to_class(self, cls: type[models.Model], name: str, *args: Any) -> None:
        """Add the field to a model; `ConfigurationError` unless its name is `fencing_token`."""
        if name != NAME:
            raise ConfigurationError(
                f"{cls.__name__}.{name} is a FencingTokenField, but fences look for a field named "
                f"{NAME}. Rename the field, or derive the model from FencedModel."
            )
        super().contribute_to_class(cls, name, *args)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return what `save()` writes: the instance's value in a new row, else the row's own."""
        return super().pre_save(model_instance, add) if add else F(self.name)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _alters_data(method: _Method) -> _Method:
    """Keep templates from calling a method."""
    method.alters_data = True  # type: ignore[attr-defined]
    return method


class FencedQuerySet(models.QuerySet):
    """A query set whose rows can be written under a fencing token."""

    @_alters_data
    def fenced_update(
        self, values: Mapping[str, Any] | None = None, /, *, token: int | None = None, **more: Any
    ) -> int:
        """
        Write the rows unless one of them has seen a newer token; return how many.

        A filter by primary key costs a single `UPDATE`. If the query set may match several rows,
        either all of them are written or none: a first statement locks them and reads their tokens,
        and only these rows are written (on SQLite one statement does both). As with `update()`, the
        query set fetches its results again when you next use them; instances that were fetched
        before do not change, and no `save()` runs.

        Args:
            values: values for fields that cannot be passed as keywords, such as one named `token`.
            token: the fencing token; the current lease's by default.
            more: values by field name, expressions such as `F("balance") + 1` included.

        Raises:
            StaleFencingToken: a row has seen a newer token.
            FencedResourceMissing: there is no such row.
            InvalidFencingToken: the token is invalid, or none was given outside of a lease.
            ConfigurationError: the model, the fields or the query set cannot be fenced.
        """
        token = token_or_current(token)
        written = {**(values or {}), **more}
        self._check_fields(written)
        rows: FencedQuerySet = self.order_by()
        rows._for_write = True
        one = _primary_key(rows.query.where, rows.model) is not None
        # Not inside an open transaction: an error that leaves an inner block would mark the outer
        # one for rollback, although a refused call has written nothing.
        own = not one and not connections[rows.db].in_atomic_block
        with transaction.atomic(using=rows.db) if own else contextlib.nullcontext():
            count = rows._write(token, written, one=one)
        self._result_cache = None
        return count

    @_alters_data
    def fenced_claim(self, *, token: int | None = None) -> int:
        """
        Let the rows see the token without changing them; return how many.

        If what you write depends on what you read, claim the rows *before* you read them, in the
        same `atomic()`. Otherwise a superseded holder can write between this holder's read and its
        write, and that update is lost. Fetch instances after the claim: one that was fetched before
        keeps its old values until `refresh_from_db()`, even as a related object of another
        instance. Outside of `atomic()` the rows do not stay locked after the claim; use
        `fenced_update` there.
        """
        hit: int = self.fenced_update({}, token=token)
        return hit

    @_alters_data
    async def afenced_update(
        self, values: Mapping[str, Any] | None = None, /, *, token: int | None = None, **more: Any
    ) -> int:
        """`fenced_update` for coroutines."""
        token = token_or_current(token)
        hit: int = await sync_to_async(self.fenced_update)(values, token=token, **more)
        return hit

    @_alters_data
    async def afenced_claim(self, *, token: int | None = None) -> int:
        """`fenced_claim` for coroutines."""
        return await self.afenced_update(token=token)

    def _write(self, token: int, written: dict[str, Any], *, one: bool) -> int:
        rows = self
        if not one and connections[self.db].features.has_select_for_update:
            tokens = self._read_tokens()
            self._raise_refusal(tokens.values(), token)
            # A row that matches only from now on is neither locked nor compared.
            rows = self.model._base_manager.using(self.db).filter(pk__in=list(tokens))
        elif not one:
            rows = self.exclude(Exists(self.filter(self._blocks(token))))
        hit: int = rows.filter(self._passes(token)).update(**written, fencing_token=token)
        if not hit:
            self._raise_refusal(self._read_tokens().values(), token)
            raise FencedResourceMissing(
                f"There is no row: {self._resource}. Nothing was written, and no token was "
                "compared. Create the row first (get_or_create).",
                self._resource,
            )
        return hit

    def _passes(self, token: int) -> Q:
        passes = Q(fencing_token__lte=token)
        # The column was added without a default, and no token has written a row with NULL yet.
        return passes | Q(fencing_token=None) if self._field.null else passes

    def _blocks(self, token: int) -> Q:
        bars = Q(fencing_token__gt=token)
        return bars if self._field.null else bars | Q(fencing_token=None)

    def _read_tokens(self) -> dict[Any, int | None]:
        """Return the rows' tokens by primary key, and lock the rows where that is possible."""
        rows = self
        if connections[self.db].in_atomic_block:
            # A locking read: under MySQL's REPEATABLE READ a plain one shows an old state. The
            # order prevents a deadlock between two calls that lock the same rows.
            rows = self.order_by("pk").select_for_update()
        return dict(rows.values_list("pk", NAME))

    def _raise_refusal(self, seen: Collection[int | None], token: int) -> None:
        """Raise the error that explains why no row was written; return if the tokens show none."""
        newest = max((each or 0 for each in seen), default=0)
        if newest > token:
            raise stale(self._resource, newest, token)
        if None in seen and not self._field.null:
            raise ConfigurationError(
                f"{NAME} is NULL in {self._resource}, although the model declares it NOT NULL. "
                "Set it to 0 where it is NULL, and make the column NOT NULL in the database."
            )

    @property
    def _field(self) -> Any:
        try:
            return self.model._meta.get_field(NAME)
        except FieldDoesNotExist:
            raise ConfigurationError(
                f"{self.model.__name__} has no field {NAME!r}. Derive it from FencedModel, and "
                "migrate."
            ) from None

    @property
    def _resource(self) -> str:
        meta = self.model._meta
        one = _primary_key(self.query.where, self.model)
        if one is None:
            # Without the conditions, whose values may be confidential.
            return f"{meta.db_table} where several rows may match"
        return f"{meta.db_table} where {meta.pk.column} = {one!r}"

    def _check_fields(self, written: Mapping[str, Any]) -> None:
        """Refuse what Django would not turn into one UPDATE that compares and writes."""
        if NAME in written:
            raise ConfigurationError(
                f"{NAME} is not a value to write to {self.model.__name__}: give token=…, or omit "
                "it where the code runs under a lease."
            )
        for field in (self._field, *(self.model._meta.get_field(name) for name in written)):
            if field.model._meta.concrete_model is not self.model._meta.concrete_model:
                raise ConfigurationError(
                    f"{self.model.__name__}.{field.name} is in the table of {field.model.__name__}"
                    f", and one UPDATE writes one table. Use {field.model.__name__}.objects, with "
                    "a fencing_token in the table that is written."
                )
        # Django puts such conditions into a subquery, together with the comparison of tokens: the
        # database would not compare again after it has waited for another writer.
        if self.query.count_active_tables() > 1:
            raise ConfigurationError(
                f"The rows of {self.model.__name__} are selected through other tables. Select them "
                "by their own columns: filter(pk__in=…) takes a query set or a list."
            )


FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")


class FencedModel(models.Model):
    """
    Adds `fencing_token` to a model, and a manager with `fenced_update` and `fenced_claim`.

    A model with its own manager makes it from `FencedQuerySet` (`as_manager()`).
    """

    fencing_token = FencingTokenField()
    objects = FencedManager()

    class Meta:
        abstract = True


def _primary_key(where: Any, model: Any) -> Any:
    """Return the primary key that the conditions demand, None if they demand none."""
    if where.connector != AND or where.negated:
        return None
    for child in where.children:
        if hasattr(child, "children"):
            found = _primary_key(child, model)
            if found is not None:
                return found
        elif isinstance(child, Exact) and not hasattr(child.rhs, "resolve_expression"):
            target = getattr(child.lhs, "target", None)
            if target is not None and target == model._meta.pk:
                return child.rhs
    return None
