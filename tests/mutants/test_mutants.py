"""
The registry of planted faults keeps up with the shipped code.
"""

from __future__ import annotations

import ast

import pytest

from tests.models.configs import ALL
from tests.mutants.planting import PACKAGE, ROOT, Edit, Mutant, StaleEditError, edited
from tests.mutants.registry import EQUIVALENT, MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_can_still_be_planted_and_is_python(mutant: Mutant) -> None:
    sources: dict[str, str] = {}
    for edit in mutant.edits:
        source = sources.get(edit.path) or (ROOT / PACKAGE / edit.path).read_text()
        sources[edit.path] = edited(edit, source)
    for path, source in sources.items():
        if path.endswith(".py"):
            ast.parse(source)


def test_enough_faults_are_planted_each_under_its_own_name() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_equivalent_fault_has_its_reason() -> None:
    assert all(len(reason) > 20 for reason in EQUIVALENT.values())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_has_a_killer_that_exists(mutant: Mutant) -> None:
    module, *arguments = mutant.killer
    if module == "tests.models":
        assert arguments[0] in ALL
    elif module == "pytest":
        path, _, test = arguments[-1].partition("::")
        assert f"def {test}(" in (ROOT / path).read_text()
    else:
        assert module == "tests.simulation"


@pytest.mark.parametrize("source", ["", "twice twice"])
def test_an_edit_whose_text_does_not_occur_exactly_once_fails_loudly(source: str) -> None:
    with pytest.raises(StaleEditError, match="not once"):
        edited(Edit("protocol/node_model.py", "twice", "once"), source)
