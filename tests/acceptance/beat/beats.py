"""Real `celery beat` processes, each with files and a clock of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tests.acceptance.beat.history import Pulse
from tests.acceptance.program import Program

PLAIN = "celery.beat:PersistentScheduler"
REDLOCK = "celery_redlock.beat:RedlockScheduler"

APPS = "tests.acceptance.apps"
# A beat with this module knows the tasks, and with them the package.
TASKS = f"{APPS}.beat_tasks"
OVERLAP = f"{APPS}.beat_overlap"
# A beat with this one notes when it leads.
LEADER = f"{APPS}.beat_leader"
# A beat with this one notes what it sends, and can be held up.
WATCH = f"{APPS}.beat_watch"

# Where the user's time stands in /proc/PID/stat, behind the name; the system's follows it.
_UTIME = 11

Schedule = dict[str, dict[str, Any]]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Usage:
    """
    What a process has had of the processors since it began, in seconds.

    Attributes:
        cpu: the time that it ran.
        queued: the time that it wanted to run and had to wait for others.
    """

    cpu: float
    queued: float

    @property
    def wanted(self) -> float:
        """The time that it did not sleep: that of a busy loop is all of it, on any machine."""
        return self.cpu + self.queued

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.cpu - earlier.cpu, self.queued - earlier.queued)


def watched(name: str, key: str, schedule: Schedule, logs: Path) -> dict[str, Any]:
    """Return what the module that watches a beat has to be told in the stage."""
    return {
        "name": name,
        "key": key,
        "schedule": schedule,
        "pulse": str(logs / f"{name}.pulse"),
        "gate": str(logs / f"{name}.gate"),
    }


class Beat(Program):
    """
    One `celery beat` process.

    Args:
        key: whose journal it writes to.
        urls: the servers, as for workers.
        conf: the settings of its app, `task_default_queue` among them.
        schedule: its entries by name, as `tests.acceptance.beat.scenes.entry` makes them.
        logs: where its log and files go.
        scheduler: what `-S` names.
        schedule_file: that of another beat, which has ended; else one of its own.
        skew: by how many seconds its wall clock is wrong.
        include: the modules that its app loads beside the watching one.
        environment: further variables of its environment.
        more: what else its modules find in the stage.
    """

    def __init__(
        self,
        *,
        key: str,
        urls: dict[str, str],
        conf: dict[str, Any],
        schedule: Schedule,
        logs: Path,
        scheduler: str = PLAIN,
        schedule_file: Path | None = None,
        skew: float = 0.0,
        include: Sequence[str] = (TASKS,),
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        name = f"beat-{next(_numbers)}"
        self._is_plain = scheduler == PLAIN
        self.schedule_file = schedule_file or logs / f"{name}.schedule"
        self._watched = watched(name, key, schedule, logs)
        stage = {
            "urls": urls,
            "conf": {**conf, "include": [*include, WATCH]},
            "beat": self._watched,
            "skew": skew,
            **more,
        }
        program = f"{APPS}.skewed" if skew else "celery"
        command = [
            *(sys.executable, "-m", program, "--quiet", "-A", f"{APPS}.stage"),
            *("beat", f"--scheduler={scheduler}", f"--schedule={self.schedule_file}"),
            "--loglevel=INFO",
        ]
        variables = {**os.environ, **(environment or {}), "ACCEPTANCE_STAGE": json.dumps(stage)}
        super().__init__(name, command, variables, logs)

    def wait_until_started(self) -> Self:
        self.wait_for_log("beat: Starting...")
        return self

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, as an operator does, and wait until it has."""
        self.signal(signal.SIGTERM)
        is_clean = self.wait_for_exit() == 0
        if self._is_plain:
            # Celery closes its schedule in the signal's handler, perhaps in the middle of a tick.
            is_clean |= "operation on closed shelf" in self.log_tail
        assert is_clean, self.log_tail

    def close_gate(self, moment: Literal["before", "after"]) -> None:
        """Hold it up right before or right after it has sent its next message."""
        self._gate(moment).touch()

    def open_gate(self, moment: Literal["before", "after"]) -> None:
        self._gate(moment).unlink()

    def _gate(self, moment: str) -> Path:
        return Path(f"{self._watched['gate']}.{moment}")

    @property
    def pulse(self) -> Pulse:
        return Pulse.read(Path(self._watched["pulse"]))

    @property
    def usage(self) -> Usage:
        """What it has had of the processors, in all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_UTIME]) + int(fields[_UTIME + 1])
        queued = 0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads come and go
                queued += int((thread / "schedstat").read_text().split()[1])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), queued / 1e9)

    @property
    def has_schedule_file(self) -> bool:
        """Whether there is a file of its own, with whatever ending its database gave it."""
        return any(self.schedule_file.parent.glob(f"{self.schedule_file.name}*"))
