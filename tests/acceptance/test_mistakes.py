"""A process that cannot start names every mistake at once, in one message, as a user sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_redlock.testing import LocalCluster
from tests.support.cases import first_of
from tests.support.waiting import TIMEOUT

Run = Callable[..., subprocess.CompletedProcess[str]]

HEAD = """
from celery import Celery, Task
from celery_redlock import RedlockTask

app = Celery("proj", broker={broker!r})
"""
MISTAKES = """
app.conf.redlock_ttl = "abc"
app.conf.redlock_tttl = 5
app.conf.redlock_tasks = {"*.plain": {"lock_kee": 1}, "none.*": {}, "*.vendor": {"lock_key": "{b}"}}
app.conf.redlock_nodes = ["http://a", "redis://:sesame@b:99999/0"]

@app.task(base=RedlockTask, lock_key="account:{acount}", lock_wait=-1, lock_ttk=1)
def one(account): pass

@app.task(base=RedlockTask, lock_key=True, lock_on_conflict=lambda error: "skip")
def two(account): pass

@app.task(base=RedlockTask, lock_key=True, lock_on_lost=lambda: "flag")
def three(account): pass

@app.task(base=RedlockTask, lock_key=lambda other, more, /: "k")
def four(account): pass

@app.task(base=RedlockTask, lock_on_conflict="skip", lock_skip_result=object())
def five(account): pass

@app.task(base=RedlockTask, lock_on_conflict="reject")
def six(account): pass

@app.task(base=RedlockTask, lock_mode="until_executing", lock_window=5, lock_at_least_for=3)
def seven(account): pass

@app.task
def vendor(account): pass
"""
NAMED = [
    "setting redlock_ttl='abc'",
    "setting redlock_tttl is unknown",
    "setting redlock_tasks['*.plain']: lock_kee is unknown",
    "setting redlock_tasks['none.*'] is empty",
    "setting redlock_nodes[0]: ",
    "setting redlock_nodes[1]: ",
    "task 'proj.one': lock_key: the template 'account:{acount}'",
    "task 'proj.one': lock_wait=-1",
    "task 'proj.one': lock_ttk is unknown",
    "task 'proj.two': lock_on_conflict=<lambda> is called with (task, error)",
    "task 'proj.three': lock_on_lost=<lambda> is called with (task, lease)",
    "task 'proj.four': lock_key: the function <lambda>(other, more, /) cannot be called",
    "task 'proj.five': lock_skip_result=<object object at",
    "task 'proj.six': lock_on_conflict='reject' needs acks_late=True",
    "task 'proj.seven': lock_window goes with",
    "task 'proj.seven': lock_at_least_for is about",
    "task 'proj.vendor': lock_key: the template '{b}'",
    "redlock_tasks matches tasks that cannot lock. To leave them without a lock, add to ",
]


@pytest.fixture
def celery(tmp_path: Path, urls: dict[str, str]) -> Run:
    """Run `celery -A proj ...` with a project of this source, and nothing else configured."""

    def run(source: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "proj.py").write_text(HEAD.format(broker=urls["broker"]) + source)
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "proj", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )

    return run


@pytest.mark.parametrize(
    "command", [("worker",), ("beat",), ("beat", "-S", "redlock"), ("-q", "beat", "-S", "redlock")]
)
def test_a_process_names_every_mistake_at_once_and_prints_no_traceback(
    celery: Run, command: tuple[str, ...]
) -> None:
    ended = celery(MISTAKES, *command)

    assert ended.returncode == 2
    assert [name for name in NAMED if f"  - {name}" not in ended.stderr] == []
    assert len(ended.stderr.splitlines()) == len(NAMED) + 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "sesame" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("command", first_of([("worker",), ("beat", "-S", "redlock")]))
def test_a_single_mistake_is_one_line(celery: Run, command: tuple[str, ...]) -> None:
    ended = celery("app.conf.redlock_wait = -1", *command)

    assert ended.returncode != 0
    assert ended.stderr.count("redlock_wait") == 1
    assert ended.stderr.endswith(
        "Error: setting redlock_wait=-1 is out of range; give at least 0 s.\n"
    )


def test_a_beat_adds_the_mistakes_of_its_own_settings(celery: Run) -> None:
    ended = celery(
        """
app.conf.update(redlock_ttl=-1, redlock_beat_ttl=5, redlock_beat_retry=50)
app.conf.update(redlock_beat_scheduler="no.such:Scheduler")
""",
        *("beat", "-S", "redlock"),
    )

    assert ended.returncode == 2
    assert all(
        f"  - {begin}" in ended.stderr
        for begin in ("setting redlock_ttl=-1", "redlock_beat_ttl=5", "redlock_beat_scheduler")
    )


def test_nodes_that_refuse_are_named_with_the_other_mistakes(celery: Run) -> None:
    with LocalCluster(1, requirepass="open-sesame") as guarded:
        ended = celery(
            f"""
app.conf.redlock_nodes = [{guarded.urls[0].replace("open", "close")!r}]

@app.task(base=RedlockTask, lock_wait=-1)
def one(account): pass
""",
            "worker",
        )

    assert ended.returncode == 2
    assert "- task 'proj.one': lock_wait=-1" in ended.stderr
    assert "- Lock nodes cannot be used: " in ended.stderr
    assert "sesame" not in ended.stderr


@pytest.mark.parametrize("command", first_of([("report",), ("inspect", "registered")]))
def test_a_command_of_an_app_with_mistakes_prints_no_traceback(
    celery: Run, command: tuple[str, ...]
) -> None:
    ended = celery(MISTAKES, *command)

    assert "Traceback" not in ended.stdout + ended.stderr
    assert "sesame" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("options", first_of([(), ("--concurrency=1",), ("--autoscale=2,1",)]))
def test_a_worker_whose_processes_do_not_share_its_nodes_does_not_start(
    celery: Run, options: tuple[str, ...]
) -> None:
    ended = celery('app.conf.redlock_nodes = ["memory://a", "memory://b"]', "worker", *options)

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        "Error: setting redlock_nodes: memory://a is a node in the memory of one process, and each "
        "process of a prefork pool has its own, so their tasks do not exclude each other. Use "
        "Redis servers, or start this worker with --pool=solo or --pool=threads."
    )
