"""The registry of planted faults keeps up with the shipped code."""

from __future__ import annotations

import ast
from dataclasses import replace

from evidence.models.configs import ALL
from evidence.planted.places import Place, StaleEditError, place_of
from evidence.planted.planting import ROOT, Fault, command_of, faulty_files, shipped
from evidence.planted.registry import EQUIVALENT, FAULTS


def test_each_fault_can_still_be_planted_and_is_python() -> None:
    stale = {fault.name: why for fault in FAULTS if (why := why_stale(fault))}
    assert not stale, "\n".join(f"{name}: {why}" for name, why in stale.items())


def why_stale(fault: Fault) -> str:
    """Return why a fault can no longer be planted; '': it can."""
    try:
        for path, text in faulty_files(fault, shipped()).items():
            if text == shipped().sources[path]:
                return f"changes nothing in {path}"
            if path.endswith(".py"):
                compile(text, path, "exec", dont_inherit=True)
    except (StaleEditError, SyntaxError) as error:
        return str(error)
    return ""


def test_each_fault_has_the_same_place_when_its_function_has_another_name() -> None:
    several = []
    for fault in FAULTS:
        for edit in fault.edits:
            file = edit.where.partition("::")[0]
            try:
                place = place_of(replace(edit, where=f"{file}::renamed"), shipped())
            except StaleEditError as error:
                several.append(str(error))
            else:
                assert at(place) == at(place_of(edit, shipped())), fault.name
    assert not several, "\n".join(several)


def at(place: Place) -> tuple[str, int]:
    """Return the file and where in it a place is."""
    return place.region.path, place.start


def test_enough_faults_are_planted_each_under_its_own_name() -> None:
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_equivalent_fault_has_its_reason() -> None:
    assert all(len(reason) > 20 for reason in EQUIVALENT.values())


def test_every_fault_has_a_killer_that_exists() -> None:
    for fault in FAULTS:
        module, *arguments = command_of(fault)
        if module == "evidence.models":
            assert arguments[0] in ALL, fault.name
        else:
            assert module in {"evidence.simulation", "pytest"}, fault.name


def test_no_killer_stops_at_a_fault_while_it_is_imported() -> None:
    killers = [
        *(ROOT / "evidence/models").glob("*.py"),
        *(ROOT / "evidence/simulation").glob("*.py"),
    ]
    bodies = [(path.name, ast.parse(path.read_text()).body) for path in killers]
    assert bodies
    assert not [name for name, body in bodies if any(isinstance(it, ast.Assert) for it in body)]
