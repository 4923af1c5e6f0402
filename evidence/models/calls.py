"""
What is explored of calls with one key, from the publish to the end of their messages.

The nodes are one here, and reply at once or not at all: that their quorum behaves so is what the
other settings are about. Every decision is that of the shipped tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
_NEXT = frozenset({"REQUEST_STOP", "OVERTAKE", "its worker is lost before it requeues it"})
_AT_PUBLISH = ("until_executing", "until_executed", "until_and_while_executing", "until_expired")


def _in(modes: tuple[str, ...], scene: str, **what: object) -> tuple[CallSetting, ...]:
    return tuple(
        CallSetting(name=f"calls-{mode}-{scene}", mode=mode, **what)  # type: ignore[arg-type]
        for mode in modes
    )


_EACH = _AT_PUBLISH
_IN_BODY = ("until_executed", "until_expired")

CALLS = (
    *_in(
        _EACH,
        "plain",
        callers=(Caller(), Caller(), _TIED),
        revokes=1,
        losses=1,
        twice=1,
        expects=_RAN | {"dropped", "sent as a duplicate", "SKIP", "revoked", "is lost", "IGNORE"},
    ),
    *_in(
        _EACH,
        "tied",
        callers=(Caller(), _TIED, _TIED),
        revokes=1,
        expires=1,
        twice=1,
        expects=_RAN | {"sent as a duplicate", "SKIP", "revoked", "expires"},
    ),
    *_in(
        _EACH,
        "refused",
        callers=(Caller(), Caller(policy="raise", tied=True), Caller(policy="raise")),
        revokes=1,
        twice=1,
        expects=_RAN | {"FAIL_AS_DUPLICATE", "refused"},
    ),
    *_in(
        _EACH,
        "newest",
        callers=(_NEWER, _NEWER, _NEWER),
        expires=1,
        twice=1,
        expects=_RAN | {"takes the lock over", "END_AS_REPLACED"},
    ),
    *_in(
        _IN_BODY,
        "mixed",
        callers=(Caller(), _TIED, _NEWER),
        revokes=1,
        twice=1,
        expects=_RAN | {"takes the lock over", "sent as a duplicate", "SKIP"},
    ),
    *_in(
        _EACH,
        "shared",
        callers=(Caller(), Caller(), _OTHER),
        losses=1,
        expects=_RAN | {"dropped", "sent without the lock", "WAIT"},
    ),
    *_in(
        _EACH,
        "chain",
        callers=(Caller(tied=True), Caller(tied=True, by=0), Caller()),
        losses=1,
        twice=1,
        expects=_RAN | {"dropped"},
    ),
    *_in(
        _EACH,
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
        expects=_RAN | {"is sent to continue"},
    ),
    *_in(
        _EACH,
        "outage",
        callers=(Caller(), _TIED),
        outages=2,
        twice=1,
        losses=1,
        acks_late=True,
        expects=_RAN | {"sent without the lock", "no node replies"},
    ),
    *_in(
        _EACH,
        "endings",
        callers=(
            Caller(ends=("ignore", "reject", "back", "failure", "killed")),
            Caller(tied=True),
        ),
        acks_late=True,
        twice=1,
        expects=_RAN | {"ends: ignore", "ends: reject", "ends: back", "ends: killed"},
    ),
    *_in(
        ("while_executing",),
        "requeue",
        callers=(Caller(), Caller(), Caller(tied=True)),
        losses=1,
        acks_late=True,
        outages=1,
        expects=_RAN | {"no node replies"},
    ),
    *_in(
        ("while_executing",),
        "skip",
        callers=(Caller(tied=True), Caller(tied=True, by=0), Caller()),
        at_run="skip",
        losses=1,
        expects=_RAN | {"SKIP"},
    ),
    *_in(
        ("while_executing",),
        "raise",
        callers=(Caller(ends=("retry",)), Caller(retries=0), Caller(tied=True)),
        at_run="raise",
        unavailable="raise",
        outages=1,
        expects=_RAN | {"FAIL", "is sent to continue"},
    ),
    *_in(
        ("while_executing",),
        "unlocked",
        callers=(Caller(), Caller()),
        unavailable="run_unlocked",
        outages=1,
        expects=_RAN | {"RUN_UNLOCKED"},
    ),
    *_in(
        ("until_and_while_executing",),
        "skip",
        callers=(Caller(), Caller(), Caller(tied=True)),
        at_run="skip",
        twice=1,
        expects=_RAN | {"SKIP"},
    ),
    *(
        CallSetting(
            name=f"ticks-{mode}-{at_run}",
            mode=mode,
            callers=(Caller(tick=1), Caller(tick=1), Caller(tick=2)),
            at_run=at_run,
            losses=1,
            twice=1,
            acks_late=True,
            expects=_RAN | {"IGNORE"},
        )
        for mode, at_run in (
            ("while_executing", "requeue"),
            ("while_executing", "skip"),
            ("while_executing", "stop"),
            ("until_executed", "requeue"),
            ("until_executing", "requeue"),
        )
    ),
    CallSetting(
        name="ticks-stop-order",
        mode="while_executing",
        callers=(Caller(tick=1), Caller(tick=2), Caller(tick=3)),
        at_run="stop",
        losses=1,
        acks_late=True,
        expects=_RAN | {"REQUEST_STOP", "OVERTAKE", "END_AS_REPLACED"},
    ),
    *_in(
        ("while_executing",),
        "stop",
        callers=(Caller(), Caller(), Caller(tied=True)),
        at_run="stop",
        losses=1,
        acks_late=True,
        expects=_RAN | {"REQUEST_STOP", "OVERTAKE", "END_AS_REPLACED", "stops"},
    ),
    *_in(
        ("while_executing",),
        "function",
        callers=(Caller(), Caller()),
        at_run="function",
        losses=1,
        acks_late=True,
        expects=_RAN | _NEXT | {"WAIT"},
        whole=True,
    ),
    CallSetting(
        name="ticks-stop-lost",
        mode="while_executing",
        callers=(Caller(tick=1), Caller(tick=2), Caller(tick=2)),
        at_run="stop",
        losses=1,
        acks_late=True,
        expects=_RAN | _NEXT | {"REQUEUE_COPY"},
        whole=True,
    ),
    CallSetting(
        name="ticks-function",
        mode="while_executing",
        callers=(Caller(tick=1), Caller(tick=2)),
        at_run="function",
        losses=1,
        acks_late=True,
        expects=_RAN | _NEXT | {"WAIT"},
        whole=True,
    ),
    *_in(
        ("while_executing",),
        "stop-retry",
        callers=(Caller(ends=("retry",)), Caller(retries=0), Caller()),
        at_run="stop",
        outages=1,
        expects=_RAN | {"REQUEST_STOP", "END_AS_REPLACED", "is sent to continue"},
    ),
    *_in(
        ("while_executing",),
        "stop-shared",
        callers=(Caller(), Caller(task="other"), Caller()),
        at_run="stop",
        losses=1,
        expects=_RAN | {"REQUEST_STOP", "WAIT"},
    ),
    *_in(
        ("until_and_while_executing",),
        "stop",
        callers=(_NEWER, _NEWER, _NEWER),
        at_run="stop",
        losses=1,
        twice=1,
        acks_late=True,
        expects=_RAN | {"REQUEST_STOP", "takes the lock over", "stops"},
    ),
    CallSetting(
        name="ticks-stop-shared",
        mode="while_executing",
        callers=(Caller(tick=1), Caller(tick=2, task="other"), Caller(tick=3)),
        at_run="stop",
        losses=1,
        acks_late=True,
        expects=_RAN | {"REQUEST_STOP", "WAIT"},
    ),
    CallSetting(
        name="ticks-deadline",
        mode="while_executing",
        callers=(Caller(tick=1), Caller(tick=1), Caller(tick=2)),
        at_run="skip",
        deadlines=1,
        twice=1,
        losses=1,
        acks_late=True,
        expects=_RAN | {"SKIP_AS_MISSED"},
    ),
    CallSetting(
        name="ticks-deadline-publish",
        mode="until_executed",
        callers=(Caller(tick=1), Caller(tick=2)),
        deadlines=1,
        twice=1,
        expects=_RAN | {"SKIP_AS_MISSED"},
    ),
    CallSetting(
        name="ticks-leaders",
        mode="while_executing",
        callers=(
            Caller(tick=1, old_leader=True),
            Caller(tick=2, old_leader=True),
            Caller(tick=2),
        ),
        twice=1,
        losses=1,
        acks_late=True,
        expects=_RAN | {"DROP_AS_SUPERSEDED", "a newer leader takes over"},
    ),
    CallSetting(
        name="ticks-abandoned",
        mode="while_executing",
        callers=(
            Caller(tick=1, ends=("ignore", "reject", "back", "killed")),
            Caller(tick=1, ends=("ignore", "reject", "back", "killed")),
        ),
        twice=1,
        acks_late=True,
        expects=_RAN | {"ends: ignore", "RETAKE"},
    ),
)
