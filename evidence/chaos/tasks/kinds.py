"""The tasks that run: one kind for each mode, conflict policy and time of acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.tasks.config.option_values import MODES

#: The environment variable with what a process has to know.
ORDERS = "CHAOS_TASKS"

#: Seconds; the lease and `redlock_max_ttl` are those of the lock layer (`evidence.chaos.schedule`).
PUBLISH_GRACE = 2.0
QUEUE_TTL = 300.0
WINDOW = 3.0
LOCK_WAIT = 0.3
#: After so long the broker delivers again what a killed worker had not acknowledged.
VISIBILITY_TIMEOUT = 6.0

#: What a task returns that was skipped as a duplicate.
SKIPPED = "skipped as a duplicate"

#: Keys of this group are taken away from running bodies on purpose, so these may overlap.
TAKEN_AWAY = "taken-away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """
    One unique task.

    Attributes:
        mode: its `lock_mode`.
        policy: its `lock_on_duplicate`; "" where the mode locks in the worker only.
        acks_late: its message is acknowledged when it has ended, not when it begins.
        fair: its messages go in order (`lock_fair`).
    """

    name: str
    mode: str
    policy: str = "existing"
    acks_late: bool = False
    fair: bool = False

    @property
    def lock_wait(self) -> float | None:
        """Its `lock_wait`: set for half of the kinds."""
        return None if self.acks_late else LOCK_WAIT

    @property
    def task(self) -> str:
        """The name of the task."""
        return f"chaos.{self.name}"

    @property
    def in_body(self) -> bool:
        """Whether its bodies run under the lock."""
        return MODES[self.mode].in_body

    @property
    def at_publish(self) -> bool:
        """Whether the lock is taken when the task is sent."""
        return MODES[self.mode].at_publish

    @property
    def waiting_only(self) -> bool:
        """Whether only a task that still waits makes another one a duplicate."""
        return self.mode in ("until_executing", "until_and_while_executing")

    @property
    def windowed(self) -> bool:
        """Whether the key stays taken for a time, however soon the body ends."""
        return MODES[self.mode].for_window

    @property
    def unique(self) -> bool:
        """Whether a task that waits makes a later one a duplicate until it has begun to run."""
        return self.at_publish and not self.windowed and self.policy != "replace"


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="executing", mode="until_executing"),
        Kind(name="executing-late", mode="until_executing", acks_late=True),
        Kind(name="executed", mode="until_executed"),
        Kind(name="executed-late", mode="until_executed", acks_late=True),
        Kind(name="both", mode="until_and_while_executing"),
        Kind(name="both-late", mode="until_and_while_executing", acks_late=True),
        Kind(name="expired", mode="until_expired"),
        Kind(name="running", mode="while_executing", policy=""),
        Kind(name="running-late", mode="while_executing", policy="", acks_late=True),
        Kind(name="fair", mode="while_executing", policy="", acks_late=True, fair=True),
        Kind(name="executing-replace", mode="until_executing", policy="replace"),
        Kind(name="executed-replace", mode="until_executed", policy="replace", acks_late=True),
        Kind(name="both-replace", mode="until_and_while_executing", policy="replace"),
        Kind(name="executed-raise", mode="until_executed", policy="raise"),
    )
}
