"""The scheduler of django-celery-beat as the wrapped one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.beat.database import SCENES
from tests.support.cases import first_of
from tests.support.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "tests.integration.beat.database"


@pytest.mark.parametrize("scene", first_of(sorted(SCENES)))
def test_with_a_database(scene: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.integration.beat.database",
            scene,
            str(tmp_path / "db.sqlite"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
