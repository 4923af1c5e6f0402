"""Each scene with a few calls, as `python -m evidence.calls` plays it with many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from evidence.calls import __main__ as command
from evidence.calls.stage import ROOT, Figures, Setup, servers

pytestmark = pytest.mark.full

SETUPS = [
    pytest.param(Setup(processes=4), id="four processes"),
    # With those that need packages, for there is time for one set-up only in `make test`.
    pytest.param(
        Setup(processes=1, prefetch=1, late=True),
        id="one process, acks late",
        marks=pytest.mark.system,
    ),
    pytest.param(Setup(broker="rabbitmq", late=True), id="rabbitmq", marks=pytest.mark.system),
]

CALLS = "3"


@pytest.fixture(scope="module", params=SETUPS)
def environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with servers(request.param) as environment:
        yield environment


@pytest.mark.parametrize("scene", command.NAMES)
def test_a_scene_ends_as_promised(scene: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evidence.calls.play", scene, CALLS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


KEPT = Figures(calls=2, bodies=1, broken={})
BROKEN = Figures(calls=2, bodies=2, broken={"until_executed, chord": 1})


@pytest.mark.parametrize(
    ("figures", "cell", "status"),
    [
        pytest.param(KEPT, "1/2 ok", 0, id="kept"),
        pytest.param(BROKEN, "2/2 BROKEN 1", 1, id="broken"),
        pytest.param(None, "NO END", 1, id="no end"),
    ],
)
def test_the_command_fails_where_one_cell_of_its_table_is_not_ok(
    figures: Figures | None,
    cell: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = iter([[KEPT], [figures]])
    monkeypatch.setattr(command, "_play_all", lambda *_: next(rows))
    monkeypatch.setattr(
        sys, "argv", ["calls", "pairs", "--broker=redis", "--processes=1", "--prefetch=1"]
    )

    assert command.main() == status

    assert capsys.readouterr().out.splitlines()[-1].rstrip().endswith(cell)
