"""What the README says about options, settings and the first example is what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from celery import Celery, _state

from celery_redlock.tasks.config.options import OPTIONS, LockOptions
from celery_redlock.tasks.config.settings import CHECKS, SELF_DESCRIBING_CHECKS, RedlockSettings
from tests.docs.from_code import described

README = (Path(__file__).parents[3] / "README.md").read_text()


def rows(name: str) -> list[tuple[str, str, str]]:
    """Return the rows of a marked table."""
    part = README.split(f"<!-- {name}: begin")[1].split(f"<!-- {name}: end")[0]
    return re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", part, flags=re.MULTILINE)


def table(name: str) -> dict[str, str]:
    """Return the first two columns of a marked table."""
    return {row: default.strip("`") for row, default, _ in rows(name)}


def test_the_options_table_names_every_option() -> None:
    assert set(table("options")) == {f"lock_{name}" for name in OPTIONS}


def test_the_options_table_gives_the_default_of_both_conflict_policies() -> None:
    policies = f"`{LockOptions().run_policy}` at run, `{LockOptions().publish_policy}` at publish"
    assert table("options")["lock_on_conflict"] == policies.strip("`")


SINGLE = [field for field in fields(LockOptions) if not field.name.endswith("_policy")]


@pytest.mark.parametrize("field", SINGLE, ids=lambda field: field.name)
def test_the_options_table_gives_the_default(field) -> None:
    assert table("options")[f"lock_{field.name}"] == str(field.default)


def test_the_settings_table_names_every_setting() -> None:
    assert set(table("settings")) == {
        f"redlock_{name}" for name in (*CHECKS, *SELF_DESCRIBING_CHECKS)
    }


@pytest.mark.parametrize(
    "name", ["max_ttl", "key_prefix", "drift_factor", "node_timeout", "guard", "dedupe"]
)
def test_the_settings_table_gives_the_default(name: str) -> None:
    assert table("settings")[f"redlock_{name}"] == str(getattr(RedlockSettings(), name))


@pytest.mark.parametrize("entry", described.options(), ids=lambda entry: entry.name)
def test_the_options_table_says_what_the_code_says(entry) -> None:
    assert plain(rows("options"))[entry.name] == entry.text


@pytest.mark.parametrize("entry", described.settings(), ids=lambda entry: entry.name)
def test_the_settings_table_says_what_the_code_says(entry) -> None:
    assert plain(rows("settings"))[entry.name] == entry.text


def plain(table: list[tuple[str, str, str]]) -> dict[str, str]:
    """Return what a table says, without its links, which docstrings do not have."""
    return {name: re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text) for name, _, text in table}


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tasks of an example out of the apps of other tests: Celery shares them."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.mark.usefixtures("unshared")
def test_the_first_example_runs_as_it_stands() -> None:
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
