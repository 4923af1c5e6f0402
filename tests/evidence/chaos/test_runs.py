"""Short runs of the whole thing; `make chaos` runs it for longer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evidence.chaos.clocks import Clock, build_shim
from evidence.chaos.run import run
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
#: Servers, a worker and its publishers start one after the other.
START_PATIENCE = 4 * TIMEOUT


def test_a_few_seconds_within_the_assumptions_break_no_rule():
    outcome = run(1, 4.0)
    assert outcome.verdict.violations == []
    assert outcome.history.holds


def test_a_few_seconds_beyond_them_show_overlaps_and_lose_nothing_behind_the_guard():
    outcome = run(2, 4.0, outside=True)
    assert outcome.verdict.overlaps
    assert outcome.verdict.fenced_lost == 0
    assert outcome.verdict.violations == []


@pytest.mark.timeout(2 * START_PATIENCE)
def test_a_failover_of_sentinel_groups_breaks_no_rule():
    outcome = run(3, 3.0, sentinel=True)
    assert outcome.verdict.violations == []
    assert any(kind.endswith(": promoted") for kind in outcome.faults)


@pytest.mark.timeout(2 * START_PATIENCE)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    ("layer", "last"), [("--locks", "worker-7.1.jsonl"), ("--tasks", "p1.1-*.jsonl")]
)
def test_nothing_is_left_behind_when_a_run_is_ended(how, layer, last, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "evidence.chaos", layer, "--duration", "60"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def begun() -> bool:
        assert process.poll() is None, f"it has ended with {process.returncode}"
        return any(tmp_path.glob(f"celery-redlock-chaos-*/{last}"))

    try:
        wait_until(begun, START_PATIENCE, message="the run to begin")
        assert _processes_about(tmp_path)
        process.send_signal(how)
        process.wait(TIMEOUT)
        wait_until(lambda: not _processes_about(tmp_path), message="processes are left")
        wait_until(lambda: not list(tmp_path.iterdir()), message="files are left")
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("cc")), reason="needs a C compiler: gcc or cc"
)
def test_a_clock_of_another_process_can_be_stepped_and_sped(tmp_path):
    shim = build_shim(tmp_path)
    assert shim is not None
    clock = Clock(tmp_path / "clock", shim)
    asks = "import sys, time\nfor line in sys.stdin: print(time.time(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", asks],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("?\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        before = ask()
        clock.step(1000.0)
        after = ask()
        assert 1000.0 <= after - before < 1100.0
        clock.step(-1000.0)
        clock.run_at(1_000_000_000)
        start = ask()
        wait_until(lambda: ask() - start > 100.0)
        process.stdin.close()
    clock.close()


def _processes_about(directory: Path) -> list[int]:
    """Return the processes that were started with a path below this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(int(entry.name))
    return found
