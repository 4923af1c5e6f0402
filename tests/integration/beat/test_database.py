"""The scheduler of django-celery-beat as the wrapped one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.beat.database import SCENES
from tests.support import forked
from tests.support.cases import first_of

PROGRAM = "tests.integration.beat.database"


@pytest.mark.parametrize("scene", first_of(sorted(SCENES)))
def test_with_a_database(scene: str, tmp_path: Path) -> None:
    forked.run("-m", PROGRAM, scene, str(tmp_path / "db.sqlite"))
