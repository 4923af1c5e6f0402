"""
Three beats, one of them killed, and every report once: `python -m examples.nightly_report`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from examples.stage import Process, Stage, expect, until

BEATS = 3
REPORTS = 3


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage:
        os.environ["REPORTS"] = str(stage.directory)
        worker = stage.start_worker("examples.nightly_report.tasks")
        beats = [start_beat(stage) for _ in range(BEATS)]
        leader = one_leads(beats, stage.directory)
        another_takes_over(leader, beats, stage.directory)
        one_report_takes_long(worker, stage.directory)
        check_reports(stage.directory)


def start_beat(stage: Stage) -> Process:
    """Start `celery beat` with the scheduler of this package."""
    return stage.start(
        *(sys.executable, "-m", "celery", "-A", "examples.nightly_report.tasks", "beat"),
        *("--scheduler=redlock", "--loglevel=INFO", "--pidfile="),
    )


def one_leads(beats: list[Process], directory: Path) -> Process:
    """Wait for some reports, and return the beat that sends them."""
    leader = until(lambda: leading(beats), "a beat to lead", *beats)
    print(f"{BEATS} beats are started. Beat {beats.index(leader) + 1} leads, the others stand by.")
    until(lambda: len(written(directory)) >= REPORTS, "the first reports")
    print(f"{REPORTS} nights have passed, and {REPORTS} reports are written.")
    return leader


def another_takes_over(leader: Process, beats: list[Process], directory: Path) -> None:
    """Kill the beat that leads."""
    leader.kill()
    before = len(written(directory))
    print(f"Beat {beats.index(leader) + 1} is killed.")
    others = [beat for beat in beats if beat is not leader]
    successor = until(lambda: leading(others), "another beat to lead", *others)
    expect(f"beat {beats.index(successor) + 1} leads now", successor is not leader)
    # One more, because the last report of the old leader may still have been on its way.
    until(lambda: len(written(directory)) > before + REPORTS, "reports of the new leader")
    print(f"{REPORTS} more nights have passed.")


def one_report_takes_long(worker: Process, directory: Path) -> None:
    """Let a report take longer than a night."""
    (directory / "slow").touch()
    until((directory / "inside").exists, "a report that takes long")
    before = worker.log.count("'skipped'")
    until(lambda: worker.log.count("'skipped'") > before, "a tick that is skipped")
    busy = (directory / "inside").exists()
    (directory / "slow").unlink()
    expect("a tick that came while a report was being written was skipped", busy)
    reports = len(written(directory))
    until(lambda: len(written(directory)) >= reports + REPORTS, "reports as before")
    expect("no report was begun while another was being written", "FileExists" not in worker.log)


def check_reports(directory: Path) -> None:
    """Check the reports."""
    nights = [due for due, _ in written(directory)]
    leaders = {token for _, token in written(directory)}
    expect(f"{len(nights)} reports are written, each once", len(nights) == len(set(nights)))
    expect(f"they were sent by {len(leaders)} leaders in turn", len(leaders) > 1)


def leading(beats: list[Process]) -> Process | None:
    """Return the beat that leads by its own log."""
    for beat in beats:
        if beat.log.rfind("Beat leads schedule") > beat.log.rfind("Beat no longer leads"):
            return beat
    return None


def written(directory: Path) -> list[tuple[str, str]]:
    """Return the night of each report, and the token of the beat that sent it."""
    file = directory / "written"
    # A line without an end is being written.
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(due, token) for due, token in (line.split() for line in lines)]


if __name__ == "__main__":
    main()
