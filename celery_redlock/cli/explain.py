"""
`celery-redlock explain`: what a task's options mean, without a node or a broker.
"""

from __future__ import annotations

import ast
import difflib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import click

from celery_redlock.admin.explanation import (
    Explanation,
    KeyText,
    Stretch,
    as_data,
    explain,
    signature_of,
)
from celery_redlock.admin.wording import duration
from celery_redlock.cli.output import print_json, printable
from celery_redlock.cli.target import Target
from celery_redlock.protocol.texts import enumerated
from celery_redlock.tasks.adoption import lock_matching_tasks
from celery_redlock.tasks.border import TaskLike
from celery_redlock.tasks.config.options import OPTIONS, PREFIX
from celery_redlock.tasks.config.settings import matches, read_settings

#: The narrowest and the widest line on a terminal, in characters, and the widest name of a case.
_NARROWEST, _WIDEST, _NAME = 50, 100, 26
#: A text that begins like this is a value that was not written to its end, and no plain word.
_QUOTES = ("[", "{", "(", '"', "'")
#: The widest part of the drawing, in characters.
_WIDEST_PART = 30
#: The start of a part, a taken key, a free one, and the arrow: without and with Unicode.
_ASCII, _UNICODE = ("|", "=", ".", "^"), ("├", "━", "┈", "▲")
_COLOURS = {"reserved": "cyan", "held": "green", "kept": "yellow", "counted": "yellow"}


def explain_task(
    target: Target,
    name: str,
    words: Sequence[str],
    args: str | None,
    kwargs: str | None,
    *,
    as_json: bool,
) -> int:
    """
    Print what the options of a task mean; return 1 if it takes no lock.

    Args:
        target: the app.
        name: the task's name.
        words: the arguments of a call: JSON, Python literals, or plain words.
        args: the positional arguments as a JSON array instead.
        kwargs: the keyword arguments as a JSON object.
        as_json: print one JSON object.

    Raises:
        ConfigurationError: there is no such app, or it cannot work as it is written.
        LockKeyError: no key can be made from the arguments.
        click.UsageError: there is no such task, or the arguments are not those of the task.
    """
    task = _task(target, name)
    plan = getattr(task, "redlock_plan", None)
    if plan is None or plan.keys is None:
        return _print_unlocked(task, as_json=as_json)
    call = _call(task, words, args, kwargs)
    explanation = explain(task, read_settings(task.app), call)
    if as_json:
        print_json(as_data(explanation))
    else:
        _print(explanation)
    return 0


def _task(target: Target, name: str) -> Any:
    """Return a task of the app once all modules with tasks are imported."""
    app = target.app()
    app.loader.import_default_modules()
    lock_matching_tasks(app)
    if name in app.tasks:
        return app.tasks[name]
    own = {known: known.rpartition(".")[2] for known in app.tasks if not matches("celery.*", known)}
    # Compared without the modules, which would make any two tasks of one look alike.
    close = difflib.get_close_matches(name.rpartition(".")[2], own.values())
    near = [known for known, last in own.items() if last in close]
    hint = f"did you mean {' or '.join(near)}?" if near else f"its tasks are {enumerated(own)}."
    raise click.UsageError(f"the app has no task {name!r}; {hint}")


def _call(
    task: TaskLike, words: Sequence[str], args: str | None, kwargs: str | None
) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of the call; None if the task has arguments and none is given."""
    signature = signature_of(task)
    if words and args is not None:
        raise click.UsageError("give the arguments either after the task or with --args.")
    positional = [_value(word) for word in words] if args is None else _json(args, list, "--args")
    named = {} if kwargs is None else _json(kwargs, dict, "--kwargs")
    if not (positional or named or args or kwargs) and signature.parameters:
        return None
    try:
        signature.bind(*positional, **named)
    except TypeError as exc:
        raise click.UsageError(f"{task.name}{signature}: {exc}.") from None
    return positional, named


def _value(word: str) -> Any:
    """Return an argument: JSON, a Python literal, or else the word itself."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(word)
        except (ValueError, SyntaxError):
            continue
    if word.startswith(_QUOTES):
        raise click.UsageError(f"the argument {word} is neither JSON nor a Python literal.")
    return word


def _json(text: str, kind: type, option: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise click.UsageError(f"{option} is not JSON: {exc}.") from None
    if not isinstance(found, kind):
        shape = "an array, such as '[7]'" if kind is list else "an object, such as '{\"id\": 7}'"
        raise click.UsageError(f"{option} is not {shape}.")
    return found


def _print_unlocked(task: TaskLike, *, as_json: bool) -> int:
    if as_json:
        print_json({"task": task.name, "keys": []})
        return 1
    idle = [PREFIX + name for name in OPTIONS if hasattr(task, PREFIX + name)]
    reason = f" although it has {', '.join(idle)}: it is no RedlockTask" if idle else ""
    _print_wrapped(
        f"{task.name} takes no lock{reason}. Any number of its bodies may run at the same time."
    )
    _print_wrapped(
        "To give it one, write @app.task(base=RedlockTask, lock_key=True), or in the settings "
        f'redlock_tasks = {{"{task.name}": {{"lock_key": True}}}}.'
    )
    return 1


def _print(explanation: Explanation) -> None:
    click.secho(printable(f"{explanation.task}{explanation.call}"), bold=True)
    _print_rows([("key", _key(key)) for key in explanation.keys])
    if explanation.shared_with:
        _print_rows([("shared with", ", ".join(explanation.shared_with))])
    _print_rows([("bodies", explanation.bodies)])
    click.echo()
    encoding = sys.stdout.encoding or "ascii"
    for line in drawing(explanation.stretches, _width() - 2, encoding):
        click.echo(f"  {line}")
    shared = "this key" if len(explanation.keys) == 1 else "one of these keys"
    _print_head(f"Another call with {shared}")
    _print_rows([(case.when, case.text) for case in explanation.another_call])
    _print_head("If")
    _print_rows([(case.when, case.text) for case in explanation.failures])
    _print_head("Options")
    defaults = [option for option in explanation.options if option.origin == "default"]
    set_ = [option for option in explanation.options if option.origin != "default"]
    _print_rows([(f"{it.name}", f"{it.value}, from {it.origin}") for it in set_])
    _print_rows([("by default", ", ".join(f"{it.name} {it.value}" for it in defaults))])


def drawing(stretches: Sequence[Stretch], width: int, encoding: str) -> Iterator[str]:
    """
    Iterate over the lines of a drawing of a call's life: one line for its key.

    It shows where the key is taken, and where another call lands.

    Args:
        stretches: the parts of the call's life.
        width: the most characters in a line.
        encoding: what the terminal reads; where it lacks a character, the drawing is in ASCII.
    """
    start, taken, free, arrow = _UNICODE if _has(encoding) else _ASCII
    cell = min(_WIDEST_PART, width // len(stretches))
    yield from _cells([stretch.begins for stretch in stretches], cell)
    bars = (
        f"{start}{(taken if stretch.key else free) * 2} {stretch.key or 'free'} ".ljust(
            cell, taken if stretch.key else free
        )
        for stretch in stretches
    )
    yield "".join(
        click.style(bar, fg=_COLOURS.get(stretch.key))
        for bar, stretch in zip(bars, stretches, strict=True)
    )
    yield from _cells([stretch.lasts for stretch in stretches], cell)
    yield from _cells([f"{arrow} {stretch.another}" for stretch in stretches], cell)


def _cells(texts: Sequence[str], width: int) -> Iterator[str]:
    """Iterate over the lines of texts that are wrapped side by side."""
    columns = [textwrap.wrap(text, width - 2) for text in texts]
    for row in zip_longest(*columns, fillvalue=""):
        yield "".join(text.ljust(width) for text in row).rstrip()


def _has(encoding: str) -> bool:
    try:
        "".join(_UNICODE).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _key(key: KeyText) -> str:
    if key.slots is None:
        return f"{key.text}, held by as many calls as a function allows"
    if key.period:
        return f"{key.text}, granted at most {key.slots} times in {duration(key.period)}"
    return key.text if key.slots == 1 else f"{key.text}, held by at most {key.slots} calls"


def _print_head(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns, both broken between words."""
    before = ""
    for name, text in rows:
        left = textwrap.wrap(name, _NAME)
        right = _wrapped("The same." if text == before else text, _width() - _NAME - 4)
        # A line is read as fast as the remark that it is the same.
        before = text if len(right) > 1 else before
        for cell, rest in zip_longest(left, right, fillvalue=""):
            click.echo(f"  {cell.ljust(_NAME)}  {rest}".rstrip())


def _print_wrapped(text: str) -> None:
    for line in _wrapped(text, _width()):
        click.echo(line)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, break_long_words=False, break_on_hyphens=False)


def _width() -> int:
    """Return the characters in a line: those of the terminal, as far as the text reads well."""
    columns = shutil.get_terminal_size((_WIDEST, 24)).columns
    return max(_NARROWEST, min(_WIDEST, columns))
