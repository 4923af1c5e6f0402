"""Where a fault is planted: found again after changes that do not concern it."""

from __future__ import annotations

import pytest

from evidence.planted.places import Edit, StaleEditError, place_of, text_at
from evidence.planted.sources import Package

CODE = """\
class Lease:
    def extend(self, ttl):
        until = self.now() + ttl
        if until > self.limit:
            until = self.limit  # never beyond
        return until

    def release(self):
        return self.now()
"""
EDIT = Edit("core/lease.py::Lease.extend", "until > self.limit", "until >= self.limit")


def plant(edit: Edit, **files: str) -> str:
    """Plant an edit in a package of these files, and return the text of the file that has it."""
    place = place_of(edit, Package({_path(name): text for name, text in files.items()}))
    source = place.region.source
    return source[: place.start] + text_at(place, edit) + source[place.end :]


def _path(name: str) -> str:
    path = name.replace("__", "/")
    return f"{path.removesuffix('_lua')}.lua" if path.endswith("_lua") else f"{path}.py"


def test_an_edit_changes_its_place_and_nothing_else() -> None:
    changed = plant(EDIT, core__lease=CODE)
    assert changed == CODE.replace("until > self", "until >= self")


def test_a_function_may_move_to_another_file() -> None:
    assert "until >= self" in plant(EDIT, core__lease="", core__validity=CODE)


def test_a_file_may_be_renamed() -> None:
    assert "until >= self" in plant(EDIT, core__hold=CODE)


def test_a_function_may_be_renamed() -> None:
    assert "until >= self" in plant(EDIT, core__lease=CODE.replace("extend", "prolong"))


def test_a_class_may_be_renamed_with_its_file() -> None:
    assert "until >= self" in plant(EDIT, core__hold=CODE.replace("Lease", "Hold"))


def test_a_local_may_be_renamed() -> None:
    assert "end >= self" in plant(EDIT, core__lease=CODE.replace("until", "end"))


def test_an_attribute_may_be_renamed() -> None:
    assert "until >= self.most" in plant(EDIT, core__lease=CODE.replace("limit", "most"))


def test_two_names_that_have_become_one_are_other_code() -> None:
    with pytest.raises(StaleEditError):
        plant(EDIT, core__lease=CODE.replace("self.limit", "self.until"))


def test_the_code_may_be_formatted_otherwise() -> None:
    reformatted = CODE.replace("until > self.limit", "(until  # or so\n  > self.limit)")
    assert "(until >= self.limit)" in plant(EDIT, core__lease=reformatted)


def test_a_comma_that_ends_a_list_of_lines_makes_no_difference() -> None:
    edit = Edit("a.py::f", "g(one, two)", "g(one)")
    assert "return g(one)" in plant(edit, a="def f(one, two):\n    return g(\n  one,\n  two,\n )\n")


def test_a_name_within_an_f_string_may_be_renamed() -> None:
    edit = Edit("a.py::f", 'f"{prefix}:{key}"', 'f"{key}"')
    assert 'f"{name}"' in plant(edit, a='def f(start, name):\n    return f"{start}:{name}"\n')


def test_further_lines_are_indented_as_the_first() -> None:
    edit = Edit("core/lease.py::Lease.extend", "until = self.limit", "pass\nuntil = 0")
    assert "            pass\n            until = 0  # never" in plant(edit, core__lease=CODE)


def test_a_function_of_lua_is_found_by_its_name() -> None:
    lua = (
        "local function f(key)\n  return key -- so\nend\nlocal function g(key)\n  return key\nend\n"
    )
    changed = plant(Edit("a.lua::g", "return key", "return nil"), a_lua=lua)
    assert changed == lua[::-1].replace("yek nruter", "lin nruter", 1)[::-1]


def test_code_that_stands_there_twice_is_no_place() -> None:
    edit = Edit("core/lease.py::Lease", "return", "raise")
    with pytest.raises(StaleEditError, match=r"(?s)several times.*lease.py:6: .*lease.py:9: "):
        plant(edit, core__lease=CODE)


def test_code_that_is_gone_is_named_with_the_nearest_candidate() -> None:
    gone = CODE.replace("if until > self.limit:", "if until > self.limit - 1 + ttl:")
    edit = Edit("core/lease.py::Lease.extend", "if until > self.limit:", "if True:")
    with pytest.raises(StaleEditError, match=r"core/lease.py:4: if until > self.limit - 1 \+ ttl:"):
        plant(edit, core__lease=gone)
