"""
A long job, a lock node that restarts, and a lease that is lost: `python -m examples.video_job`.
"""

from __future__ import annotations

import os
from pathlib import Path

from celery_redlock.testing import LocalCluster
from examples.stage import Process, Stage, expect, until

RESTARTED = 1
STOPPED = (0, 2, 4)


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage:
        os.environ["VIDEO_DIRECTORY"] = str(stage.directory)
        worker = stage.start_worker("examples.video_job.tasks", processes=2)
        a_node_restarts(stage.nodes, stage.directory)
        if stage.nodes is None:
            print("The nodes are yours, so none of them is restarted or stopped.")
        else:
            the_lease_is_lost(stage.nodes, stage.directory, worker)


def a_node_restarts(nodes: LocalCluster | None, directory: Path) -> None:
    """Run a job longer than several leases, and restart a lock node in the middle of it."""
    from examples.video_job.tasks import FRAMES, LEASE, SECONDS_A_FRAME, transcode

    job = transcode.delay("holiday")
    seconds = FRAMES * SECONDS_A_FRAME
    print(
        f"A job of at least {seconds:g} s, with a lease of {LEASE:g} s that the watchdog extends."
    )
    until(lambda: progress(directory, "holiday") > FRAMES // 4, "a quarter of the film")
    holder = transcode.lock_holder("holiday")
    if holder is None:
        raise SystemExit("the job runs without its lock")
    first = token_at_work(directory, "holiday")
    print(f"The lock is held by process {holder.pid}, with token {first}.")
    if nodes is not None:
        nodes.restart(RESTARTED)
        print(f"Node {RESTARTED + 1} of {len(nodes)} is killed and comes back, empty.")
    token = until(lambda: job.ready() and job.get(), "the film to be ready")
    expect("the film is complete", film_is_complete(directory, "holiday"))
    expect(f"it was made in one go, under the same token {token}", token == first)


def the_lease_is_lost(nodes: LocalCluster, directory: Path, worker: Process) -> None:
    """Stop a majority of the lock nodes under a job."""
    from examples.video_job.tasks import FRAMES, transcode

    job = transcode.delay("wedding")
    until(lambda: progress(directory, "wedding") > FRAMES // 4, "a quarter of the second film")
    first = token_at_work(directory, "wedding")
    for node in STOPPED:
        nodes.pause(node)
    print(
        f"{len(STOPPED)} of {len(nodes)} nodes are stopped, so the worker cannot extend the lease."
    )
    until(lambda: not progress(directory, "wedding"), "the body to clean up")
    loss = next(line for line in worker.log.splitlines() if "lost its lock" in line)
    print("The worker's log:", loss.partition("] ")[2])
    unfinished = not (directory / "wedding.film").exists()
    expect("the body was stopped and has removed its frames; there is no film", unfinished)
    for node in STOPPED:
        nodes.resume(node)
    print("The nodes run again.")
    token = until(lambda: job.ready() and job.get(), "the second film to be ready")
    expect("the film is complete", film_is_complete(directory, "wedding"))
    expect(f"it was made anew, under the newer token {token}", token > first)


def token_at_work(directory: Path, video: str) -> int:
    """Return the token of the body that makes frames."""
    (frames,) = directory.glob(f"{video}.*.frames")
    return int(frames.name.split(".")[1])


def progress(directory: Path, video: str) -> int:
    """Return how many frames there are."""
    return len(list(directory.glob(f"{video}.*.frames/*")))


def film_is_complete(directory: Path, video: str) -> bool:
    """Return whether every frame is in the film, once and in order."""
    from examples.video_job.tasks import FRAMES

    film = (directory / f"{video}.film").read_text().splitlines()
    return film == [f"frame {number}" for number in range(FRAMES)]


if __name__ == "__main__":
    main()
