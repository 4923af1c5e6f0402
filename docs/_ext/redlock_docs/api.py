"""
The public classes and functions, read from the source: nothing is imported, so nothing is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from griffe import ParameterKind as Kind

from .links import anchor_of

__all__ = ["API", "entries"]

PACKAGE = "celery_redlock"
ROOT = Path(__file__).resolve().parents[3]

#: All that are public of a class, also by a base in the package; all names that a module lists.
ALL = "*"

#: By section: each name, and the members that have entries of their own.
API: dict[str, dict[str, str]] = {
    "tasks": {
        "RedlockTask": "lock_keys lock_holder lock_usage release_lock revoke_queued lease",
        "lock_options": "",
        "TaskLockOptions": "",
        "LockHolder": "",
        "LockUsage": "free",
        "DuplicateResult": "readable get",
        "is_duplicate": "",
        "is_skipped": "",
        "SkippedResult": "",
        "pause": "",
        "resume": "",
        "current_lease": "",
        "Tick": "due_at",
    },
    "locks": {
        "Redlock": "acquire lock watch unwatch holder holders force_release pause resume "
        "disconnect close node_names",
        "Lease": "key keys slots slot owner fencing_token ttl expires_in is_valid check lost "
        "mark_lost extend release",
        "AsyncRedlock": "acquire lock watch unwatch holder holders force_release pause resume "
        "aclose node_names",
        "AsyncLease": "key keys slots slot owner fencing_token ttl expires_in is_valid check lost "
        "extend release",
        "Limit": "",
        "Rate": "",
        "core.LockInfo": "",
        "core.settings.ClientOptions": "",
        "core.options.AcquireOptions": "",
        "core.arm_nodes": "",
        "core.node_admin.ArmResult": "serves",
    },
    "observing": {
        "observe": "",
        "core.instrumentation.AcquireDetails": "",
        "core.instrumentation.ExtendDetails": "",
        "core.instrumentation.LossDetails": "",
        "core.instrumentation.ReleaseDetails": "",
        "core.instrumentation.QuarantineDetails": "",
        "core.instrumentation.Outcome": "",
        "LossReason": "",
        "prometheus.export_metrics": "",
        "opentelemetry.trace_locks": "",
    },
    "web": {"web.locks_app": ""},
    "beat": {"beat.RedlockScheduler": ""},
    "fencing": {
        "fencing.RedisFence": ALL,
        "fencing.AsyncRedisFence": ALL,
        "fencing.FileFence": ALL,
        "fencing.S3Fence": ALL,
        "fencing.TokenStore": ALL,
        "fencing.AsyncTokenStore": ALL,
        "fencing.FileTokenStore": ALL,
        "fencing.MemoryTokenStore": ALL,
        "fencing.fencing_headers": "",
        "fencing.FENCING_HEADER": "",
        "fencing.FENCING_KEY": "",
        "fencing.raise_if_stale": "",
        "fencing.WsgiFencingMiddleware": "",
        "fencing.AsgiFencingMiddleware": "",
        "fencing.checked_token": "",
        "fencing.token_or_current": "",
        "fencing.slot_resource": "",
    },
    "sqlalchemy": {"fencing.sqlalchemy": ALL},
    "django": {
        "fencing.django.FencedQuerySet": "fenced_update fenced_claim afenced_update afenced_claim"
    },
    "testing": {
        "testing.LocalCluster": ALL,
        "testing.LocalSentinel": ALL,
        "testing.TcpProxy": ALL,
        "testing.LocalClusterError": "",
    },
}

#: The names of docstring sections on a page.
LISTS = {"parameters": "Arguments", "attributes": "Attributes", "raises": "Raises"}
WIDTH = 100


def entries(section: str) -> str:
    """Links to the classes and functions of a section, and each with signature and docstring."""
    names = dict(_listed(section))
    links = " · ".join(f"[`{name}`](#{anchor_of(name)})" for name in names)
    return "\n\n".join([links, *(part for name in names for part in _entry(name, names[name]))])


def _listed(section: str) -> Iterator[tuple[str, str]]:
    for name, members in API[section].items():
        found = _find(name)
        if found.is_module:
            yield from ((f"{name}.{each}", "") for each in found.exports)
        else:
            yield name, members


def _entry(name: str, members: str) -> Iterator[str]:
    found = _find(name)
    yield _described(name, found, level=3)
    for member in _public(found) if members == ALL else members.split():
        yield _described(f"{found.name}.{member}", found.all_members[member], level=4)


def _described(shown: str, found: Any, *, level: int) -> str:
    parts = [f"{'#' * level} `{shown}`", f"```text\n{_signature(found)}\n```"]
    if found.docstring is not None:
        parts += [_section(one) for one in found.docstring.parse("google")]
    if found.is_class and _is_enum(found):
        rows = "\n".join(f"| `{one.name}` | `{one.value}` |" for one in found.attributes.values())
        parts.append(f"| member | value |\n| --- | --- |\n{rows}")
    return "\n\n".join(part for part in parts if part)


def _is_enum(found: Any) -> bool:
    return any("Enum" in str(base) for base in found.bases)


def _signature(found: Any) -> str:
    if found.is_attribute:
        what = f": {found.annotation}" if found.annotation is not None else ""
        return f"{found.name}{what}" + ("" if "property" in found.labels else f" = {found.value}")
    named = [one for one in found.parameters if one.name not in ("self", "cls")]
    if found.is_class and not named:
        return f"class {found.name}"
    given = [_parameter(one) for one in named]
    kinds = [one.kind for one in named]
    if Kind.keyword_only in kinds and Kind.var_positional not in kinds:
        given.insert(kinds.index(Kind.keyword_only), "*")
    if Kind.positional_only in kinds:
        given.insert(kinds.count(Kind.positional_only), "/")
    before, after = ("class ", "") if found.is_class else _around(found)
    line = f"{before}{found.name}({', '.join(given)}){after}"
    if len(line) <= WIDTH:
        return line
    listed = "".join(f"    {one},\n" for one in given)
    return f"{before}{found.name}(\n{listed}){after}"


def _around(function: Any) -> tuple[str, str]:
    """Return the text before the name of a function, and the one behind its parameters."""
    after = f" -> {function.returns}" if function.returns is not None else ""
    if any("contextmanager" in str(one.value) for one in function.decorators):
        return "", after.replace("Iterator", "ContextManager")
    return "async " if "async" in function.labels else "", after


def _parameter(one: griffe.Parameter) -> str:
    stars = {Kind.var_positional: "*", Kind.var_keyword: "**"}
    name = f"{stars.get(one.kind or Kind.keyword_only, '')}{one.name}"
    typed = f"{name}: {one.annotation}" if one.annotation is not None else name
    if one.default is None or one.kind in stars:
        return typed
    return f"{typed} = {one.default}" if one.annotation is not None else f"{typed}={one.default}"


def _section(section: griffe.DocstringSection) -> str:
    kind, value = section.kind.value, section.value
    if kind == "text":
        return _code(value)
    if kind in LISTS:
        return f"{LISTS[kind]}:\n\n" + "\n".join(
            f"- {_named(one)}: {_indented(_code(one.description))}" for one in value
        )
    if kind in ("returns", "yields"):
        text = "\n".join(one.description for one in value)
        return f"{kind.capitalize()}: {_code(text)}"
    if kind == "examples":
        return "Example:\n\n" + "\n\n".join(_code(text) for _, text in value)
    return f"{value.kind.capitalize()}:\n\n{_code(value.contents)}"  # an admonition


def _named(one: Any) -> str:
    return f"`{one.name}`" if hasattr(one, "name") else f"`{one.annotation}`"


def _code(text: str) -> str:
    """Let a page's code be what the player of the pages only reads."""
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    return re.sub(r"^( *)```python$", r"\1```py", text, flags=re.MULTILINE).strip()


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _public(found: Any) -> list[str]:
    return [
        name
        for name, one in {**found.members, **found.inherited_members}.items()
        if not name.startswith("_") and (one.is_function or "property" in one.labels)
    ]


def _find(name: str) -> Any:
    """Return the class, function or value of a public name, wherever it is defined."""
    found = _package()[name]
    return found.final_target if found.is_alias else found


@cache
def _package() -> Any:
    logging.getLogger("griffe").setLevel(logging.ERROR)  # types of other packages
    return griffe.load(PACKAGE, search_paths=[str(ROOT)], allow_inspection=False)
