"""
Seven jobs for three seats, and one that slept too long: `python -m examples.licence_seats`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from examples.licence_seats.job import SEATS
from examples.stage import Process, Stage, expect, until

JOBS = 7


def main() -> None:
    """Start servers, and play the example."""
    with Stage() as stage:
        os.environ["SEATS"] = str(stage.directory)
        more_jobs_than_seats(stage)
        one_sleeps_too_long(stage)


def more_jobs_than_seats(stage: Stage) -> None:
    """Start all jobs at once."""
    names = [f"job-{number}" for number in range(1, JOBS + 1)]
    jobs = [start(stage, name) for name in names]
    print(f"{JOBS} jobs are started at once, and there are {SEATS} seats.")
    until(lambda: all(job.status is not None for job in jobs), "the jobs to end")
    for name, job in zip(names, jobs, strict=True):
        print(f"{name} had {seat_of(job)}")
    expect("no two jobs had one seat at once", all(job.status == 0 for job in jobs))
    written = sorted(line for seat in range(SEATS) for line in record(stage, f"seat#{seat}"))
    expect("each job is in the record of one seat", written == names)


def one_sleeps_too_long(stage: Stage) -> None:
    """Freeze a job between its read and its write, and let another have its seat."""
    others = [start(stage, name, "long") for name in ("long-1", "long-2")]
    until(lambda: all(map(seat_of, others)), "two jobs that take long", *others)
    late = start(stage, "late", "freeze")
    pid = until(lambda: re.search(r"frozen is process (\d+)", late.log), "a frozen job", late)[1]
    seat = seat_of(late)
    print(f"Two jobs take long. The third is process {pid}; it is frozen with {seat}.")
    successor = start(stage, "successor")
    until(lambda: successor.status is not None, "the seat of the frozen job to be free")
    print("The frozen job's lease has expired: a frozen process extends none.")
    expect("another job got its seat", seat_of(successor) == seat and successor.status == 0)

    os.kill(int(pid), signal.SIGCONT)
    print(f"Process {pid} wakes, and writes the record as it was when it read it.")
    until(lambda: late.status is not None, "the late job to end")
    expect("the late write was refused", "refused: " in late.log)
    *_, last = record(stage, seat)
    expect("the seat's record ends with the job that got the seat", last == "successor")

    (stage.directory / "finish").touch()
    until(lambda: all(job.status is not None for job in others), "the long jobs to end")
    smaller = all(token_of(job) < token_of(successor) for job in others)
    wrote = [record(stage, seat_of(job))[-1:] for job in others]
    claim = "the jobs in the other seats wrote, although their tokens are smaller"
    expect(claim, smaller and wrote == [["long-1"], ["long-2"]])


def start(stage: Stage, name: str, work: str = "short") -> Process:
    """Start a job."""
    return stage.start(sys.executable, "-m", "examples.licence_seats.job", name, work)


def seat_of(job: Process) -> str:
    """Return the seat that a job has or had; empty as long as it has none."""
    found = re.search(r"has (seat#\d)", job.log)
    return found[1] if found else ""


def token_of(job: Process) -> int:
    """Return the fencing token of a job."""
    found = re.search(r"under token (\d+)", job.log)
    return int(found[1]) if found else 0


def record(stage: Stage, seat: str) -> list[str]:
    """Return the jobs in the record of a seat."""
    file: Path = stage.directory / seat
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    main()
