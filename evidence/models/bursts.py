"""
What is explored of debounced bursts: the publishers and the worker of one key (`lock_debounce`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evidence.models.explorer import AnySetting


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSetting(AnySetting):
    """
    What is explored. Times are ticks of a second.

    Attributes:
        calls: how many are made, one after the other, at any moments.
        until: the last tick at which a call is made.
        quiet: `lock_debounce`, its first part.
        at_most: its second part.
        grace: how long a reservation lasts until it is confirmed.
        nodes: how many nodes there are.
        deaths: how many publishers die, before or after they send.
        failures: how many calls raise, whether or not the broker has taken the message.
        outages: how many calls find no quorum.
        forgets: how many times a node of a minority loses its data.
        silent: how many nodes of a minority stop to reply, at any moment and for good.
        one_id: all calls have the same task id.
    """

    model: ClassVar = "evidence.models.bursting:Bursts"
    calls: int = 3
    until: int = 4
    quiet: int = 2
    at_most: int = 3
    grace: int = 3
    nodes: int = 1
    deaths: int = 0
    failures: int = 0
    outages: int = 0
    forgets: int = 0
    silent: int = 0
    one_id: bool = False


_ALWAYS = frozenset(
    {
        *("sent with the lock", "replaces", "the at most decides", "waits for the worker"),
        *("ends as replaced", "is requeued", "a replaced message arrives first"),
        *("a replaced message arrives last", "begins"),
    }
)

BURSTS = (
    BurstSetting(name="burst", expects=_ALWAYS),
    BurstSetting(name="burst-died", deaths=1, expects=_ALWAYS | {"a publisher dies"}),
    BurstSetting(name="burst-failed", failures=1, expects=_ALWAYS | {"a call raises"}),
    BurstSetting(name="burst-outage", outages=1, expects=_ALWAYS | {"sent without the lock"}),
    BurstSetting(
        name="burst-one-id",
        failures=1,
        one_id=True,
        expects=_ALWAYS - {"ends as replaced"} | {"ignored", "a call raises"},
    ),
    BurstSetting(
        name="burst-forgets",
        calls=2,
        nodes=3,
        forgets=1,
        deaths=1,
        expects=_ALWAYS | {"a node forgets"},
    ),
    BurstSetting(
        name="burst-silent",
        calls=2,
        nodes=3,
        silent=1,
        deaths=1,
        expects=_ALWAYS | {"a node falls silent"},
    ),
)
