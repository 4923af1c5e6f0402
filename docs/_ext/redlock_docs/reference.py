"""
Pages of the reference, as Markdown, made from the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import celery_redlock
from celery_redlock import errors, signals
from celery_redlock.cli.commands import redlock
from celery_redlock.tasks.config.modes import MODES
from celery_redlock.tasks.events import Event
from celery_redlock.tasks.rules import arrival, ending
from celery_redlock.tasks.rules import publish as rules_publish
from celery_redlock.tasks.rules.facts import Row
from celery_redlock.testing import plugin

from .described import Described, options, settings
from .log_events import log_events
from .measured import comparisons, machine

__all__ = ["PAGES"]

ROOT = Path(__file__).resolve().parents[3]
CONTAINERS = ROOT / "docker" / "README.md"

#: Links to files that are no pages of the site.
FILE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#|/)[^)]*\)")


def option_sections() -> str:
    """A section for each `lock_*` option."""
    return "\n\n".join(_section(option, _option_facts(option)) for option in options())


def setting_sections() -> str:
    """A section for each setting that is not an option's default."""
    return "\n\n".join(_section(setting, _setting_facts(setting)) for setting in settings())


def option_table() -> str:
    """All options at a glance."""
    rows = ((f"[`{o.name}`](#{_anchor(o)})", _cell(o.default)) for o in options())
    return _table(("option", "default"), rows)


def setting_table() -> str:
    """All settings at a glance."""
    rows = ((f"[`{s.name}`](#{_anchor(s)})", _cell(s.default)) for s in settings())
    return _table(("setting", "default"), rows)


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
        yield f"{'  ' * depth}- {{py:exc}}`~celery_redlock.{cls.__name__}`: {_first_line(cls)}"
        for child in sorted(cls.__subclasses__(), key=lambda child: child.__name__):
            if child.__name__ in errors.__all__:
                yield from lines(child, depth + 1)

    return "\n".join(lines(errors.RedlockError, 0))


def error_names() -> list[str]:
    """Return the public errors; what else is in their module is described elsewhere."""
    return [name for name in errors.__all__ if issubclass(getattr(errors, name), Exception)]


def error_sections() -> str:
    """Each error with its attributes."""
    named = sorted(error_names(), key=lambda name: (name != "RedlockError", name))
    return "\n".join(_rst(f".. autoexception:: celery_redlock.{name}") for name in named)


def signal_tables() -> str:
    """
    The signals' own docstring, with its tables.

    Raises:
        LookupError: a signal has no row in them, or a row no signal.
    """
    doc = (inspect.getdoc(signals) or "").partition("\n\nExample:\n")[0]
    named = set(re.findall(r"^\| `(\w+)`", doc, flags=re.MULTILINE))
    odd = named ^ {name for name in signals.__all__ if name != "counters"}
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


def counter_list() -> str:
    """The names that `counters()` returns."""
    return ", ".join(f"`{kind.value}`" for kind in Event)


def log_tables() -> str:
    """The log events, by the part of the package that logs them."""
    events = sorted(log_events(), key=lambda event: event.code)
    return "\n\n".join(
        f"## `celery_redlock.{part}`\n\n"
        + _table(
            ("event", "level", "text", "fields"),
            [
                (
                    f"`{event.code}`",
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
    return "\n".join(
        f"`{name}`\n: {_indented(inspect.getdoc(getattr(plugin, name)) or '')}\n"
        for name in plugin.__all__
    )


def examples() -> str:
    """The folders of examples, in the first words of their own pages."""
    pages = sorted((ROOT / "examples").glob("*/README.md"))
    return "\n\n".join(_example(page) for page in pages)


def containers() -> str:
    """The page about containers, before its first section."""
    return _unlinked(_below_title(CONTAINERS)[0])


def container_sections() -> str:
    """The sections of the page about containers."""
    return "## " + _unlinked(_below_title(CONTAINERS)[2])


def rights() -> str:
    """The rights of the locks' own user on the nodes, and their use."""
    marked = CONTAINERS.read_text().partition("<!-- rights: begin")[2]
    return marked.partition("-->\n")[2].partition("<!-- rights: end")[0]


def version() -> str:
    """The version that this is about."""
    return celery_redlock.__version__


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


#: The parts of the directive `redlock`.
PAGES: dict[str, Callable[[], str]] = {
    "option-table": option_table,
    "options": option_sections,
    "setting-table": setting_table,
    "settings": setting_sections,
    "modes": mode_table,
    "rules": rule_tables,
    "error-tree": error_tree,
    "errors": error_sections,
    "signals": signal_tables,
    "signal-example": signal_example,
    "counters": counter_list,
    "log": log_tables,
    "commands": command_sections,
    "fixtures": fixtures,
    "examples": examples,
    "containers": containers,
    "container-sections": container_sections,
    "rights": rights,
    "measured": measured_table,
}


def _section(described: Described, facts: list[str]) -> str:
    listed = "\n".join(f"- {fact}" for fact in facts)
    text = re.sub(r"\bbelow\b", "[below](#modes)", described.text)
    return f"({_anchor(described)})=\n\n## `{described.name}`\n\n{text}\n\n{listed}"


def _option_facts(option: Described) -> list[str]:
    setting = option.name.replace("lock_", "redlock_", 1)
    return [*_setting_facts(option), f"Default for all tasks that lock: the setting `{setting}`"]


def _setting_facts(described: Described) -> list[str]:
    takes = [f"Takes: {described.takes}"] if described.takes else []
    return [f"Default: {described.default}", *takes]


def _anchor(described: Described) -> str:
    return described.name.replace("_", "-")


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
    ]
    if rows:
        parts.append(_table(("argument", "what it does"), rows))
    parts.append(command.epilog or "")
    return "\n\n".join(part for part in parts if part)


def _example(page: Path) -> str:
    title, lead, *_ = page.read_text().split("\n\n")
    name = page.parent.name
    heading = title.removeprefix("# ").strip()
    text = _unlinked(lead)
    return f"(example-{name})=\n\n## {heading}\n\n{text}\n\nIn the folder `examples/{name}`."


def _below_title(page: Path) -> tuple[str, str, str]:
    return page.read_text().partition("\n")[2].partition("\n## ")


def _unlinked(text: str) -> str:
    return FILE_LINK.sub(r"\1", text)


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


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


def _rst(source: str) -> str:
    return f"```{{eval-rst}}\n{source}\n   :members:\n   :show-inheritance:\n```\n"
