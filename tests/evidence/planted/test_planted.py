"""The registry of planted faults keeps up with the shipped code."""

from __future__ import annotations

import ast

import pytest

from evidence.models.configs import ALL
from evidence.planted.planting import ROOT, Fault, command_of, faulty_files, shipped
from evidence.planted.registry import EQUIVALENT, FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_still_be_planted_and_is_python(fault: Fault) -> None:
    for path, text in faulty_files(fault, shipped()).items():
        assert text != shipped().sources[path]
        if path.endswith(".py"):
            ast.parse(text)


def test_enough_faults_are_planted_each_under_its_own_name() -> None:
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_equivalent_fault_has_its_reason() -> None:
    assert all(len(reason) > 20 for reason in EQUIVALENT.values())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_a_killer_that_exists(fault: Fault) -> None:
    module, *arguments = command_of(fault)
    if module == "evidence.models":
        assert arguments[0] in ALL
    else:
        assert module in {"evidence.simulation", "pytest"}


def test_no_killer_stops_at_a_fault_while_it_is_imported() -> None:
    killers = [
        *(ROOT / "evidence/models").glob("*.py"),
        *(ROOT / "evidence/simulation").glob("*.py"),
    ]
    bodies = [(path.name, ast.parse(path.read_text()).body) for path in killers]
    assert bodies
    assert not [name for name, body in bodies if any(isinstance(it, ast.Assert) for it in body)]
