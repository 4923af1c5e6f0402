"""The README is short, and its first example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery, _state

README = (Path(__file__).parents[3] / "README.md").read_text()
LONGEST = 200


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tasks of an example out of the apps of other tests: Celery shares them."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.mark.usefixtures("unshared")
def test_the_first_example_runs_unchanged() -> None:
    example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    written: list[tuple[int, int, int]] = []

    def write_to_ledger(account_id: int, amount: int, fencing_token: int) -> None:
        written.append((account_id, amount, fencing_token))

    names: dict[str, object] = {"write_to_ledger": write_to_ledger, "__name__": "example"}
    code = re.sub(r"redis://lock(\d):6379", r"memory://readme-\1", example)
    exec(compile(code, "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, Celery)
    app.conf.task_always_eager = True
    names["settle"].delay(7, amount=100).get()  # type: ignore[attr-defined]
    assert [entry[:2] for entry in written] == [(7, 100)]
    assert written[0][2] > 0
