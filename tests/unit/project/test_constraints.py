"""The constraints have all that the project asks for, in versions that it takes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: The extras that each file is made for, as in the Makefile's target `lock`.
FILES = {
    "constraints.txt": PROJECT["optional-dependencies"].keys(),
    "constraints-lowest.txt": {"embedded", "cli", "test", "release"},
}


@pytest.mark.parametrize("file", FILES)
def test_each_requirement_has_one_version_which_it_takes(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    asked = [PROJECT["optional-dependencies"][extra] for extra in FILES[file]]
    for text in sum(asked, PROJECT["dependencies"]):
        requirement = Requirement(text)
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier
