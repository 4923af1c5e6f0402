"""What is installed in the workers' image is what the tests run with."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from celery_redlock.testing.containers.worker import make_context, this_package
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.containers, pytest.mark.timeout(10 * TIMEOUT)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    directory = tmp_path / "context"
    directory.mkdir()
    return directory


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_a_package_that_was_installed_from_a_source_tree_is_that_tree() -> None:
    assert this_package() == ROOT


def test_of_a_source_tree_only_the_package_goes_into_the_image(context: Path) -> None:
    assert make_context(context, ROOT) == "."

    names = files(context / "package")
    assert {"pyproject.toml", "README.md", "LICENSE", "celery_redlock/__init__.py"} <= names
    assert {name.split("/")[0] for name in names} == {
        *("pyproject.toml", "README.md", "LICENSE", "celery_redlock")
    }


def test_a_wheel_is_installed_as_it_is(context: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "celery_redlock-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")

    assert make_context(context, wheel) == f"./{wheel.name}"
    assert files(context / "package") == {wheel.name}


def test_a_requirement_is_left_to_pip(context: Path) -> None:
    assert make_context(context, "celery-redlock==1.0") == "celery-redlock==1.0"


def test_what_the_package_needs_is_installed_before_it_and_nothing_for_its_extras(
    context: Path,
) -> None:
    make_context(context, f"celery-redlock=={version('celery-redlock')}")

    needed = (context / "requirements.txt").read_text()
    assert "celery" in needed
    assert "extra" not in needed
    assert "sphinx" not in needed
