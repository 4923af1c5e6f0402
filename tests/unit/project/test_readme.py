"""The README is short, and its first example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery, _state

README = (Path(__file__).parents[3] / "README.md").read_text()
LONGEST = 180


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tasks of an example out of the apps of other tests: Celery shares them."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.mark.usefixtures("unshared")
def test_the_first_example_runs_unchanged() -> None:
    example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, Celery)
    app.conf.update(task_always_eager=True, redlock_nodes=["memory://readme"])
    result = names["settle"].delay(7, amount=100).get()  # type: ignore[attr-defined]
    assert re.fullmatch(r"account 7: 100, token [1-9]\d*", result)
