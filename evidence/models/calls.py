"""
What is explored of calls with one key, from the publish to the end of their messages.

The nodes are one here, and reply at once or not at all: that their quorum behaves so is what the
other settings are about. Every decision is that of the shipped tables.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from evidence.models.explorer import AnySetting

#: How a body may end beside success: see `calling._ENDS`.
Ends = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """
    One call.

    Attributes:
        policy: `lock_on_duplicate`.
        tied: somebody depends on this very message.
        by: the call whose end sends this one, as the next step of a chain; None: a program.
        retries: the call whose body sends this one to continue it; None: it is no retry.
        tick: number of the tick that a schedule sends it for; those of one tick are copies.
        old_leader: the leader that sends it can be superseded.
        ends: how its body may end beside success.
        task: the task that it calls; several share the key.
    """

    policy: str = "existing"
    tied: bool = False
    by: int | None = None
    retries: int | None = None
    tick: int | None = None
    old_leader: bool = False
    ends: Ends = ()
    task: str = "task"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSetting(AnySetting):
    """
    What is explored.

    Attributes:
        mode: `lock_mode`.
        callers: the calls; they are sent in any order, but for those that another's end sends.
        at_run: `lock_on_conflict`.
        unavailable: `lock_on_unavailable`.
        acks_late: a message whose worker is lost is delivered again.
        revokes: how many calls may be revoked while they wait.
        expires: how many messages may be dropped by the broker or the worker.
        losses: how many workers may be lost in a body, and publishers in a publish.
        twice: how many messages may be delivered twice.
        outages: how often the nodes may not reply for a while.
        deadlines: how many ticks may miss their starting deadline.
    """

    model: ClassVar = "evidence.models.calling:Calls"
    mode: str
    callers: tuple[Caller, ...]
    at_run: str = "requeue"
    unavailable: str = "requeue"
    acks_late: bool = False
    revokes: int = 0
    expires: int = 0
    losses: int = 0
    twice: int = 0
    outages: int = 0
    deadlines: int = 0
    whole: bool = False
    #: The nearest are enough.
    limit: int = 6_000

    @property
    def stops(self) -> bool:
        """Whether a newer call may ask the body of an older one to stop."""
        return self.at_run in ("stop", "function")


_TIED = Caller(tied=True)
_NEWER = Caller(policy="replace")
_OTHER = Caller(policy="replace", task="other")
_RAN = frozenset({"begins", "stores its result", "lets go"})
_NEXT = {"REQUEST_STOP", "OVERTAKE", "its worker is lost before it requeues it"}
_AT_PUBLISH = ("until_executing", "until_executed", "until_and_while_executing", "until_expired")


def _setting(*, expects: Collection[str], **what: Any) -> CallSetting:
    return CallSetting(expects=_RAN | frozenset(expects), **what)


def _in(modes: Collection[str], scene: str, **what: Any) -> list[CallSetting]:
    return [_setting(name=f"calls-{mode}-{scene}", mode=mode, **what) for mode in modes]


_in_each = partial(_in, _AT_PUBLISH)
_in_workers = partial(_in, ("while_executing",))
#: Ticks, whose workers are lost and whose messages are delivered again then.
_ticks = partial(_setting, mode="while_executing", losses=1, acks_late=True)

CALLS = (
    *_in_each(
        "plain",
        callers=(Caller(), Caller(), _TIED),
        revokes=1,
        losses=1,
        twice=1,
        expects={"dropped", "sent as a duplicate", "SKIP", "revoked", "is lost", "IGNORE"},
    ),
    *_in_each(
        "tied",
        callers=(Caller(), _TIED, _TIED),
        revokes=1,
        expires=1,
        twice=1,
        expects={"sent as a duplicate", "SKIP", "revoked", "expires"},
    ),
    *_in_each(
        "refused",
        callers=(Caller(), Caller(policy="raise", tied=True), Caller(policy="raise")),
        revokes=1,
        twice=1,
        expects={"FAIL_AS_DUPLICATE", "refused"},
    ),
    *_in_each(
        "newest",
        callers=(_NEWER, _NEWER, _NEWER),
        expires=1,
        twice=1,
        expects={"takes the lock over", "END_AS_REPLACED"},
    ),
    *_in(
        ("until_executed", "until_expired"),
        "mixed",
        callers=(Caller(), _TIED, _NEWER),
        revokes=1,
        twice=1,
        expects={"takes the lock over", "sent as a duplicate", "SKIP"},
    ),
    *_in_each(
        "shared",
        callers=(Caller(), Caller(), _OTHER),
        losses=1,
        expects={"dropped", "sent without the lock", "WAIT"},
    ),
    *_in_each(
        "chain",
        callers=(Caller(tied=True), Caller(tied=True, by=0), Caller()),
        losses=1,
        twice=1,
        expects={"dropped"},
    ),
    *_in_each(
        "retry",
        callers=(
            Caller(ends=("retry",)),
            Caller(retries=0, tied=True),
            Caller(tied=True),
        ),
        revokes=1,
        twice=1,
        acks_late=True,
        losses=1,
        expects={"is sent to continue"},
    ),
    *_in_each(
        "outage",
        callers=(Caller(), _TIED),
        outages=2,
        twice=1,
        losses=1,
        acks_late=True,
        expects={"sent without the lock", "no node replies"},
    ),
    *_in_each(
        "endings",
        callers=(
            Caller(ends=("ignore", "reject", "back", "failure", "killed")),
            Caller(tied=True),
        ),
        acks_late=True,
        twice=1,
        expects={"ends: ignore", "ends: reject", "ends: back", "ends: killed"},
    ),
    *_in_workers(
        "requeue",
        callers=(Caller(), Caller(), Caller(tied=True)),
        losses=1,
        acks_late=True,
        outages=1,
        expects={"no node replies"},
    ),
    *_in_workers(
        "skip",
        callers=(Caller(tied=True), Caller(tied=True, by=0), Caller()),
        at_run="skip",
        losses=1,
        expects={"SKIP"},
    ),
    *_in_workers(
        "raise",
        callers=(Caller(ends=("retry",)), Caller(retries=0), Caller(tied=True)),
        at_run="raise",
        unavailable="raise",
        outages=1,
        expects={"FAIL", "is sent to continue"},
    ),
    *_in_workers(
        "unlocked",
        callers=(Caller(), Caller()),
        unavailable="run_unlocked",
        outages=1,
        expects={"RUN_UNLOCKED"},
    ),
    *_in(
        ("until_and_while_executing",),
        "skip",
        callers=(Caller(), Caller(), Caller(tied=True)),
        at_run="skip",
        twice=1,
        expects={"SKIP"},
    ),
    *(
        _ticks(
            name=f"ticks-{mode}-{at_run}",
            mode=mode,
            callers=(Caller(tick=1), Caller(tick=1), Caller(tick=2)),
            at_run=at_run,
            twice=1,
            expects={"IGNORE"},
        )
        for mode, at_run in (
            ("while_executing", "requeue"),
            ("while_executing", "skip"),
            ("while_executing", "stop"),
            ("until_executed", "requeue"),
            ("until_executing", "requeue"),
        )
    ),
    _ticks(
        name="ticks-stop-order",
        callers=(Caller(tick=1), Caller(tick=2), Caller(tick=3)),
        at_run="stop",
        expects={"REQUEST_STOP", "OVERTAKE", "END_AS_REPLACED"},
    ),
    *_in_workers(
        "stop",
        callers=(Caller(), Caller(), Caller(tied=True)),
        at_run="stop",
        losses=1,
        acks_late=True,
        expects={"REQUEST_STOP", "OVERTAKE", "END_AS_REPLACED", "stops"},
    ),
    *_in_workers(
        "function",
        callers=(Caller(), Caller()),
        at_run="function",
        losses=1,
        acks_late=True,
        expects=_NEXT | {"WAIT"},
        whole=True,
    ),
    _ticks(
        name="ticks-stop-lost",
        callers=(Caller(tick=1), Caller(tick=2), Caller(tick=2)),
        at_run="stop",
        expects=_NEXT | {"REQUEUE_COPY"},
        whole=True,
    ),
    _ticks(
        name="ticks-function",
        callers=(Caller(tick=1), Caller(tick=2)),
        at_run="function",
        expects=_NEXT | {"WAIT"},
        whole=True,
    ),
    *_in_workers(
        "stop-retry",
        callers=(Caller(ends=("retry",)), Caller(retries=0), Caller()),
        at_run="stop",
        outages=1,
        expects={"REQUEST_STOP", "END_AS_REPLACED", "is sent to continue"},
    ),
    *_in_workers(
        "stop-shared",
        callers=(Caller(), Caller(task="other"), Caller()),
        at_run="stop",
        losses=1,
        expects={"REQUEST_STOP", "WAIT"},
    ),
    *_in(
        ("until_and_while_executing",),
        "stop",
        callers=(_NEWER, _NEWER, _NEWER),
        at_run="stop",
        losses=1,
        twice=1,
        acks_late=True,
        expects={"REQUEST_STOP", "takes the lock over", "stops"},
    ),
    _ticks(
        name="ticks-stop-shared",
        callers=(Caller(tick=1), Caller(tick=2, task="other"), Caller(tick=3)),
        at_run="stop",
        expects={"REQUEST_STOP", "WAIT"},
    ),
    _ticks(
        name="ticks-deadline",
        callers=(Caller(tick=1), Caller(tick=1), Caller(tick=2)),
        at_run="skip",
        deadlines=1,
        twice=1,
        expects={"SKIP_AS_MISSED"},
    ),
    _ticks(
        name="ticks-deadline-publish",
        mode="until_executed",
        callers=(Caller(tick=1), Caller(tick=2)),
        deadlines=1,
        twice=1,
        losses=0,
        acks_late=False,
        expects={"SKIP_AS_MISSED"},
    ),
    _ticks(
        name="ticks-leaders",
        callers=(
            Caller(tick=1, old_leader=True),
            Caller(tick=2, old_leader=True),
            Caller(tick=2),
        ),
        twice=1,
        expects={"DROP_AS_SUPERSEDED", "a newer leader takes over"},
    ),
    _ticks(
        name="ticks-abandoned",
        callers=(
            Caller(tick=1, ends=("ignore", "reject", "back", "killed")),
            Caller(tick=1, ends=("ignore", "reject", "back", "killed")),
        ),
        twice=1,
        losses=0,
        expects={"ends: ignore", "RETAKE"},
    ),
)
