"""Schedulers that send an entry once for each tenant, in the ways in which people write them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery import Task
from celery.beat import Scheduler

from celery_redlock import RedlockTask

TENANTS = ["acme", "bolt", "coda"]

_tenant: ContextVar[str] = ContextVar("tenant")


@contextmanager
def tenant_context(tenant: str) -> Iterator[None]:
    token = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(token)


class TenantTask(Task):  # type: ignore[misc]  # Celery is untyped
    """As tenant-schemas-celery's: the header of each message has the tenant that is set."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        headers = {"_schema_name": _tenant.get(), **(options.pop("headers", None) or {})}
        return super().apply_async(*args, headers=headers, **options)


class LockingTenantTask(TenantTask, RedlockTask):
    abstract = True


class TenantsMixin:
    """What the tenants are, and what was returned for each."""

    tenants: list[str] = TENANTS
    results: list[Any]

    def note(self, result: Any) -> None:
        self.__dict__.setdefault("results", []).append(result.id)


class InContext(TenantsMixin):
    """As tenant-schemas-celery's: `apply_entry` sends the entry itself in the tenant's context."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        entry.options.setdefault("headers", {}).get("_all_tenants_only")
        for tenant in self.tenants:
            with tenant_context(tenant):
                try:
                    result = self.apply_async(entry, producer=producer, advance=False)
                except Exception as error:
                    self.__dict__.setdefault("errors", []).append(repr(error))
                else:
                    self.note(result)


class InHeaders(TenantsMixin):
    """`apply_async` sends copies of the entry, with the tenant in their headers."""

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        for tenant in self.tenants:
            sent = copy.copy(entry)
            headers = {**entry.options.get("headers", {}), "_schema_name": tenant}
            sent.options = {**entry.options, "headers": headers}
            result = super().apply_async(sent, producer=producer, advance=advance, **kwargs)
            self.note(result)
        return result


class InArguments(TenantsMixin):
    """`apply_entry` writes the tenant into the entry, and has Celery's method send it."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        for tenant in self.tenants:
            entry.kwargs["tenant"] = tenant
            super().apply_entry(entry, producer=producer)


class InContextScheduler(InContext, Scheduler): ...  # type: ignore[misc]


class InHeadersScheduler(InHeaders, Scheduler): ...  # type: ignore[misc]


class InArgumentsScheduler(InArguments, Scheduler): ...  # type: ignore[misc]


SCHEDULERS = [InContextScheduler, InHeadersScheduler, InArgumentsScheduler]
