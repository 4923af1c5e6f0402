"""
The log events of the package, as its calls give them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import celery_redlock

__all__ = ["LogEvent", "log_events", "read_events"]

PACKAGE = Path(celery_redlock.__file__).parent
LEVELS = {"debug", "info", "warning", "error"}
#: A field in a text, with its conversion.
SHOWN = re.compile(r"%\((\w+)\)[-#0 +]*\d*(?:\.\d+)?[a-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """
    A call that logs.

    Attributes:
        code: the event code.
        levels: the names of the levels that it can have.
        text: with named fields, as `logging` formats it.
        fields: their names, in order, with those that the text does not show.
        module: below the package, with dots.
    """

    code: str
    levels: tuple[str, ...]
    text: str
    fields: tuple[str, ...]
    module: str

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the fields that the text shows."""
        return tuple(SHOWN.findall(self.text))

    @property
    def template(self) -> str:
        """The text with `{name}` for each field."""
        return SHOWN.sub(r"{\1}", self.text)


@cache
def log_events() -> tuple[LogEvent, ...]:
    """
    Return the events of the whole package, which a process reads once.

    Raises:
        LookupError: as `read_events`.
    """
    return tuple(
        event
        for path in sorted(PACKAGE.rglob("*.py"))
        if "event_logger" in (source := path.read_text())  # most modules log nothing
        for event in read_events(source, ".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    )


def read_events(source: str, module: str) -> list[LogEvent]:
    """
    Return the events of one module.

    Raises:
        LookupError: a logger is used where the event, level, text and fields of a record
            cannot be read.
    """
    nodes = list(ast.walk(ast.parse(source)))
    loggers = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_call_of(node.value, "event_logger")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    events = list(_events_in(nodes, loggers, module))
    uses = sum(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in loggers
        for node in nodes
    )
    if uses != len(events):
        raise LookupError(f"{module} uses a logger other than to log, or passes it on.")
    return events


def _events_in(nodes: Iterable[ast.AST], loggers: set[str], module: str) -> Iterator[LogEvent]:
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        # `logger.info(...)`, or its parts in `call_in_app(logger.info, ...)` and `partial`.
        method, *args = call.args if _passes_on(call) else [call.func, *call.args]
        if not (
            isinstance(method, ast.Attribute)
            and isinstance(method.value, ast.Name)
            and method.value.id in loggers
        ):
            continue
        where = f"{module}, line {call.lineno}"
        levels = _levels(method.attr, args.pop(0) if method.attr == "log" else None)
        texts = [arg.value for arg in args if isinstance(arg, ast.Constant)]
        if not levels or len(args) != 2 or [type(text) for text in texts] != [str, str]:
            raise LookupError(f"{where}: a level, the event or the text is no literal.")
        names = [keyword.arg for keyword in call.keywords if keyword.arg != "exc_info"]
        if None in names:
            raise LookupError(f"{where}: the fields are not named there.")
        code, text = map(str, texts)
        yield LogEvent(
            code=code, levels=levels, text=text, fields=tuple(map(str, names)), module=module
        )


def _levels(method: str, level: ast.expr | None) -> tuple[str, ...]:
    if level is not None:
        return tuple(
            node.attr
            for node in ast.walk(level)
            if isinstance(node, ast.Attribute) and _is_name(node.value, "logging")
        )
    name = "error" if method == "exception" else method
    return (name.upper(),) if name in LEVELS else ()


def _passes_on(call: ast.Call) -> bool:
    return bool(call.args) and any(_is_call_of(call, name) for name in ("call_in_app", "partial"))


def _is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and _is_name(node.func, name)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
