"""
Lock key templates: `"account:{account_id}"` filled from a task's arguments without ambiguity.

Two calls whose placeholders have different texts get different keys, whatever the values contain:
in a value, every character that could be taken for a boundary is percent-encoded, so an encoded
value ends exactly where the template's own separator begins. Simple values (numbers, words, UUIDs,
e-mail addresses) stay as they are. A placeholder compares by text: account 1 is account "1". It
takes no None, which is mostly a missing value; `{account_id!s}` takes None, too, as the text None.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from celery_redlock.errors import LockKeyError
from celery_redlock.protocol.keys import MAX_NAME_BYTES
from celery_redlock.tasks.keys.canonical import canonical, digest, model_fields, scalar
from celery_redlock.tasks.keys.received import as_received, named, reduced

FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<path>(?:\.[^\W_]\w*|\[[^\[\]]+\])*)")
STEP = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")

#: Characters encoded in every value, whatever the template, so that one value gives one text in the
#: templates of all tasks that share a key.
RESERVED = frozenset(" %:/|,;#{}")
#: The characters of an encoding. A separator of only these could be part of a value.
ENCODING = frozenset("%0123456789ABCDEF")
#: Marks the digest of a container. No encoded value contains it, and no separator cuts it.
DIGEST_MARK = "%%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One placeholder: an argument, the steps into it, a format spec, and whether `!s` is set."""

    source: str
    name: str
    path: tuple[str, ...]
    spec: str
    as_text: bool


class Template:
    """
    A parsed template.

    Raises:
        LockKeyError: at construction, when the template cannot work for any call; the message
            starts with the template.
    """

    __slots__ = ("_parts", "_unsafe", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._parts: list[tuple[str, Field | None]] = []
        try:
            for literal, name, spec, conversion in string.Formatter().parse(source):
                found = None if name is None else self._field(name, spec or "", conversion)
                self._parts.append((literal, found))
        except ValueError as exc:
            raise self._error(f"is not a format template: {exc}") from None
        self._unsafe = RESERVED | self._separators()

    @property
    def shape(self) -> tuple[tuple[str, bool], ...]:
        """The text before each placeholder; templates of one shape can give one key."""
        return tuple((literal, found is not None) for literal, found in self._parts)

    @property
    def prefix(self) -> str:
        """The text before the first placeholder."""
        end = next((n for n, (_, found) in enumerate(self._parts) if found), len(self._parts))
        return "".join(literal for literal, _ in self._parts[: end + 1])

    @property
    def names(self) -> set[str]:
        """The arguments that the template reads."""
        return {found.name for _, found in self._parts if found is not None}

    def fill(self, lookup: Callable[[str], Any]) -> str:
        """Return the key for the arguments that `lookup` finds by name."""
        return "".join(
            literal if found is None else literal + self._text(found, lookup(found.name))
            for literal, found in self._parts
        )

    def _field(self, name: str, spec: str, conversion: str | None) -> Field:
        if conversion not in (None, "", "s"):
            raise self._error(
                f"uses the conversion !{conversion} on {{{name}}}; omit it, because values get a "
                "stable text without it (!s also accepts None)"
            )
        if "{" in spec:
            raise self._error(f"nests a placeholder in the format of {{{name}}}; write it out")
        match = FIELD.fullmatch(name)
        if match is None:
            raise self._error(
                f"has the placeholder {{{name}}}; write an argument's name, as in {{account_id}}, "
                "{order.id} or {items[0]} (and {{ }} for braces)"
            )
        steps = tuple(dotted or element for dotted, element in STEP.findall(match["path"]))
        return Field(
            source=name, name=match["name"], path=steps, spec=spec, as_text=conversion == "s"
        )

    def _separators(self) -> set[str]:
        """Choose from the text between each two placeholders a character to encode in values."""
        chosen = set()
        filled = [n for n, (_, found) in enumerate(self._parts) if found is not None]
        for before, after in pairwise(filled):
            # An escaped brace splits the text between two placeholders into several parts.
            between = "".join(literal for literal, _ in self._parts[before + 1 : after + 1])
            usable = [char for char in between if char not in ENCODING]
            if not usable:
                raise self._error(
                    "puts two placeholders next to each other, so that different arguments could "
                    "give one key; separate them, for example with ':'"
                )
            if RESERVED.isdisjoint(usable):
                chosen.add(usable[0])
        return chosen

    def _text(self, found: Field, value: Any) -> str:
        try:
            value = reduced(value)
            for step in found.path:
                value = reduced(_step(value, step))
            leaf = scalar(value)
            if leaf is None and not found.spec:
                return DIGEST_MARK + digest(canonical(value)).upper()
        except LockKeyError as exc:
            raise LockKeyError(f"{{{found.source}}} {exc}") from None
        if value is None and not found.as_text:
            raise LockKeyError(
                f"{{{found.source}}} is None, so all calls without it would share one key; give "
                f"it, or write {{{found.source}!s}} if that is intended"
            )
        text = None if leaf is None else leaf[1]
        if text is None or found.spec:
            text = _formatted(found, text if found.as_text and text is not None else value)
        if len(text) > MAX_NAME_BYTES:
            raise LockKeyError(
                f"{{{found.source}}} has {len(text):,} characters; at most {MAX_NAME_BYTES:,} are "
                "allowed. Name an id of it, or use lock_key=True, which makes a digest"
            )
        return "".join(
            _percent(char) if char in self._unsafe or not char.isprintable() else char
            for char in text
        )

    def _error(self, problem: str) -> LockKeyError:
        return LockKeyError(f"the template {self.source!r} {problem}")


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _formatted(found: Field, value: Any) -> str:
    plain = value.value if isinstance(value, Enum) else as_received(value)
    try:
        return format(plain, found.spec)
    except (TypeError, ValueError) as exc:
        raise LockKeyError(
            f"{{{found.source}}} is a {type(plain).__name__}, which does not take the format "
            f"{found.spec!r}: {exc}"
        ) from None


def _step(value: Any, step: str) -> Any:
    """
    Read one part of a value: an item, an element or an attribute, whichever the value has.

    `.id` and `[id]` mean the same, because what was sent as an object arrives as a mapping.
    """
    if isinstance(value, Mapping):
        if items := named(value, step):
            return items[0]
        raise LockKeyError(f"has no item {step!r}; it has {_listed(map(str, value))}")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and step.isdecimal():
        if int(step) < len(value):
            return value[int(step)]
        raise LockKeyError(f"has no element {step}; it has {len(value)}")
    if step.startswith("_"):
        raise LockKeyError(f"reads the private name {step!r} of {type_of(value)}")
    try:
        found = getattr(value, step)
    except AttributeError:
        known = model_fields(value)
        hint = f"; it has {_listed(known)}" if known else ""
        raise LockKeyError(f"reads {step!r} of {type_of(value)}{hint}") from None
    if callable(found):
        raise LockKeyError(f"reads {step!r} of {type_of(value)}, which is a method")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def type_of(value: Any) -> str:
    """Return the name of a value's type, as errors write it."""
    return "None" if value is None else type(value).__name__
