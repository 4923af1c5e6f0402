"""
Parts of pages, as Markdown, made from the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from celery_redlock import errors, signals
from celery_redlock.cli.commands import redlock
from celery_redlock.tasks.config.option_values import MODES
from celery_redlock.tasks.config.options import PER_TASK, PREFIX
from celery_redlock.tasks.rules import arrival, ending
from celery_redlock.tasks.rules import publish as rules_publish
from celery_redlock.tasks.rules.facts import Row
from celery_redlock.testing import plugin

from . import api
from .described import Described, attributes_of, options, settings
from .links import anchor_of
from .log_events import log_events
from .measured import comparisons, cost_of_a_lock, machine

__all__ = ["PAGES"]

ROOT = Path(__file__).resolve().parents[3]
CONTAINERS = ROOT / "docker" / "README.md"
TROUBLESHOOTING = ROOT / "docs" / "how-to" / "troubleshoot.md"

#: The options by what people ask for when they look for one.
OPTION_GROUPS = {
    "Which calls belong together?": ("lock_key", "lock_limit", "lock_rate"),
    "When is the key taken and released?": (
        "lock_mode",
        "lock_debounce",
        "lock_window",
        "lock_at_least_for",
    ),
    "What if the key is taken when a worker looks?": ("lock_on_conflict",),
    "What if the key is taken when a publisher sends?": ("lock_on_duplicate",),
    "How does a task wait?": (
        "lock_wait",
        "lock_retry",
        "lock_fair",
        "lock_give_up_after",
        "lock_starting_deadline",
        "lock_skip_result",
    ),
    "How long do things last?": (
        "lock_ttl",
        "lock_max_hold",
        "lock_queue_ttl",
        "lock_dedupe_window",
    ),
    "What if something fails?": ("lock_on_unavailable", "lock_on_lost"),
}

#: The line of a section about troubleshooting that names what it is about.
ABOUT = re.compile(r"^(?:Log events?|Error): .+", flags=re.MULTILINE)

#: Links to files that are no pages of the site.
FILE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#|/)[^)]*\)")


def option_sections() -> str:
    """A section for each `lock_*` option."""
    return "\n\n".join(_section(option, _option_facts(option)) for option in options())


def setting_sections() -> str:
    """A section for each setting that is not an option's default."""
    return "\n\n".join(_section(setting, _setting_facts(setting)) for setting in settings())


def grouped_options() -> str:
    """
    All options at a glance, by the question that they answer.

    Raises:
        LookupError: an option is in no group, or in two.
    """
    by_name = {option.name: option for option in options()}
    grouped = [name for names in OPTION_GROUPS.values() for name in names]
    if sorted(grouped) != sorted(by_name):
        odd = ", ".join(sorted({*grouped} ^ {*by_name})) or "a name is there twice"
        raise LookupError(f"OPTION_GROUPS needs each option once: {odd}.")
    return "\n\n".join(
        f"**{question}**\n\n" + _at_a_glance("option", [by_name[name] for name in names])
        for question, names in OPTION_GROUPS.items()
    )


def setting_table() -> str:
    """All settings at a glance, with those that are the defaults of options."""
    rows = [
        (f"`{setting}`", option.default, f"[`{option.name}`](options.md#{anchor_of(option.name)})")
        for option in options()
        if (setting := _setting_of(option))
    ]
    of_options = _table(("setting", "default", "sets the default of"), rows)
    return f"{_at_a_glance('setting', settings())}\n\n{of_options}"


def mode_table() -> str:
    """The effect of each `lock_mode`, as far as the code knows it."""

    def yes(answer: bool) -> str:
        return "yes" if answer else "no"

    rows = (
        (
            f"`{mode.name}`",
            yes(mode.at_publish),
            yes(mode.in_body),
            yes(mode.in_body) if not mode.own_queue_key else "yes, on a second key",
            yes(mode.for_window),
        )
        for mode in MODES.values()
    )
    head = (
        "`lock_mode`",
        "acquired when the task is sent",
        "the body has a lease and a token",
        "held while the body runs",
        "stays held for `lock_window`",
    )
    return _table(head, rows)


def rule_tables() -> str:
    """
    The tables that decide about messages: for each rule its reason and what follows.

    Raises:
        LookupError: no function decides by a table.
    """
    return "\n\n".join(
        f"### {_sentence(_decided_by(module, name))[:-1]}\n\n"
        + _table(("because", "then"), [(_cell(row.name), _outcome(row.then)) for row in rows])
        for module in (rules_publish, arrival, ending)
        for name, rows in vars(module).items()
        if isinstance(rows, tuple) and rows and isinstance(rows[0], Row)
    )


def _decided_by(module: ModuleType, table: str) -> str:
    """Return the first line of the function that decides by a table, as a heading."""
    for function in vars(module).values():
        if inspect.isfunction(function) and re.search(rf"\b{table}\b", inspect.getsource(function)):
            line = (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")
            return line.removeprefix("Return ")
    raise LookupError(f"{module.__name__}.{table}: no function decides by it.")


def _outcome(action: Any) -> str:
    if isinstance(action, bool) or action is None:
        return {True: "yes", False: "no", None: "nothing"}[action]
    source = inspect.getsource(type(action))
    comment = re.search(rf"^    {action.name} = .+?  #: (.+)$", source, flags=re.MULTILINE)
    return f"`{action.name}`" + (f": {_cell(comment[1])}" if comment else "")


def error_tree() -> str:
    """The errors and what each is a kind of."""

    def lines(cls: type, depth: int) -> Iterator[str]:
        link = f"[`{cls.__name__}`](#{anchor_of(cls.__name__)})"
        yield f"{'  ' * depth}- {link}: {_first_line(cls)}"
        for child in sorted(cls.__subclasses__(), key=lambda child: child.__name__):
            if child.__name__ in errors.__all__:
                yield from lines(child, depth + 1)

    return "\n".join(lines(errors.RedlockError, 0))


def error_names() -> list[str]:
    """Return the public errors; what else is in their module is described elsewhere."""
    return [name for name in errors.__all__ if issubclass(getattr(errors, name), Exception)]


def error_entries() -> str:
    """Each error with its attributes."""
    links = remedies()
    return "\n\n".join(_error_entry(name, links.get(name)) for name in error_names())


def remedies() -> dict[str, str]:
    """Return, for log events and errors, the link to the section about their cause and remedy."""
    links: dict[str, str] = {}
    for section in TROUBLESHOOTING.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        for name in re.findall(r"`([\w-]+)`", " ".join(ABOUT.findall(text))):
            links[name] = f"../how-to/{TROUBLESHOOTING.name}#{anchor_of(heading)}"
    return links


def _error_entry(name: str, link: str | None) -> str:
    cls = getattr(errors, name)
    text = (inspect.getdoc(cls) or "").partition("\nAttributes:")[0].strip()
    rows = [(f"`{name}`", _cell(what)) for name, what in attributes_of(cls).items()]
    table = f"\n\n{_table(('attribute', 'what it is'), rows)}" if rows else ""
    remedy = f"\n\n[Causes and remedies]({link})." if link else ""
    return f"### `{name}`\n\nSubclass of `{cls.__base__.__name__}`. {text}{remedy}{table}"


def signal_tables() -> str:
    """
    The signals' own docstring, with its tables.

    Raises:
        LookupError: a signal has no row in them, or a row no signal.
    """
    doc = (inspect.getdoc(signals) or "").partition("\n\nExample:\n")[0]
    named = set(re.findall(r"^\| `(\w+)`", doc, flags=re.MULTILINE))
    odd = named ^ set(signals.__all__)
    if odd:
        raise LookupError(
            f"{', '.join(sorted(odd))}: in only one of celery_redlock.signals and the tables in "
            "its docstring."
        )
    return doc.partition("\n\n")[2]


def signal_example() -> str:
    """The example in the signals' own docstring."""
    doc = inspect.getdoc(signals) or ""
    return inspect.cleandoc(doc.partition("Example:\n")[2])


def log_tables() -> str:
    """The log events, by the part of the package that logs them."""
    events = sorted(log_events(), key=lambda event: event.code)
    links = remedies()
    return "\n\n".join(
        f"## `celery_redlock.{part}`\n\n"
        + _table(
            ("event", "level", "text", "fields"),
            [
                (
                    f"[`{event.code}`]({links[event.code]})"
                    if event.code in links
                    else f"`{event.code}`",
                    " or ".join(event.levels),
                    _cell(f"`{event.template}`"),
                    ", ".join(f"`{name}`" for name in event.fields),
                )
                for event in events
                if event.module.partition(".")[0] == part
            ],
        )
        for part in sorted({event.module.partition(".")[0] for event in events})
    )


def command_sections() -> str:
    """The help of each command of `celery-redlock`."""
    return "\n\n".join(_command(name, command) for name, command in redlock.commands.items())


def fixtures() -> str:
    """The pytest fixtures that come with the package."""
    return "\n\n".join(
        f"### `{name}`\n\n{inspect.getdoc(getattr(plugin, name)) or ''}" for name in plugin.__all__
    )


def examples() -> str:
    """The folders of examples, in the first words of their own pages."""
    pages = sorted((ROOT / "examples").glob("*/README.md"))
    return "\n\n".join(_example(page) for page in pages)


def rights() -> str:
    """The rights of the locks' own user on the nodes, and their use."""
    marked = CONTAINERS.read_text().partition("<!-- rights: begin")[2]
    return marked.partition("-->\n")[2].partition("<!-- rights: end")[0]


def cost_table() -> str:
    """The time that a lock adds to a task, also as a share of bodies of two lengths."""
    cost = cost_of_a_lock()
    rows = [
        (length, f"{cost.seconds * 1e6:.0f} µs", f"{100 * cost.seconds / seconds:.2g} %")
        for length, seconds in (("10 ms", 0.01), ("1 s", 1))
    ]
    table = _table(("if the body takes", "the lock adds", "that is"), rows)
    return (
        f"{table}\n\nCalculated from rates with five nodes: {cost.processes} worker processes ran "
        f"{cost.locked} empty tasks per second with a lock, and {cost.plain} without. "
        "The nodes and the broker ran on the same cores."
    )


def measured_table() -> str:
    """The rows of the last whole run of the benchmark, and the machine that it ran on."""
    rows = [
        (
            f"{_cell(row.what)}<br><small>{_cell(row.detail)}</small>",
            row.goal,
            row.shown(row.median),
            f"{row.shown(row.low)} to {row.shown(row.high)}",
        )
        for row in comparisons()
    ]
    head = ("compared", "goal", "median", "middle half of the rounds")
    return f"{_table(head, rows)}\n\nMeasured with {machine()}."


#: The function that makes each part.
PAGES: dict[str, Callable[[], str]] = {
    "option-table": grouped_options,
    "options": option_sections,
    "setting-table": setting_table,
    "settings": setting_sections,
    "modes": mode_table,
    "rules": rule_tables,
    "error-tree": error_tree,
    "errors": error_entries,
    "signals": signal_tables,
    "signal-example": signal_example,
    "log": log_tables,
    "commands": command_sections,
    "fixtures": fixtures,
    "examples": examples,
    "rights": rights,
    "cost": cost_table,
    "measured": measured_table,
    **{f"api-{section}": partial(api.entries, section) for section in api.API},
}


def _section(described: Described, facts: list[str]) -> str:
    listed = "\n".join(f"- {fact}" for fact in facts)
    text = re.sub(r"\bbelow\b", "[below](#modes)", described.text)
    return f"## `{described.name}`\n\n{text}\n\n{listed}"


def _at_a_glance(kind: str, entries: list[Described]) -> str:
    rows = (
        (
            f"[`{entry.name}`](#{anchor_of(entry.name)})",
            _cell(entry.default),
            _cell(_gist(entry.text)),
        )
        for entry in entries
    )
    return _table((kind, "default", "meaning"), rows)


def _gist(text: str) -> str:
    """Return the first sentence of a description, or its part before an explanation."""
    return re.split(r"[.:;](?: |$)", text)[0]


def _option_facts(option: Described) -> list[str]:
    setting = _setting_of(option)
    if setting is None:
        return [*_setting_facts(option), "Of each task: there is no setting for all tasks"]
    return [*_setting_facts(option), f"Default for all tasks that lock: the setting `{setting}`"]


def _setting_of(option: Described) -> str | None:
    """Return the setting that is the default of an option, or None where there is none."""
    name = option.name.removeprefix(PREFIX)
    return None if name in PER_TASK else f"redlock_{name}"


def _setting_facts(described: Described) -> list[str]:
    takes = [f"Takes: {described.takes}"] if described.takes else []
    return [f"Default: {described.default}", *takes]


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"celery-redlock {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lead, _, text = inspect.cleandoc(command.help or "").partition("\n\n")
    parts = [
        f"## `celery-redlock {name}`",
        lead,
        f"```text\n{context.info_name} {usage}\n```",
        text,
    ]
    rows = [
        (f"`{', '.join(param.opts)}`", _cell(getattr(param, "help", None) or ""))
        for param in command.params
        if isinstance(param, click.Option)
    ]
    if rows:
        parts.append(_table(("option", "what it does"), rows))
    parts.append(command.epilog or "")
    return "\n\n".join(part for part in parts if part)


def _example(page: Path) -> str:
    title, lead, *_ = page.read_text().split("\n\n")
    name = page.parent.name
    heading = title.removeprefix("# ").strip()
    folder = f"[`examples/{name}`](../../examples/{name}/README.md)"
    text = FILE_LINK.sub(r"\1", lead)
    return f"## {heading}\n\n{text}\n\nIn the folder {folder}."


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]
