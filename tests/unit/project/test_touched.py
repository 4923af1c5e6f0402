"""Which tests a changed file leads to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.touched import ALL, PLANTED, ROOT, TABLES, touched


@pytest.mark.parametrize(
    ("changed", "tests"),
    {
        "celery_redlock/tasks/run/requeue.py": [PLANTED, "tests/unit/tasks/run"],
        "celery_redlock/tasks/task.py": [PLANTED, "tests/unit/tasks"],
        "celery_redlock/_greenlets/polling.py": [PLANTED, "tests/unit/greenlets"],
        "celery_redlock/errors.py": [PLANTED, "tests/unit/test_errors.py"],
        "celery_redlock/signals.py": [PLANTED, "tests/unit"],
        "celery_redlock/tasks/rules/arrival.py": [PLANTED, TABLES, "tests/unit/tasks/rules"],
        "evidence/models/tables.py": [TABLES],
        "tests/unit/test_errors.py": ["tests/unit/test_errors.py"],
        "tests/unit/conftest.py": ["tests/unit"],
        "tests/support/waiting.py": list(ALL),
        "docs/index.md": [],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_leads_to_the_tests_that_mirror_it(changed: str, tests: list[str]) -> None:
    assert sorted(touched([Path(changed)])) == sorted(tests)


def test_a_file_of_tests_that_was_deleted_leads_to_its_folder() -> None:
    assert touched([Path("tests/unit/tasks/test_gone.py")]) == ["tests/unit/tasks"]


def test_a_folder_within_another_one_is_not_run_twice() -> None:
    changed = [Path("tests/unit/conftest.py"), Path("tests/unit/tasks/keys/conftest.py")]
    assert touched(changed) == ["tests/unit"]


def test_all_that_it_can_lead_to_exists() -> None:
    assert all((ROOT / path).exists() for path in ALL)
