"""
What is explored of calls with one key: sent, dropped, replaced, revoked, delivered twice, run.

The nodes are one here, and answer at once: that their quorum behaves so is what the other settings
are about. The rules are the shipped ones.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """
    One call.

    Attributes:
        policy: `lock_on_conflict` at publish.
        tied: somebody waits for this very message, or something is to follow it.
        by: the call whose end sends this one, as the next step of a chain; None: a program.
    """

    policy: str = "existing"
    tied: bool = False
    by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSetting:
    """
    What is explored.

    Attributes:
        callers: the calls; they are sent in any order, but for those that another's end sends.
        frees_at_start: the key is free while the body runs (`until_executing`).
        revokes: how many calls may be revoked while they wait.
        expires: how many messages may be dropped by the broker or the worker.
        losses: how many workers may be lost in a body.
        twice: how many messages may be delivered twice.
        expects: kinds of events that must be reached.
    """

    name: str
    callers: tuple[Caller, ...]
    frees_at_start: bool = False
    revokes: int = 0
    expires: int = 0
    losses: int = 0
    twice: int = 0
    expects: frozenset[str] = frozenset()
    whole: bool = True


_TIED = Caller(tied=True)
_NEWER = Caller(policy="replace")
_RAN = frozenset({"begins", "stores its result", "lets go"})
_TIES = _RAN | {"sent as a duplicate", "skipped as a repetition"}

CALLS = tuple(
    setting
    for frees in (False, True)
    for mode in (("starts" if frees else "ends"),)
    for setting in (
        CallSetting(
            name=f"calls-{mode}-plain",
            callers=(Caller(), Caller(), _TIED),
            frees_at_start=frees,
            revokes=1,
            losses=1,
            twice=1,
            expects=_TIES | {"dropped", "revoked", "is lost", "ignored as a copy"},
        ),
        CallSetting(
            name=f"calls-{mode}-tied",
            callers=(Caller(), _TIED, _TIED),
            frees_at_start=frees,
            revokes=1,
            expires=1,
            twice=1,
            expects=_TIES | {"revoked", "expires"},
        ),
        CallSetting(
            name=f"calls-{mode}-refused",
            callers=(Caller(), Caller(policy="raise", tied=True), Caller(policy="raise")),
            frees_at_start=frees,
            revokes=1,
            twice=1,
            expects=_RAN | {"failed as a repetition", "refused"},
        ),
        CallSetting(
            name=f"calls-{mode}-newest",
            callers=(_NEWER, _NEWER, _NEWER),
            frees_at_start=frees,
            expires=1,
            twice=1,
            expects=_RAN | {"replaces", "stands back"},
        ),
        CallSetting(
            name=f"calls-{mode}-mixed",
            callers=(Caller(), _TIED, _NEWER),
            frees_at_start=frees,
            revokes=1,
            twice=1,
            expects=_TIES | {"replaces", "stands back"},
        ),
        CallSetting(
            name=f"calls-{mode}-chain",
            callers=(Caller(tied=True), Caller(tied=True, by=0), Caller()),
            frees_at_start=frees,
            losses=1,
            twice=1,
            expects=_RAN | ({"dropped"} if frees else {"sent after", "dropped"}),
        ),
    )
)
