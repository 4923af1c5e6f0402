"""The scheduler of django-celery-beat as the wrapped one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.beat.database import SCENES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_with_a_database(scene: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.beat.database", scene, str(tmp_path / "db.sqlite")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
