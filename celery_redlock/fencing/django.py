"""
Rows that refuse a stale writer, through Django's ORM.

    class Account(FencedModel):
        balance = models.BigIntegerField()

    Account.objects.filter(pk=1).fenced_update(balance=F("balance") - 10)

Guarantee: a row is never changed by a call with a token below one that has written it, whatever
the timing, and a call that was refused has changed nothing. It is one `UPDATE … WHERE …
fencing_token <= …`, in the transaction that is open (`atomic()`) or in its own.
Limit: only writes that go through here are guarded; `save()`, `update()` and the admin are not.
What a transaction does to a row *after* a `fenced_update` or `fenced_claim` of that row is guarded
as well, since the row stays locked until the transaction ends.

Import this where models are defined: Django's app registry must be there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db import connections, models, transaction
from django.db.models import Exists, F, Q
from django.db.models.lookups import Exact
from django.db.models.sql.where import AND

from celery_redlock.errors import ConfigurationError, FencedResourceMissing
from celery_redlock.fencing.tokens import stale, token_or_current

__all__ = ["FencedManager", "FencedModel", "FencedQuerySet", "FencingTokenField"]

NAME = "fencing_token"


class FencingTokenField(models.BigIntegerField):
    """
    The highest token that has written a row; 0 in rows that nobody has written under a lock.

    An instance that was loaded long ago does not lower it: `save()` leaves it as it is.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("default", 0)
        kwargs.setdefault("editable", False)
        super().__init__(*args, **kwargs)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return what `save()` writes: the instance's value only into a new row."""
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

        A row that is named by its primary key costs one `UPDATE` and nothing more. If the query set
        may hold several rows, they are all written or none is: the rows are locked and looked at
        first, and no others are written (on SQLite the same statement looks). As with `update()`,
        the query set's own results are fetched anew when they are next asked for; instances that
        were fetched before do not change, and no `save()` runs.

        Args:
            values: what to write, for fields that cannot be given by name (such as `token`).
            token: the fencing token; that of the current lease by default.
            more: what to write by field name, expressions such as `F("balance") + 1` included.

        Raises:
            StaleFencingToken: a row has seen a newer token.
            FencedResourceMissing: there is no such row.
            InvalidFencingToken: the token cannot be one, or is left out where no lease is held.
            ConfigurationError: the model, the fields or the query set cannot be guarded.
        """
        token = token_or_current(token)
        written = {**(values or {}), **more}
        self._check_fields(written)
        guarded: FencedQuerySet = self.order_by()
        guarded._for_write = True
        one = _primary_key(guarded.query.where, guarded.model) is not None
        # Not inside a transaction that is open: leaving an inner block with an error would condemn
        # the outer one, although nothing has been written when a guard refuses.
        own = not one and not connections[guarded.db].in_atomic_block
        with transaction.atomic(using=guarded.db) if own else contextlib.nullcontext():
            hit = guarded._write(token, written, one=one)
        self._result_cache = None
        return hit

    @_alters_data
    def fenced_claim(self, *, token: int | None = None) -> int:
        """
        Announce the token to the rows without changing them; return how many.

        What is written depends on what was read? Then claim the rows *before* reading them, in the
        same `atomic()`. Without, the holder that was superseded can still write between this
        holder's read and its write, and that write is lost. Fetch instances after the claim: one
        that was fetched before it keeps its old values, also as another instance's related object,
        until `refresh_from_db()`. Outside of `atomic()` the rows do not stay locked after the
        claim: write them with `fenced_update` then.
        """
        hit: int = self.fenced_update({}, token=token)
        return hit

    @_alters_data
    async def afenced_update(
        self, values: Mapping[str, Any] | None = None, /, *, token: int | None = None, **more: Any
    ) -> int:
        """Do as `fenced_update`, from a coroutine."""
        token = token_or_current(token)
        hit: int = await sync_to_async(self.fenced_update)(values, token=token, **more)
        return hit

    @_alters_data
    async def afenced_claim(self, *, token: int | None = None) -> int:
        """Do as `fenced_claim`, from a coroutine."""
        return await self.afenced_update(token=token)

    def _write(self, token: int, written: dict[str, Any], *, one: bool) -> int:
        rows = self
        if not one and connections[self.db].features.has_select_for_update:
            seen = self._read_tokens()
            self._raise_refusal(seen, token)
            # What comes to match from now on has not been looked at, and is not locked.
            rows = self.model._base_manager.using(self.db).filter(pk__in=seen.keys)
        elif not one:
            rows = self.exclude(Exists(self.filter(self._blocks(token))))
        hit: int = rows.filter(self._passes(token)).update(**written, fencing_token=token)
        if not hit:
            self._raise_refusal(self._read_tokens(), token)
            raise FencedResourceMissing(
                f"There is no row: {self._resource}. Nothing was written, and the token has not "
                "been judged. Create the row first (get_or_create).",
                self._resource,
            )
        return hit

    def _passes(self, token: int) -> Q:
        passes = Q(fencing_token__lte=token)
        # A column that was added without a default: nobody has written such a row yet.
        return passes | Q(fencing_token=None) if self._field.null else passes

    def _blocks(self, token: int) -> Q:
        bars = Q(fencing_token__gt=token)
        return bars if self._field.null else bars | Q(fencing_token=None)

    def _read_tokens(self) -> _TokenSummary:
        """Return what the rows have seen, locking them where that is possible."""
        rows = self
        if connections[self.db].in_atomic_block:
            # A locking read: under MySQL's REPEATABLE READ a plain one shows the past. The order
            # keeps two calls that lock the same rows from a deadlock.
            rows = self.order_by("pk").select_for_update()
        tokens = dict(rows.values_list("pk", NAME))
        return _TokenSummary(
            keys=list(tokens),
            newest=max((seen or 0 for seen in tokens.values()), default=0),
            unset=list(tokens.values()).count(None),
        )

    def _raise_refusal(self, seen: _TokenSummary, token: int) -> None:
        """Raise what explains that a row was not written; return if nothing does."""
        if seen.newest > token:
            raise stale(self._resource, seen.newest, token)
        if seen.unset and not self._field.null:
            raise ConfigurationError(
                f"{NAME} is NULL in {self._resource}, although the model says that it cannot be. "
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
        """Refuse what Django would not make into one UPDATE that compares and writes."""
        if NAME in written:
            raise ConfigurationError(
                f"{NAME} is not a value to write to {self.model.__name__}: give token=…, or leave "
                "it out where a lease is held."
            )
        for field in (self._field, *(self.model._meta.get_field(name) for name in written)):
            if field.model._meta.concrete_model is not self.model._meta.concrete_model:
                raise ConfigurationError(
                    f"{self.model.__name__}.{field.name} is in the table of {field.model.__name__}"
                    f", and one UPDATE writes one table. Use {field.model.__name__}.objects, with "
                    "a fencing_token in the table that is written."
                )
        # Django puts such conditions into a subquery, and the comparison of tokens with them: the
        # database would not compare again after it has waited for another writer.
        if self.query.count_active_tables() > 1:
            raise ConfigurationError(
                f"The rows of {self.model.__name__} are selected through other tables. Select them "
                "by their own columns: filter(pk__in=…) takes a query set or a list."
            )


FencedManager = models.Manager.from_queryset(FencedQuerySet, "FencedManager")


class FencedModel(models.Model):
    """
    Adds `fencing_token` to a model, and a manager whose query sets can be written under a token.

    A model with a manager of its own makes it from `FencedQuerySet` (`as_manager()`).
    """

    fencing_token = FencingTokenField()
    objects = FencedManager()

    class Meta:
        abstract = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenSummary:
    """
    What the rows have seen.

    Attributes:
        keys: the primary key of each.
        newest: the highest token among them; 0 if none has one.
        unset: how many have NULL.
    """

    keys: list[Any]
    newest: int
    unset: int


def _primary_key(where: Any, model: Any) -> Any:
    """Return the primary key if the conditions give it a value, else None."""
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
