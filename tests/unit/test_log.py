"""Each log record has an event code and fields, and each call in the package names them."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from celery_redlock._log import event_logger
from tests.docs.from_code import log_events

MODULE = "from celery_redlock._log import event_logger\nlogger = event_logger(__name__)\n"

logger = event_logger("celery_redlock.tests")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Keeper(logging.Handler):
    """Keeps the records of a test."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    caplog.set_level(logging.DEBUG, logger="celery_redlock.tests")
    keeper, underlying = Keeper(), logging.getLogger("celery_redlock.tests")
    underlying.addHandler(keeper)
    yield keeper.records
    underlying.removeHandler(keeper)


def extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name.startswith("redlock_")}


def test_a_record_has_the_event_and_the_fields(records) -> None:
    logger.info("lock-seen", "Lock %(key)r has token %(token)d", key="a", token=7, holder=None)

    assert extras(records[0]) == {
        "redlock_event": "lock-seen",
        "redlock_key": "a",
        "redlock_token": 7,
        "redlock_holder": None,
    }


def test_the_text_shows_the_fields(records) -> None:
    logger.info("lock-seen", "Lock %(key)r, %(seconds).1f s", key="a", seconds=1.26)
    assert records[0].getMessage() == "Lock 'a', 1.3 s"


def test_the_arguments_of_a_record_are_the_fields_as_they_were_given(records) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    logger.info("tick-seen", "Due at %(due)s", due=due)
    assert records[0].args == {"due": due}


@pytest.mark.parametrize("kind", [str, ValueError], ids=["text", "error"])
def test_a_value_controls_no_terminal_and_begins_no_line(kind: type, records) -> None:
    value = kind("a\x1b[2J\nWARNING b\u202e")

    logger.info("lock-seen", "Lock %(key)s, %(key).3s: %(key)r", key=value)

    shown = "a\\x1b[2J\\nWARNING b\\u202e"
    assert records[0].getMessage() == f"Lock {shown}, a\\x: {value!r}"
    assert extras(records[0])["redlock_key"] == str(value)


def test_a_text_without_fields_may_have_a_percent_sign(records) -> None:
    logger.info("half-seen", "50% of it")
    assert records[0].getMessage() == "50% of it"


def test_fields_can_be_called_like_the_parts_of_a_call(records) -> None:
    logger.log(logging.INFO, "odd-seen", "%(text)s at %(level)s", text="a", level="b", msg="c")
    assert records[0].getMessage() == "a at b"


def test_every_field_can_be_written_as_json(records) -> None:
    fields = {
        "error": ValueError("why"),
        "level": logging.INFO,
        "nodes": ("a", "b"),
        "due": datetime(2030, 1, 1, tzinfo=UTC),
        "seconds": 0.5,
        "ok": True,
    }
    logger.info("all-seen", "All", **fields)

    assert json.loads(json.dumps(extras(records[0]))) == {
        "redlock_event": "all-seen",
        "redlock_error": "why",
        "redlock_level": 20,
        "redlock_nodes": "('a', 'b')",
        "redlock_due": "2030-01-01 00:00:00+00:00",
        "redlock_seconds": 0.5,
        "redlock_ok": True,
    }


def test_a_value_without_a_text_costs_no_record(records) -> None:
    logger.info("odd-seen", "Odd", holder=Unprintable())
    assert extras(records[0])["redlock_holder"] == "<Unprintable without a text>"


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_each_method_logs_at_its_level(level: str, records) -> None:
    getattr(logger, level)("level-seen", "Seen")
    assert records[0].levelname == level.upper()


def test_a_level_can_be_chosen(records) -> None:
    logger.log(logging.WARNING, "level-seen", "Seen")
    assert records[0].levelno == logging.WARNING


def test_a_record_names_the_line_that_logs(records) -> None:
    for log in (logger.debug, logger.info, logger.warning, logger.error, logger.exception):
        log("line-seen", "Seen", exc_info=None)  # this line
    logger.log(logging.INFO, "line-seen", "Seen")  # this line

    lines = Path(__file__).read_text().splitlines()
    assert {record.pathname for record in records} == {__file__}
    assert all(lines[record.lineno - 1].endswith("# this line") for record in records)


def test_an_exception_is_logged_with_its_traceback(records) -> None:
    error = ValueError("why")
    try:
        raise error
    except ValueError:
        logger.exception("fault-seen", "Seen")
    (record,) = records
    assert (record.levelname, record.exc_info and record.exc_info[1]) == ("ERROR", error)


def test_an_exception_can_be_passed(records) -> None:
    error = ValueError("why")
    logger.warning("fault-seen", "Seen", exc_info=error)
    (record,) = records
    assert (record.exc_info or ())[1] is error


def test_a_record_without_an_exception_has_none(records) -> None:
    logger.warning("fault-seen", "Seen")
    assert records[0].exc_info is None


def test_nothing_is_computed_when_the_level_is_off(caplog: pytest.LogCaptureFixture) -> None:
    class Watched:
        def __str__(self) -> str:
            pytest.fail("computed")

    caplog.set_level(logging.WARNING, logger="celery_redlock.tests")
    logger.info("off-seen", "Seen", holder=Watched())
    assert not caplog.records


# The calls in the package. To read them is to check that each has literals, see `read_events`.


@pytest.fixture(scope="module")
def events() -> tuple[log_events.LogEvent, ...]:
    return log_events.log_events()


def test_every_event_code_is_one_call_s_own(events) -> None:
    counted = Counter(event.code for event in events)
    assert not [code for code, count in counted.items() if count > 1]


def test_an_event_code_is_in_kebab_case(events) -> None:
    kebab = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
    assert not [event for event in events if not kebab.fullmatch(event.code)]


def test_an_event_has_every_field_that_its_text_shows(events) -> None:
    assert not [event for event in events if set(event.shown) - set(event.fields)]


def test_a_text_shows_values_as_named_fields_only(events) -> None:
    assert not [event for event in events if "%" in log_events.SHOWN.sub("", event.text)]


def test_no_field_takes_the_place_of_the_event(events) -> None:
    assert not [event for event in events if "event" in event.fields]


def test_no_other_module_asks_for_a_logger() -> None:
    found = {
        str(path.relative_to(log_events.PACKAGE))
        for path in log_events.PACKAGE.rglob("*.py")
        if "getLogger" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name | ast.Attribute | ast.alias)
        and "getLogger" in ast.unparse(node)
    }
    assert found == {"_log.py"}


@pytest.mark.parametrize(
    "line",
    [
        'logger.info("an-event", "Text %(key)s", key=key)',
        'call_in_app(logger.info, "an-event", "Text %(key)s", key=key)',
        'partial(logger.info, "an-event", "Text %(key)s", key=key, exc_info=error)',
    ],
)
def test_a_call_is_read_in_each_form(line: str) -> None:
    (event,) = log_events.read_events(MODULE + line, "m")
    assert (event.code, event.levels, event.fields) == ("an-event", ("INFO",), ("key",))


def test_a_level_that_depends_is_read() -> None:
    line = 'logger.log(logging.INFO if quiet else logging.ERROR, "an-event", "Text")'
    (event,) = log_events.read_events(MODULE + line, "m")
    assert event.levels == ("INFO", "ERROR")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('logger.info(code, "Text")', "no literal"),
        ('logger.info("an-event", f"Text {key}")', "no literal"),
        ('logger.info("an-event", "Text %s", key)', "no literal"),
        ('logger.log(level, "an-event", "Text")', "no literal"),
        ('logger.critical("an-event", "Text")', "no literal"),
        ('logger.info("an-event", "Text", **fields)', "not named"),
        ("write = logger.info", "other than to log"),
    ],
)
def test_a_call_that_hides_what_it_logs_is_refused(line: str, why: str) -> None:
    with pytest.raises(LookupError, match=why):
        log_events.read_events(MODULE + line, "m")
