"""
Options and settings as the code describes them: names, defaults, accepted values, descriptions.

The descriptions are in the docstrings of `LockOptions` and `RedlockSettings`, and nowhere else.
"""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from celery_redlock.admin.wording import duration
from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.config.options import OPTIONS, LockOptions
from celery_redlock.tasks.config.settings import CHECKS, SELF_DESCRIBING_CHECKS, RedlockSettings

__all__ = ["Described", "attributes_of", "options", "settings"]

#: Defaults whose value would not help a reader.
SHOWN_DEFAULTS = {
    "redlock_nodes": "the broker",
    "redlock_lost_signal": f"`{signal.Signals(RedlockSettings().lost_signal).name}`",
}
#: Fields of the settings that are no settings.
NOT_SETTINGS = frozenset({"defaults", "app"})
#: Settings whose field has another name.
FIELDS = {"nodes": "given_nodes"}

#: The meaning of None in a description.
MEANS = re.compile(r"`None`: (.+?)\.(?= |$)")

QUOTE = "'"
#: Code in the message of a check.
CODE = re.compile(r"\{[^}]*\}|'[^']+'|tenacity\.[\w.]+(\([^)]*\))?|lock_\w+|True|False")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """
    One option or setting.

    Attributes:
        name: as people write it.
        default: Markdown.
        takes: what its check lets through, in the check's own words; empty where it takes much.
        text: Markdown of one paragraph.
    """

    name: str
    default: str
    takes: str
    text: str


def options() -> list[Described]:
    """
    Return every `lock_*` option, in the order in which they are declared.

    Raises:
        LookupError: one has no description.
    """
    texts = attributes_of(LockOptions)
    defaults = {field.name: field.default for field in fields(LockOptions)}
    _complete(set(defaults), set(OPTIONS), "lock_", LockOptions)
    return [
        _described(f"lock_{name}", default, OPTIONS[name], _text(texts, name))
        for name, default in defaults.items()
    ]


def settings() -> list[Described]:
    """
    Return every `redlock_*` setting that is no option's default, in the order of declaration.

    Raises:
        LookupError: one has no description.
    """
    texts = attributes_of(RedlockSettings)
    checks = {**CHECKS, **SELF_DESCRIBING_CHECKS}
    names = {FIELDS.get(name, name): name for name in checks}
    found = {}
    for field in fields(RedlockSettings):
        if field.name in NOT_SETTINGS:
            continue
        name = names.get(field.name, field.name)
        found[name] = _described(
            f"redlock_{name}", _default(field), CHECKS.get(name), _text(texts, field.name)
        )
    _complete(set(found), set(checks), "redlock_", RedlockSettings)
    return list(found.values())


def attributes_of(cls: type) -> dict[str, str]:
    """Return the entries of the `Attributes:` section of a docstring, each as one paragraph."""
    _, _, section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    entries: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        begins = re.match(r" {4}(\w+): (.*)", line)
        if begins:
            name = begins[1]
            entries[name] = begins[2]
        elif line.strip():
            entries[name] += " " + line.strip()
    return entries


def _text(texts: dict[str, str], field: str) -> str:
    if field not in texts:
        raise LookupError(f"{field} has no entry under `Attributes:` in the docstring: write one.")
    return texts[field]


def _described(name: str, default: Any, check: Callable[[Any], Any] | None, text: str) -> Described:
    takes = _takes(check) if check else ""
    shown = f"`{default}`"
    if name in SHOWN_DEFAULTS:
        shown = SHOWN_DEFAULTS[name]
    elif default is None and (meaning := MEANS.search(text)):
        shown = f"`None` ({meaning[1]})"
    elif isinstance(default, float) and takes.startswith("seconds"):
        shown = f"{default:g} s"
        if (length := duration(default)) != shown:
            shown += f" ({length})"
    return Described(name=name, default=shown, takes=takes, text=text)


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    assert field.default_factory is not MISSING, f"{field.name} has no default"
    return field.default_factory()


def _complete(found: set[str], checked: set[str], prefix: str, cls: type) -> None:
    if found != checked:
        odd = ", ".join(sorted(prefix + name for name in found ^ checked))
        raise LookupError(f"{odd}: in only one of the checks and the fields of {cls.__name__}.")


def _takes(check: Callable[[Any], Any]) -> str:
    """Ask a check what it wants, by giving it what it cannot want."""
    refusals = [_refusal(check, value) for value in (object(), -1.0)]
    for refusal in reversed(refusals):
        _, least, seconds = refusal.partition("give at least ")
        if least:
            return f"seconds as a number, or a `timedelta`; at least {seconds}"
    _, mend, wanted = re.sub("; (use|give) ", "\0", refusals[0]).partition("\0")
    return CODE.sub(lambda match: f"`{match[0].strip(QUOTE)}`", wanted) if mend else ""


def _refusal(check: Callable[[Any], Any], value: Any) -> str:
    try:
        check(value)
    except ConfigurationError as exc:
        return exc.message
    return ""
