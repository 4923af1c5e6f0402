"""Each scene with a few calls, as `python -m tests.calls` plays it with many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.calls.__main__ import NAMES
from tests.calls.stage import ROOT, Setup, servers

SETUPS = [
    pytest.param(Setup(processes=4), id="four processes"),
    pytest.param(Setup(processes=1, prefetch=1, late=True), id="one process, acks late"),
    pytest.param(Setup(broker="rabbitmq", late=True), id="rabbitmq", marks=pytest.mark.system),
]

CALLS = "3"


@pytest.fixture(scope="module", params=SETUPS)
def environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    with servers(request.param) as environment:
        yield environment


@pytest.mark.parametrize("scene", NAMES)
def test_a_scene_ends_as_promised(scene: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.calls.play", scene, CALLS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
