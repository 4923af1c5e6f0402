"""No modules of the package import each other in a circle, not even for their type hints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "celery_redlock"

Graph = dict[str, set[str]]


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


def import_graph() -> Graph:
    paths = {module_name(path): path for path in (ROOT / PACKAGE).rglob("*.py")}
    return {name: imported(path.read_text(), set(paths)) for name, path in paths.items()}


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def circles(graph: Graph) -> set[frozenset[str]]:
    """Return the largest sets of modules each of which imports all others, directly or not."""
    reach = {name: reachable(graph, name) for name in graph}
    return {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(import_graph())
    assert not found, "\n".join(" <-> ".join(sorted(circle)) for circle in found)


def test_an_import_for_type_hints_closes_a_circle() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n"
    graph = {"p.a": imported(source, {"p.a", "p.b"}), "p.b": {"p.a"}}
    assert circles(graph) == {frozenset({"p.a", "p.b"})}


@pytest.mark.parametrize("source", ["import p.b\n", "from p import b\n", "from p.b import B\n"])
def test_every_form_of_import_counts(source: str) -> None:
    assert imported(source, {"p", "p.a", "p.b"}) == {"p.b"}


def test_an_import_in_a_function_does_not_count() -> None:
    assert imported("def f():\n    import p.b\n", {"p.b"}) == set()
