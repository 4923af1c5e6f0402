"""What the project says of itself in several places is the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import celery_redlock
from tests.release.licences import ROOT, project


@pytest.fixture
def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    return loaded["jobs"]


def claimed() -> list[str]:
    """The Python versions of the classifiers."""
    found = [re.fullmatch(r".* :: (3\.\d+)", each) for each in project()["classifiers"]]
    return [match[1] for match in found if match]


def test_the_version_is_one() -> None:
    assert project()["version"] == celery_redlock.__version__


def test_the_lowest_python_that_is_claimed_is_the_one_that_is_required() -> None:
    assert project()["requires-python"] == f">={claimed()[0]}"


def test_the_workflow_runs_what_ci_runs_with_the_lowest_python(workflow: dict[str, Any]) -> None:
    steps = workflow["run"]["steps"]

    assert [step["run"] for step in steps if "run" in step] == ["bash .ci/run"]
    assert [s["with"]["python-version"] for s in steps if "setup-python" in s.get("uses", "")] == [
        claimed()[0]
    ]


def test_the_workflow_tests_the_other_pythons_that_are_claimed(workflow: dict[str, Any]) -> None:
    matrix = workflow["newer-pythons"]["strategy"]["matrix"]

    assert matrix["python-version"] == claimed()[1:]


def test_every_target_that_is_told_to_people_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / ".ci/run",
        ROOT / "tests/steps.py",
        *ROOT.glob("docs/**/*.md"),
    ]

    command = re.compile(r"(?:^|`|\$ )make ([a-z-]+)", re.MULTILINE)
    told = {name for page in pages for name in command.findall(page.read_text())}

    assert told
    assert not told - targets
