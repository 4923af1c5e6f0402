"""No modules of the package import each other in a circle, not even for their type hints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "celery_redlock"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def at_module_level(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports outside functions, also those below `if TYPE_CHECKING`."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            yield from at_module_level([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from at_module_level([*statement.body, *statement.orelse, *statement.finalbody])


def imported(source: str, modules: set[str]) -> set[str]:
    found = set()
    for statement in at_module_level(ast.parse(source).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        for alias in statement.names:
            submodule = f"{statement.module}.{alias.name}"
            found.add(submodule if submodule in modules else str(statement.module))
    return found & modules


def import_graph() -> dict[str, set[str]]:
    paths = {module_name(path): path for path in (ROOT / PACKAGE).rglob("*.py")}
    return {name: imported(path.read_text(), set(paths)) for name, path in paths.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(import_graph()).prepare()


def test_an_import_for_type_hints_closes_a_circle() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n"
    graph = {"p.a": imported(source, {"p.a", "p.b"}), "p.b": {"p.a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("source", ["import p.b\n", "from p import b\n", "from p.b import B\n"])
def test_every_form_of_import_counts(source: str) -> None:
    assert imported(source, {"p", "p.a", "p.b"}) == {"p.b"}


def test_an_import_in_a_function_does_not_count() -> None:
    assert imported("def f():\n    import p.b\n", {"p.b"}) == set()
