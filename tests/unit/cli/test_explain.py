"""`celery-redlock explain` on the command line: what it prints, and what it refuses."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask
from celery_redlock.cli import explain as command
from celery_redlock.tasks.config.option_values import ConflictPolicyName
from tests.support.command_line import CommandLine

MODULE = """
from celery import Celery

from celery_redlock import Limit, Rate, RedlockTask

app = Celery("shop", broker="amqp://nowhere.invalid", set_as_current=False)
app.conf.redlock_nodes = [f"redis://lock{n}.invalid:6379" for n in range(3)]
app.conf.redlock_tasks = {"vendor.*": {"lock_key": True, "lock_on_conflict": "skip"}}
app.conf.include = ["tasks_of_explained"]


def decide(task, error):
    return "skip"


class Unique(RedlockTask):
    abstract = True
    lock_mode = "until_executed"


@app.task(base=RedlockTask, shared=False, name="shop.settle", lock_key="account:{account_id}")
def settle(account_id, amount=0): ...


@app.task(base=Unique, shared=False, name="shop.invoice", lock_key="invoice:{order_id}")
def invoice(order_id): ...


@app.task(base=RedlockTask, shared=False, name="shop.close", bind=True, lock_key="account:{number}")
def close(self, number): ...


@app.task(base=RedlockTask, shared=False, name="shop.night", lock_key="night")
def night(): ...


@app.task(base=RedlockTask, shared=False, name="shop.ask", lock_key="a", lock_on_conflict=decide)
def ask(): ...


@app.task(shared=False, name="shop.plain")
def plain(number): ...


@app.task(shared=False, name="shop.idle", lock_key="k")
def idle(): ...


@app.task(shared=False, name="vendor.report")
def report(number): ...
"""
LATE = """
from app_of_explain import app
from celery_redlock import RedlockTask


@app.task(base=RedlockTask, shared=False, name="shop.late", lock_key="late")
def late(): ...
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app whose broker and nodes do not exist, in a process that may open no connection."""
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "app_of_explain.py").write_text(MODULE)
    (tmp_path / "tasks_of_explained.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("app_of_explain", "tasks_of_explained"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def explain(cli: CommandLine) -> CommandLine:
    return partial(cli, "-A", "app_of_explain", "explain")


@pytest.mark.parametrize(
    "words",
    [
        ["7"],
        ["--args", "[7]"],
        ["-a", "[7, 5]"],
        ["-k", '{"account_id": 7}'],
        ["7", "--kwargs", '{"amount": 5}'],
    ],
)
def test_the_key_of_a_call_is_printed(words: list[str], explain: CommandLine) -> None:
    assert [key["text"] for key in explain("shop.settle", *words, "--json").json["keys"]] == [
        "account:7"
    ]


@pytest.mark.parametrize(
    ("word", "key"),
    [("seven", "account:seven"), ('"7"', "account:7"), ("'a b'", "account:a%20b")],
)
def test_an_argument_is_json_or_a_literal_or_a_word(
    word: str, key: str, explain: CommandLine
) -> None:
    assert explain("shop.settle", word, "--json").json["keys"][0]["text"] == key


def test_without_arguments_the_template_is_printed(explain: CommandLine) -> None:
    text = explain("shop.settle").out
    assert text.startswith("shop.settle(account_id, amount=0)\n")
    assert "account:{account_id}" in text


def test_a_task_without_arguments_has_one_key(explain: CommandLine) -> None:
    assert explain("shop.night").out.startswith("shop.night()\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["shop.settle", "-k", '{"amount": 5}'], "missing a required argument: 'account_id'"),
        (["shop.settle", "1", "2", "3"], "shop.settle(account_id, amount=0): too many"),
        (["shop.close", "-k", '{"n": 5}'], "shop.close(number): "),
        (["shop.settle", "[7"], "the argument [7 is neither JSON nor a Python literal"),
        (["shop.settle", "-a", "7"], "--args is not an array"),
        (["shop.settle", "-k", "[7]"], "--kwargs is not an object"),
        (["shop.settle", "-a", "x"], "--args is not JSON"),
        (["shop.settle", "7", "-a", "[7]"], "either after the task or with --args"),
        (["settle"], "did you mean shop.settle?"),
        (["shop.setle"], "did you mean shop.settle?"),
        (["zzzzzz"], "its tasks are "),
    ],
)
def test_a_mistake_is_named(words: list[str], error: str, explain: CommandLine) -> None:
    assert error in explain(*words, status=2).err


def test_nodes_alone_have_no_tasks(cli: CommandLine) -> None:
    printed = cli("explain", "shop.settle", "--nodes", "memory://a", status=2)
    assert "give -A APP" in printed.err


def test_a_task_without_a_lock_has_advice(explain: CommandLine) -> None:
    text = explain("shop.plain", status=1).out
    assert "takes no lock" in text
    assert 'redlock_tasks = {"shop.plain"' in " ".join(text.split())


def test_options_without_a_redlock_task_are_named(explain: CommandLine) -> None:
    assert "has lock_key: it is no RedlockTask" in explain("shop.idle", status=1).out


def test_json_of_a_task_without_a_lock_has_no_keys(explain: CommandLine) -> None:
    found = explain("shop.plain", "--json", status=1).json
    assert found == {"task": "shop.plain", "keys": []}


def test_a_task_that_a_pattern_locks_is_explained(explain: CommandLine) -> None:
    text = explain("vendor.report", "1").out
    assert "lock_on_conflict            'skip', from redlock_tasks['vendor.*']" in text


def test_a_module_that_only_workers_import_is_imported(
    explain: CommandLine,
) -> None:
    assert explain("shop.late").out.startswith("shop.late()\n")


def test_tasks_that_may_have_the_key_are_named(explain: CommandLine) -> None:
    assert explain("shop.settle", "7", "--json").json["shared_with"] == ["shop.close"]


def test_a_base_class_is_an_origin(explain: CommandLine) -> None:
    text = explain("shop.invoice", "7").out
    assert "'until_executed', from base class app_of_explain.Unique" in text


def test_json_names_the_rules_that_decide(explain: CommandLine) -> None:
    (queued, *_) = explain("shop.invoice", "7", "--json").json["another_call"]
    assert queued["when"] == "while the first is queued"
    assert queued["courses"] == [{"if": None, "steps": [{"action": "DROP", "rule": "a duplicate"}]}]


def test_json_has_the_answers_of_a_function(explain: CommandLine) -> None:
    running = explain("shop.ask", "--json").json["another_call"][1]
    answers = [course["if"]["lock_on_conflict"] for course in running["courses"]]
    assert set(answers) == set(get_args(ConflictPolicyName))


@pytest.mark.parametrize("name", ["shop.settle", "shop.invoice", "shop.ask", "vendor.report"])
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(
    name: str,
    columns: int,
    explain: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, explain(name).out.splitlines())) <= columns


@pytest.mark.parametrize("name", ["shop.settle", "shop.invoice", "shop.ask", "vendor.report"])
def test_the_text_fits_a_screen(name: str, explain: CommandLine) -> None:
    assert len(explain(name).out.splitlines()) <= 60


def test_a_terminal_without_unicode_gets_ascii(
    explain: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = command.drawing
    monkeypatch.setattr(
        command, "drawing", lambda stretches, width, _: drawing(stretches, width, "ascii")
    )
    text = explain("shop.invoice", "7").out
    assert text.isascii()
    assert "|== reserved ====" in text


def test_a_drawing_shows_where_a_another_call_arrives(explain: CommandLine) -> None:
    lines = explain("shop.invoice", "7").out.splitlines()
    (bar,) = (number for number, line in enumerate(lines) if "reserved ━" in line)
    assert lines[bar - 1].split("  ")[1] == "sent"
    arrows = next(line for line in lines[bar:] if "▲" in line)
    assert arrows.split() == ["▲", "dropped", "▲", "dropped", "▲", "runs"]
    for part in ("reserved", "held", "free"):
        assert arrows[lines[bar].index(f" {part} ") - 3] == "▲"


def app_with(**options: Any) -> Any:
    """Return a task with these options, on three nodes."""
    app = Celery("one", broker="memory://", set_as_current=False)
    app.conf.redlock_nodes = ["memory://a", "memory://b", "memory://c"]

    @app.task(base=RedlockTask, name="one", shared=False, **options)
    def one(n=1):
        pass

    app.finalize()
    return app.tasks["one"]


def texts_of(**options: Any) -> dict[str, str]:
    """Return the sentences about a task with these options, by their cases."""
    task = app_with(**options)
    found = command.explain(task, command.read_settings(task.app), ((1,), {}))
    return {case.when: case.text for case in (*found.another_call, *found.failures)}


@pytest.mark.parametrize(
    ("options", "case", "text"),
    [
        (
            {"lock_ttl": 5},
            "a worker dies in the body",
            "The lock stays taken for up to 5 s (lock_ttl).",
        ),
        ({}, "a worker dies in the body", "does not run again: acks_late is off."),
        (
            {"acks_late": True},
            "a worker dies in the body",
            "The broker delivers its message again.",
        ),
        ({"acks_late": True}, "a worker dies in the body", "reject_on_worker_lost is off."),
        ({"lock_max_hold": 7200}, "the body hangs", "extended for up to 2 h (lock_max_hold)"),
        ({"lock_on_lost": "flag"}, "the lock is lost", "self.lease.is_valid turns false"),
        ({"lock_at_least_for": 9}, "until its minimum ends", "starts when the lock is free"),
        (
            {"lock_wait": 5},
            "while the first runs",
            "A worker process waits for the lock for up to 5 s (lock_wait). ",
        ),
        ({"lock_fair": True}, "while the first runs", "no call has waited longer (lock_fair)"),
        (
            {"lock_give_up_after": 60},
            "while the first runs",
            "After waiting for 1 min (lock_give_up_after)",
        ),
        ({"lock_rate": "5/m"}, "while all slots are taken", "starts at its turn."),
        ({"lock_limit": 5}, "while all slots are taken", "starts when the lock is free."),
        ({}, "while its key is paused", "starts when the pause is over."),
        (
            {"lock_rate": "5/m", "lock_mode": "until_executed"},
            "while its key is paused",
            "The publisher sends it. A worker requeues it",
        ),
        ({}, "1 of 3 nodes is down", "Nothing changes."),
        ({}, "2 of 3 nodes are down", "starts when enough nodes reply."),
        (
            {"lock_starting_deadline": 60},
            "a scheduled run is more than 1 min late",
            "ends it without",
        ),
        (
            {"lock_mode": "until_executed", "lock_queue_ttl": 60},
            "its message is lost",
            "The lock stays taken until 1 min (lock_queue_ttl)",
        ),
        (
            {"lock_on_unavailable": "run_unlocked"},
            "2 of 3 nodes are down",
            "A worker runs it WITHOUT the lock",
        ),
        (
            {"lock_on_unavailable": "raise"},
            "2 of 3 nodes are down",
            "fails it without its body, with QuorumUnavailable",
        ),
        (
            {"lock_on_conflict": "skip", "lock_skip_result": None},
            "while the first runs",
            "with the result None.",
        ),
    ],
)
def test_a_sentence_has_the_values_of_the_options(
    options: dict[str, Any], case: str, text: str
) -> None:
    assert text in texts_of(lock_key=None if _has_own_key(options) else "k", **options)[case]


def _has_own_key(options: dict[str, Any]) -> bool:
    return bool(options.keys() & {"lock_limit", "lock_rate"})


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ({"lock_key": "k"}, "one at a time"),
        ({"lock_key": "k", "lock_mode": "until_executing"}, "any number at a time"),
        ({"lock_limit": 5}, "at most 5 at a time"),
        ({"lock_rate": "5/m"}, "any number at a time"),
        ({"lock_key": ["k", Limit("t", 5)]}, "one at a time"),
        ({"lock_key": [Limit("s", 7), Limit("t", 5), Rate("r", "1/m")]}, "at most 5 at a time"),
        ({"lock_limit": lambda n: 3}, "at most 3 at a time"),
    ],
)
def test_it_is_named_how_many_bodies_run(options: dict[str, Any], bodies: str) -> None:
    task = app_with(**options)
    assert command.explain(task, command.read_settings(task.app), ((1,), {})).bodies == bodies


def by_number(n: int) -> str:
    return f"k{n}"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"lock_key": True}, [("one:<digest of all arguments>", 1, 0)]),
        ({"lock_mode": "until_executed"}, [("one:<digest of all arguments>", 1, 0)]),
        ({"lock_key": by_number}, [("<result of by_number()>", 1, 0)]),
        ({"lock_key": ["a:{n}", "b"]}, [("a:{n}", 1, 0), ("b", 1, 0)]),
        ({"lock_limit": 5}, [("one", 5, 0)]),
        ({"lock_limit": 5, "lock_rate": "9/s"}, [("one", 5, 0), ("one", 9, 1.02)]),
        ({"lock_key": "t:{n}", "lock_limit": lambda n: n}, [("t:{n}", None, 0)]),
        ({"lock_key": [Limit("t:{n}", 5), "b"]}, [("t:{n}", 5, 0), ("b", 1, 0)]),
    ],
)
def test_without_a_call_keys_are_templates(
    options: dict[str, Any], keys: list[tuple[str, int | None, float]]
) -> None:
    task = app_with(**options)
    found = command.explain(task, command.read_settings(task.app), None).keys
    assert [(key.text, key.slots, key.period) for key in found] == keys
