"""The gate and all evidence: each step runs, and the end names what failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import steps
from tests.steps import FULL, GATE, NEWS, main

PASSES = f"{sys.executable} -c print('all_is_well')"
FAILS = f"{sys.executable} fails.py"


@pytest.fixture(autouse=True)
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = ["FAILED tests/test_a.py::test_b - boom", "2 passed only alone: test_c, test_d"]
    (tmp_path / "fails.py").write_text(f"print({chr(10).join(lines)!r})\nraise SystemExit(2)\n")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], **commands: str) -> str:
    monkeypatch.setitem(steps.STEPS, "these", commands)
    status = main("these")
    assert status == int(FAILS in commands.values())
    return capfd.readouterr().out.partition("\n| step")[2]


def test_a_step_goes_on_after_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = run(monkeypatch, capfd, first=FAILS, second=PASSES)
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")]
    assert [(row[0], row[-1]) for row in rows] == [
        ("| first", "failed |"),
        ("| second", "passed |"),
    ]


def test_the_end_names_the_step_and_the_test_that_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = run(monkeypatch, capfd, first=FAILS, second=PASSES).splitlines()
    assert said[-2].startswith("first failed; its output is in build/steps/")
    assert said[-1] == "FAILED tests/test_a.py::test_b - boom"


def test_a_step_with_the_newest_versions_fails_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (news,) = NEWS & FULL.keys()
    monkeypatch.setitem(steps.STEPS, "these", {news: FAILS, "other": PASSES})
    assert main("these") == 0
    assert f"{news} failed; its output is in build/steps/" in capfd.readouterr().out


def test_what_passed_only_alone_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "2 passed only alone: test_c, test_d" in run(monkeypatch, capfd, first=FAILS)


def test_what_a_step_prints_is_kept(
    top: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, capfd, first=PASSES)
    (kept,) = (top / "build/steps").iterdir()
    assert kept.read_text() == "all_is_well\n"


def test_all_evidence_has_the_steps_of_the_gate() -> None:
    assert GATE.keys() <= FULL.keys()
