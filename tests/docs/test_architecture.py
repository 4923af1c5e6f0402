"""The files and names of the page about the architecture exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import DOCS, ROOT

PACKAGE = ROOT / "celery_redlock"
PAGE = (DOCS / "explanation" / "architecture.md").read_text()
STEPS = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE)
FILES = sorted(set(re.findall(r"`([\w/]+\.(?:py|toml))`", PAGE)))
#: "`NAME` (`FILE`" and "`NAME` in `FILE`".
PLACES = re.findall(r"`([\w.]+)`\s+(?:\(|in\s+)`([\w/]+\.py)`", PAGE)
FOLDERS = sorted(set(re.findall(r"`((?:tasks|protocol)/\w+)`", PAGE)))
LAYERS = re.findall(r"^\| [\w ,]+ \| ((?:`\w+`(?:, )?)+) \|", PAGE, flags=re.MULTILINE)


def test_files_that_the_page_names_exist() -> None:
    named = (*FILES, *FOLDERS)
    assert not [each for each in named if not any((at / each).exists() for at in (PACKAGE, ROOT))]


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_is_in_its_file(file: str, name: str) -> None:
    body = ast.parse((PACKAGE / file).read_text()).body
    for part in name.split("."):
        (found,) = (
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part
        )
        body = found.body


@pytest.mark.parametrize(("name", "file"), PLACES)
def test_a_name_is_in_the_file_that_the_page_names_with_it(name: str, file: str) -> None:
    (path,) = (at / file for at in (PACKAGE, ROOT) if (at / file).exists())
    text = path.read_text()
    assert all(re.search(rf"\b{part}\b", text) for part in name.split("."))


def test_every_directory_of_the_package_is_a_layer() -> None:
    named = {name for cell in LAYERS for name in re.findall(r"`(\w+)`", cell)}
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there <= named


def test_the_operations_are_short() -> None:
    most = {
        "Acquire a lock": 6,
        "Release it": 4,
        "Send a unique task": 6,
        "Run a task under its lock": 5,
        "Wait for a key": 7,
        "Send a tick": 7,
    }
    parts = re.findall(r"^### (.+)\n((?:(?!#).*\n)+)", PAGE, flags=re.MULTILINE)
    steps = {title: len(re.findall(r"^\| `", part, flags=re.MULTILINE)) for title, part in parts}
    assert steps.keys() == most.keys()
    assert all(0 < steps[title] <= files for title, files in most.items())
