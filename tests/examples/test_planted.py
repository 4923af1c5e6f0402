"""An example whose lock is broken says so, and ends with an error."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLE_TIMEOUT, EXAMPLES, NAMES, Example, marked, started
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.full, pytest.mark.timeout(EXAMPLE_TIMEOUT + 2 * TIMEOUT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """
    A fault in an example.

    Attributes:
        file: where, from the example's directory.
        text: what is there.
        instead: what is put in its place.
        told: what the example has to say.
    """

    file: str
    text: str
    instead: str
    expected_output: str


PLANTS = {
    "bank_transfer": Plant(
        file="tasks.py",
        text="fenced_update(session, Account, Account.name == name, values=new)",
        instead="session.get(Account, name).balance = new['balance']",
        expected_output="NOT SEEN: the late write was refused",
    ),
    "webhook_dedupe": Plant(
        file="service.py",
        text='lock_mode="until_executed"',
        instead='lock_mode="while_executing"',
        expected_output="NOT SEEN: five deliveries were answered with one and the same task",
    ),
    "crawler": Plant(
        file="tasks.py",
        text="lock_window=WINDOW",
        instead="lock_window=WINDOW / 2",
        expected_output="NOT SEEN: no host was sent two tasks within",
    ),
    "licence_seats": Plant(
        file="job.py",
        text="seat.write(record)",
        instead="seat.path.write_bytes(record)",
        expected_output="NOT SEEN: the late write was refused",
    ),
    "polite_crawler": Plant(
        file="tasks.py",
        text='Limit("host:{host}", AT_ONCE)',
        instead='Limit("page:{path}", AT_ONCE)',
        expected_output="NOT SEEN: no site had more than 2 requests at once",
    ),
    "api_client": Plant(
        file="tasks.py",
        text='lock_rate=f"{A_SECOND}/s"',
        instead='lock_rate=f"{2 * A_SECOND}/s"',
        expected_output="NOT SEEN: no second had more than 10 starts",
    ),
    "nightly_report": Plant(
        file="tasks.py",
        text='lock_on_conflict="skip"',
        instead='lock_on_conflict="requeue"',
        expected_output="in vain for a tick that is skipped",
    ),
    "video_job": Plant(
        file="tasks.py",
        text='lock_on_lost="interrupt"',
        instead='lock_on_lost="flag"',
        expected_output="NOT SEEN: the body was stopped",
    ),
    "django_project": Plant(
        file="concerts/tasks.py",
        text='lock_key="concert:{concert_id}"',
        instead='lock_key="customer:{customer}"',
        expected_output="StaleFencingToken",
    ),
    "other_language": Plant(
        file="tasks.py",
        text='lock_key="stock:{item}"',
        instead='lock_key="another:{item}"',
        expected_output="NOT SEEN: the nodes show Python",
    ),
}


def change(file: Path, text: str, instead: str) -> None:
    assert text in file.read_text()
    file.write_text(file.read_text().replace(text, instead))


@pytest.mark.parametrize("name", marked([*PLANTS]))
def test_a_planted_fault_is_seen(name: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    top, temporary = tmp_path / "checkout", tmp_path / "temporary"
    temporary.mkdir()
    shutil.copytree(EXAMPLES, top / "examples")
    change(top / "examples" / name / plant.file, plant.text, plant.instead)
    # What a fault keeps from happening is not waited for as long as what has to happen.
    change(top / "examples" / "stage.py", "TIMEOUT = 120.0", "TIMEOUT = 45.0")

    process = started(Example.of(name), temporary, top)
    output, _ = process.communicate(timeout=EXAMPLE_TIMEOUT)

    assert process.returncode != 0, output
    assert plant.expected_output in output


def test_every_example_with_a_lock_has_a_planted_fault() -> None:
    # The demo itself runs without the lock: `tests/examples/test_demo.py`.
    assert {*PLANTS} == {*NAMES} - {"demo", "optimistic"}
