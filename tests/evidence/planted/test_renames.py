"""A rename across the package changes no planted fault."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from evidence.planted.planting import Fault, faulty_files, shipped
from evidence.planted.registry import FAULTS
from evidence.planted.sources import Package, tokens_of

pytestmark = pytest.mark.full

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)

_LUA_NAMES = re.compile(r"\bfunction \w+\(([^)]*)\)|\blocal ((?!function)\w+(?:, \w+)*)")


def renamed(text: str, suffix: str, names: set[str]) -> str:
    """Return a program in which these names are others, wherever they stand."""
    if names.isdisjoint(re.findall(r"\w+", text)):
        return text
    pieces, end = [], 0
    for token in tokens_of(text, suffix):
        is_meant = token.may_be_renamed and token.text in names
        pieces += [text[end : token.start], f"{token.text}_r" if is_meant else token.text]
        end = token.end
    return "".join([*pieces, text[end:]])


def files_with(names: set[str], files: dict[str, str]) -> dict[str, str]:
    return {path: renamed(text, Path(path).suffix, names) for path, text in files.items()}


def variables(path: str, text: str) -> set[str]:
    """Return the names of all parameters and local variables of a file."""
    if path.endswith(".lua"):
        return set(re.findall(r"\w+", str(_LUA_NAMES.findall(text))))
    return {
        node.arg if isinstance(node, ast.arg) else node.id
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def with_another(path: str, name: str) -> Package:
    """Return the package with another name for one of a file's."""
    text = renamed(shipped().sources[path], Path(path).suffix, {name})
    return Package({**shipped().sources, path: text})


@cache
def moved() -> Package:
    files = shipped().sources.items()
    return Package({f"x_{path.replace('/', '_')}": text for path, text in files})


@each_fault
def test_each_variable_may_have_another_name(fault: Fault) -> None:
    # What only the fault puts in is the fault itself.
    put_in = set().union(*(words_of(edit.new) - words_of(edit.old) for edit in fault.edits))
    names = set().union(*(words_of(edit.old) for edit in fault.edits)) - put_in
    there = faulty_files(fault, shipped())
    for path, text in there.items():
        source = shipped().sources[path]
        for name in sorted(names & variables(path, source)):
            package = with_another(path, name)
            wanted = {**there, path: renamed(text, Path(path).suffix, {name})}
            assert faulty_files(fault, package) == wanted, name


@each_fault
def test_its_functions_may_have_other_names(fault: Fault) -> None:
    names = {name for edit in fault.edits for name in edit.where.partition("::")[2].split(".")}
    package = Package(files_with(names, dict(shipped().sources)))
    assert faulty_files(fault, package) == files_with(names, faulty_files(fault, shipped()))


@each_fault
def test_all_files_may_have_other_names(fault: Fault) -> None:
    wanted = sorted(faulty_files(fault, shipped()).values())
    assert sorted(faulty_files(fault, moved()).values()) == wanted
