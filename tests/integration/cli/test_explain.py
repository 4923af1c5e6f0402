"""`celery-redlock explain` on the tasks of the examples, whose nodes and brokers do not exist."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parents[3]
NODES = ",".join(f"redis://lock{n}.invalid:6379" for n in range(5))
NOWHERE = "redis://nowhere.invalid:6379"

#: The app, the task and the arguments; the keys; the outcomes of another call in the drawing.
TASKS = [
    ("api_client.tasks", "call", ["/x"], ["examples.api_client.tasks.call"] * 2, "runs waits runs"),
    (
        "bank_transfer.tasks",
        "transfer",
        ["alice", "bob", "5"],
        ["account:alice", "account:bob"],
        "runs waits runs",
    ),
    (
        "crawler.tasks",
        "fetch_next",
        ["example.org"],
        ["host:example.org"],
        "dropped dropped dropped runs",
    ),
    ("demo.tasks", "deposit", ["1", "alice"], ["account:alice"], "runs waits runs"),
    ("other_language.tasks", "sell", ["apple"], ["stock:apple"], "runs waits runs"),
    (
        "polite_crawler.tasks",
        "fetch",
        ["-a", '["example.org", "/"]'],
        ["host:example.org"] * 2,
        "runs waits runs",
    ),
    ("video_job.tasks", "transcode", ["film"], ["video:film"], "runs waits runs"),
    (
        "webhook_dedupe.service",
        "handle_payment",
        ["-k", '{"event": "evt_1", "amount": 5}'],
        ["payment:evt_1"],
        "dropped dropped runs",
    ),
]


def explained(app: str, task: str, *words: str, cwd: Path = ROOT, **environment: str) -> Any:
    """Run the command as a user does, and return its JSON object."""
    ended = forked.run(
        *("-m", "celery_redlock", "-A", app, "explain", task, *words, "--json"),
        cwd=cwd,
        env={
            **os.environ,
            "REDLOCK_NODES": NODES,
            "CELERY_BROKER_URL": NOWHERE,
            "CELERY_RESULT_BACKEND": NOWHERE,
            "BANK_DATABASE": "sqlite://",
            "DEMO_DIRECTORY": str(cwd),
            **environment,
        },
    )
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("app", "task", "words", "keys", "outcomes"), TASKS, ids=lambda value: str(value)[:20]
)
def test_a_task_of_the_examples_is_explained(
    app: str, task: str, words: list[str], keys: list[str], outcomes: str
) -> None:
    found = explained(f"examples.{app}", f"examples.{app}.{task}", *words)
    assert [key["text"] for key in found["keys"]] == keys
    arrivals = (stretch["another"].split()[0] for stretch in found["stretches"])
    assert " ".join(arrivals) == outcomes


def test_a_scheduled_task_of_the_examples_is_explained() -> None:
    app = "examples.nightly_report.tasks"
    found = explained(app, f"{app}.write_report")
    late = next(case for case in found["failures"] if case["when"].startswith("a scheduled run"))
    assert late["courses"][0]["steps"][0]["action"] == "SKIP_AS_MISSED"


def test_a_task_that_django_discovers_is_explained(tmp_path: Path) -> None:
    project = ROOT / "examples" / "django_project"
    found = explained(
        "shop",
        "concerts.tasks.book",
        "7",
        "Ann",
        "2",
        cwd=project,
        PYTHONPATH=os.pathsep.join([str(ROOT), str(project)]),
        DJANGO_SETTINGS_MODULE="shop.settings",
        SHOP_DATABASE=str(tmp_path / "shop.sqlite"),
    )
    assert [key["text"] for key in found["keys"]] == ["concert:7"]
