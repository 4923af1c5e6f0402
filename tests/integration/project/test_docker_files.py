"""The files in docker/ let nobody in who should not be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.project.test_docker_files import DOCKER, PASSWORDS, PROJECT, read


def make_env(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(directory / "make-env")], capture_output=True, text=True, check=False
    )


def check_out(directory: Path) -> Path:
    directory.mkdir()
    for name in ("make-env", ".env.example"):
        shutil.copy(DOCKER / name, directory)
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return check_out(tmp_path / "docker")


def test_make_env_makes_passwords_that_can_be_parts_of_urls_and_that_others_cannot_read(
    directory: Path,
) -> None:
    assert make_env(directory).returncode == 0

    made = read(directory / ".env")
    del made[PROJECT]
    assert sorted(made) == sorted(PASSWORDS)
    assert len(set(made.values())) == len(PASSWORDS)
    assert all(re.fullmatch(r"[\w-]{32}", password) for password in made.values())
    assert (directory / ".env").stat().st_mode & 0o777 == 0o600


def test_make_env_leaves_passwords_that_are_there(directory: Path) -> None:
    make_env(directory)
    before = read(directory / ".env")

    again = make_env(directory)

    assert again.returncode == 1
    assert "already" in again.stderr
    assert read(directory / ".env") == before


def project_of(directory: Path) -> str:
    (directory / ".env").unlink(missing_ok=True)
    assert make_env(directory).returncode == 0
    return read(directory / ".env")[PROJECT]


def test_two_checkouts_are_two_projects(tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()

    first = project_of(check_out(tmp_path / "docker"))
    second = project_of(check_out(tmp_path / "another/docker"))

    assert first != second
    # What compose takes for a name.
    assert all(re.fullmatch(r"redlock-bank-[0-9]+", name) for name in (first, second))


def test_a_checkout_stays_the_same_project_with_new_passwords(directory: Path) -> None:
    assert project_of(directory) == project_of(directory)
