"""What failed runs once more by itself, and noise is named and fails nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rerun import NOISE, PASSED_ALONE

ROOT = Path(__file__).parents[3]

#: A test that fails in its first run, as one does that a busy machine fails.
NOISY = """
from pathlib import Path

def test_noisy():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
NAMED = "test_0.py::test_noisy (assert not True)"
FAULTY = """
def test_faulty():
    assert False
"""
SOUND = """
def test_sound():
    assert True
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(suite: Path, *texts: str, processes: int = 0) -> subprocess.CompletedProcess[str]:
    for number, text in enumerate(texts):
        (suite / f"test_{number}.py").write_text(text)
    # The tests that run it have their own options and temporary folders. The plugins that are
    # installed cost a second in each process.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.rerun", "--numprocesses", str(processes)],
        cwd=suite,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_a_test_that_passes_alone_is_named_and_fails_nothing(suite: Path) -> None:
    done = run(suite, NOISY, SOUND)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"1 passed only alone: {NAMED}"


def test_a_test_that_passes_alone_is_kept_in_a_file(suite: Path) -> None:
    run(suite, NOISY)
    assert (suite / PASSED_ALONE).read_text() == f"{NAMED}\n"


def test_a_fault_fails_the_run_beside_a_noisy_test(suite: Path) -> None:
    done = run(suite, NOISY, FAULTY, processes=2)
    assert done.returncode == 1
    assert done.stdout.count("FAILED test_1.py::test_faulty") == 2  # in both passes


def test_where_nothing_fails_nothing_runs_again(suite: Path) -> None:
    done = run(suite, SOUND)
    assert done.returncode == 0
    assert "once more" not in done.stdout


def test_a_failure_of_an_earlier_run_is_not_tried_again(suite: Path) -> None:
    run(suite, FAULTY, NOISY)
    (suite / "test_0.py").write_text(SOUND)
    (suite / "seen").unlink()
    done = run(suite)
    assert "1 failed, and run once more" in done.stdout


def test_more_failures_than_noise_explains_are_not_tried_again(suite: Path) -> None:
    done = run(suite, *[NOISY.replace("seen", f"seen{at}") for at in range(NOISE + 1)])
    assert done.returncode == 1
    assert "once more" not in done.stdout


def test_each_process_stops_after_more_failures_than_noise_explains(suite: Path) -> None:
    many = FAULTY.replace("test_faulty():", "test_faulty_{}():")
    done = run(suite, "".join(many.format(at) for at in range(10 * NOISE)), processes=2)
    assert done.returncode != 0
    assert f"{2 * (NOISE + 1)} failed" in done.stdout
    assert "once more" not in done.stdout


def test_a_suite_that_cannot_be_collected_fails(suite: Path) -> None:
    assert run(suite, "import nothing_of_this_name", SOUND).returncode != 0
