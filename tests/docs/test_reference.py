"""The reference describes everything that the code has, as the code describes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest

import celery_redlock
from celery_redlock import fencing, signals, testing
from celery_redlock.cli.commands import redlock
from celery_redlock.protocol.rounds import TRANSITIONS, Phase
from celery_redlock.tasks.config.option_values import MODES
from celery_redlock.tasks.config.options import OPTIONS, LockOptions
from celery_redlock.tasks.config.settings import (
    CHECKS,
    SELF_DESCRIBING_CHECKS,
    RedlockSettings,
)
from celery_redlock.tasks.events import MonitorEvent
from celery_redlock.tasks.rules import arrival, ending
from celery_redlock.tasks.rules import publish as rules_publish
from celery_redlock.tasks.rules.facts import Row
from celery_redlock.testing import plugin
from tests.docs.blocks import DOCS, PAGES, ROOT
from tests.docs.from_code import (
    DIAGRAMS,
    described,
    links,
    log_events,
    measured,
    reference,
    repository,
    sources,
    svg,
)

REPOSITORY_PAGES = [
    *PAGES,
    *ROOT.glob("*.md"),
    *(ROOT / "docker").glob("*.md"),
    *(ROOT / "examples").rglob("README.md"),
]
REFERENCE = "".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))


def missing(names: Iterable[str], entry: str, text: str) -> list[str]:
    """Return the names that have no entry in a text."""
    return [name for name in names if entry.format(name) not in text]


def test_every_option_has_an_entry() -> None:
    assert not missing(OPTIONS, "## `lock_{}`", reference.option_sections())


def test_every_setting_has_an_entry() -> None:
    names = (*CHECKS, *SELF_DESCRIBING_CHECKS)
    assert not missing(names, "## `redlock_{}`", reference.setting_sections())


def test_every_description_is_sentences() -> None:
    entries = [*described.options(), *described.settings()]
    assert not [each for each in entries if not re.fullmatch(r"(?s)[A-Z`].{15,}\.", each.text)]


def test_an_option_without_a_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = described.attributes_of(LockOptions)
    del texts["wait"]
    monkeypatch.setattr(described, "attributes_of", lambda _cls: texts)
    with pytest.raises(LookupError, match="wait has no entry under `Attributes:`"):
        described.options()


def test_an_option_that_is_only_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "colour", str)
    with pytest.raises(LookupError, match="lock_colour: in only one"):
        described.options()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("max_ttl", "{:g} s (1 min)"),
        ("node_timeout", "{:g} s"),
        ("guard", "`{}` (only with two or more nodes)"),
        *((name, "`{}`") for name in ("key_prefix", "drift_factor", "dedupe")),
    ],
)
def test_the_settings_table_has_the_default(name: str, shown: str) -> None:
    default = shown.format(getattr(RedlockSettings(), name))
    assert f"[`redlock_{name}`](#redlock_{name}) | {default} | " in reference.setting_table()


@pytest.mark.parametrize("field", fields(LockOptions), ids=lambda field: field.name)
def test_defaults_come_from_the_code(field) -> None:
    (option,) = (each for each in described.options() if each.name == f"lock_{field.name}")
    is_duration = isinstance(field.default, float)
    shown = f"{field.default:g} s" if is_duration else f"`{field.default}`"
    assert option.default.partition(" (")[0] == shown


def test_defaults_of_options_are_settings() -> None:
    shown = reference.setting_table()
    assert "| `redlock_ttl` | 30 s | [`lock_ttl`](options.md#lock_ttl) |" in shown
    assert "redlock_limit" not in shown  # of each task: there is no setting for all tasks


@pytest.mark.parametrize(
    ("option", "takes"),
    [
        ("lock_ttl", "seconds as a number, or a `timedelta`; at least 0.2 s"),
        ("lock_on_lost", "`interrupt`, `flag` or a function"),
        ("lock_skip_result", ""),
    ],
)
def test_an_option_takes_what_its_check_accepts(option: str, takes: str) -> None:
    accepted = {each.name: each.takes for each in described.options()}
    assert accepted[option] == takes


@pytest.mark.parametrize("choices", ["on_unavailable", "on_conflict"])
def test_a_description_names_every_choice(choices: str) -> None:
    (option,) = (each for each in described.options() if each.name == f"lock_{choices}")
    assert all(f"`{choice}`" in option.text for choice in re.findall("`(.+?)`", option.takes))


def test_every_mode_has_a_row_and_a_bar() -> None:
    assert not missing(MODES, "| `{}` |", reference.mode_table())
    assert not missing(MODES, "{}: ", DIAGRAMS["modes"]())


def test_every_rule_has_a_row() -> None:
    rules = [
        row.name
        for module in (rules_publish, arrival, ending)
        for table in vars(module).values()
        if isinstance(table, tuple)
        for row in table
        if isinstance(row, Row)
    ]
    assert rules
    assert not missing(rules, "| {} | ", reference.rule_tables())


def test_every_error_has_an_entry() -> None:
    assert not missing(reference.error_names(), "### `{}`\n", reference.error_entries())


def test_every_error_is_in_the_tree() -> None:
    tree = reference.error_tree()
    links = (f"[`{name}`](#{name.lower()})" for name in reference.error_names())
    assert not missing(links, "{}", tree)


def test_every_signal_has_a_row() -> None:
    assert not missing(signals.__all__, "| `{}` |", reference.signal_tables())


def test_every_log_event_has_a_row() -> None:
    shown = re.findall(r"^\| \[?`([a-z-]+)`", reference.log_tables(), flags=re.MULTILINE)
    assert sorted(shown) == sorted(event.code for event in log_events.log_events())


def test_a_log_event_is_shown_with_its_text_and_fields() -> None:
    text = "Lock {key} is taken away from {holder}"
    row = f"| `lock-evicted` | WARNING | `{text}` | `key`, `holder` |"
    assert row in reference.log_tables()


def test_what_troubleshooting_names_links_there() -> None:
    events, errors = reference.log_tables(), reference.error_entries()
    for name, remedy in reference.remedies().items():
        section = errors.partition(f"### `{name}`\n")[2].partition("\n### ")[0]
        assert f"[`{name}`]({remedy})" in events or f"({remedy})" in section, name


@pytest.mark.parametrize(
    "section",
    [text for text in reference.TROUBLESHOOTING.read_text().split("\n## ") if "```text" in text],
    ids=lambda section: section.partition("\n")[0],
)
def test_a_line_of_troubleshooting_is_one_that_is_logged(section: str) -> None:
    line = section.partition("```text\n")[2].partition("\n")[0]
    about = " ".join(reference.ABOUT.findall(section))
    templates = [e.template for e in log_events.log_events() if f"`{e.code}`" in about]
    patterns = [re.sub(r"\\{\w+\\}", ".*", re.escape(template)) for template in templates]
    assert not templates or any(re.fullmatch(pattern, line) for pattern in patterns)


def test_a_signal_without_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "__all__", [*signals.__all__, "task_forgotten"])
    with pytest.raises(LookupError, match="task_forgotten"):
        reference.signal_tables()


def test_every_command_and_argument_has_an_entry() -> None:
    entries = reference.command_sections()
    for name, command in redlock.commands.items():
        assert f"## `celery-redlock {name}`" in entries
        for param in command.params:
            entry = param.metavar or str(param.name).upper()
            if isinstance(param, click.Option):
                entry = f"`{', '.join(param.opts)}`"
            assert entry in entries


def test_every_fixture_has_an_entry() -> None:
    assert not missing(plugin.__all__, "### `{}`\n", reference.fixtures())


def test_every_public_name_is_in_the_reference() -> None:
    elsewhere = {"__version__", *reference.error_names()}
    names = [
        *(name for name in celery_redlock.__all__ if name not in elsewhere),
        *(f"fencing.{name}" for name in fencing.__all__),
        *(f"testing.{name}" for name in testing.__all__),
    ]
    assert not missing(names, "### `{}`\n", REFERENCE)


def test_every_example_has_an_entry() -> None:
    names = (readme.parent.name for readme in (ROOT / "examples").glob("*/README.md"))
    assert not missing(names, "`examples/{}`", reference.examples())


@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_a_diagram_is_svg_with_a_description(diagram: str) -> None:
    picture = ET.fromstring(DIAGRAMS[diagram]())
    (described_as,) = picture.iter("{http://www.w3.org/2000/svg}desc")
    assert described_as.text


def test_the_diagram_of_rounds_has_every_phase_and_arrow() -> None:
    drawn = DIAGRAMS["rounds"]()
    assert all(f">{phase.name}<" in drawn for phase in Phase)
    assert drawn.count("<path ") == sum(map(len, TRANSITIONS.values()))


def test_the_diagram_of_a_slow_node_shows_what_the_memory_nodes_did() -> None:
    drawn = DIAGRAMS["slow-node"]()
    assert drawn.count(">no reply<") == 2  # the acquire and the release
    assert "GRANTED, token 41" in drawn
    assert "At 10 s, when it continues, node 3 receives release and replies: done." in drawn


def test_the_second_round_is_drawn_where_counters_differ() -> None:
    drawn = DIAGRAMS["second-round"]()
    assert "RAISING to 43" in drawn
    assert "GRANTED, token 43" in drawn


SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_of_goals_has_each_label_whole() -> None:
    texts = ET.fromstring(DIAGRAMS["goals"]()).iter(f"{SVG}text")
    drawn = " ".join(text.text or "" for text in texts)
    with_a_goal = [row.what for row in measured.comparisons() if row.goal]
    assert [what for what in with_a_goal if what not in drawn] == []


def test_each_row_of_the_benchmark_can_be_read_alone() -> None:
    assert not [row.what for row in measured.comparisons() if "…" in row.what]


def test_the_speed_page_begins_with_what_a_lock_adds_to_a_task() -> None:
    cost = measured.Cost(locked=500, plain=1000, processes=2)
    assert cost.seconds == pytest.approx(0.002)
    page = (DOCS / "explanation" / "speed.md").read_text()
    assert page.index("the lock adds") < page.index("![")


@pytest.mark.parametrize("picture", ["two-bodies", "late-write", "double-click"])
def test_words_fit_into_the_boxes_of_a_problem(picture: str) -> None:
    drawn = list(ET.fromstring(DIAGRAMS[picture]()).iter())
    boxes = [each for each in drawn if each.tag == f"{SVG}rect"]
    after = [drawn[drawn.index(box) + 1] for box in boxes]
    assert boxes
    assert not [
        text.text
        for box, text in zip(boxes, after, strict=True)
        if svg.width_of(text.text or "", svg.SMALL) > float(box.get("width", 0))
    ]


def test_the_landing_page_shows_each_problem() -> None:
    page = (DOCS / "index.md").read_text()
    assert not missing(("two-bodies", "late-write", "double-click"), "](images/{}.svg)", page)


@pytest.mark.parametrize("path", repository.files(), ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_up_to_date(path: Path) -> None:
    assert path.read_text() == repository.files()[path](), "run: make reference"


def test_every_name_is_found_in_the_repository() -> None:
    names = [
        *(f"lock_{name}" for name in OPTIONS),
        *(f"redlock_{name}" for name in (*CHECKS, *SELF_DESCRIBING_CHECKS)),
        *reference.error_names(),
        *signals.__all__,
        *(f"celery-redlock {name}" for name in redlock.commands),
        *(event.code for event in log_events.log_events()),
    ]
    assert not missing(names, "`{}`", REFERENCE)


def test_every_event_for_monitors_has_a_row() -> None:
    page = (DOCS / "how-to" / "observe-locks.md").read_text()
    assert not missing(MonitorEvent, "| `{}` |", page)


def test_an_option_in_no_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {**reference.OPTION_GROUPS, "Which calls belong together?": ("lock_key", "lock_limit")}
    monkeypatch.setattr(reference, "OPTION_GROUPS", groups)
    with pytest.raises(LookupError, match="each option once: lock_rate"):
        reference.grouped_options()


def test_the_site_draws_what_the_repository_has_as_an_image() -> None:
    text = "a\n<!-- drawn from the code: modes -->\n\nb\n\n<!-- end -->\nc"
    assert repository.for_the_site(text) == "a\n```{redlock-diagram} modes\n```\nc"


@pytest.mark.parametrize(
    ("link", "inside"),
    [
        ("[a](../../CHANGELOG.md)", "[a](/changes.md)"),
        ("[a](../../docker/README.md#b)", "[a](/how-to/run-in-containers.md#b)"),
        (
            "[a](../../examples/optimistic/README.md)",
            "[a](/how-to/examples.md#optimistic-locking-without-any-lock)",
        ),
        ("[a](choose-a-mode.md#b)", "[a](/how-to/choose-a-mode.md#b)"),
        ("[a](../../Makefile)", "a"),
        ("[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
    ],
)
def test_a_link_leads_to_what_the_site_has_of_a_file(link: str, inside: str) -> None:
    assert sources.inside_the_site(link, DOCS / "how-to") == inside


def test_an_index_lists_the_pages_of_its_folder_and_the_indexes_below() -> None:
    links = (
        "[a](fencing.md) [b](decisions/README.md) [c](decisions/0009-fences.md) [d](../index.md)"
    )
    listed = sources.contents(links, DOCS / "explanation" / "index.md")
    assert listed == ["fencing", "decisions/README"]


def test_pages_have_nothing_that_only_the_site_understands() -> None:
    only_the_site = r"^ *(?:`{3,}|:{3,})\{.*|\{(?:py:\w+|ref|doc|term)\}`.*|^\([\w-]+\)=$|^: .*"
    for page in REPOSITORY_PAGES:
        assert re.findall(only_the_site, page.read_text(), flags=re.MULTILINE) == [], page


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="b.html#there">2</a><a href="c.html">3</a>'
        '<a href="https://example.org">4</a><a href="../d.html">5</a>'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text("")
    assert links.broken_links(tmp_path) == [
        "a.html loads https://example.org/x.js",
        "a.html: b.html#there: no such anchor",
        "a.html: c.html: no such file",
        "a.html: ../d.html: leads out of the site",
    ]


def test_the_rights_of_the_locks_user_are_those_that_containers_run_with() -> None:
    page = (DOCS / "how-to" / "acl-user.md").read_text()
    container = (ROOT / "docker" / "redis" / "lock.acl").read_text()
    (line,) = (line for line in container.splitlines() if " +evalsha " in line)
    allowed = " ".join(re.findall(r"(?:~|\+)\S+", line))
    (shown,) = re.findall(r"^user locks .*$", page, flags=re.MULTILINE)
    assert " ".join(re.findall(r"(?:~|\+)\S+", shown)) == allowed


def test_links_of_pages_lead_to_files_in_the_repository_as_well() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", page.read_text())
        if not (page.parent / link).is_file()
    ]
    assert not broken


def test_every_page_is_linked_from_the_index_of_its_folder() -> None:
    for page in PAGES:
        index = page.parent / "index.md"
        if page.is_relative_to(DOCS) and index != page and index.exists():
            assert f"({page.name})" in index.read_text() or page.parent == DOCS, page
