"""
What is explored of beats that take turns: their register, their ticks, and who drops what arrives.

A leader can sleep between any two steps and for any time; a later one may win the lease meanwhile.
Nothing is assumed about how long anything takes. What a leader knows comes from the register alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from evidence.models.explorer import AnySetting

_ENDS = frozenset(
    {
        *("claim: claimed", "claim: nodes differ", "write: written"),
        *("message: ran", "message: late", "a tick is sent by two"),
    }
)
_STALE = _ENDS | {"claim: stale", "write: stale"}
_SILENT = _STALE | {"claim: unavailable", "write: unavailable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSetting(AnySetting):
    """
    What is explored.

    Attributes:
        leaders: how many leaderships there are, one after the other by their tokens.
        ticks: one entry is due so many times, at 1, 2, and so on.
        reorders: a node runs what a leader has told it in any order, as over several connections.
        at_once: nothing comes between what a leader says and what it makes of the answers, and a
            node that has not run it by then never will.
        arrives: messages are taken and run; otherwise each is only asked, at every moment, what
            would become of it.
        recorded: the entry has been recorded by an earlier leader, as due at 0.
        repeats: after its claim a leader writes again what it has found.
        gives_up: how often leaders may stop to wait for answers before they decide.
        forgets: how many nodes may lose their data; what the register promises is not checked then.
    """

    model: ClassVar = "evidence.models.schedule:Schedule"
    leaders: int = 2
    ticks: int = 2
    reorders: bool = False
    at_once: bool = False
    arrives: bool = True
    recorded: bool = True
    repeats: bool = False
    gives_up: int = 0
    forgets: int = 0
    nodes: int = 3
    expects: frozenset[str] = _ENDS


_asked = partial(LeaderSetting, arrives=False)

LEADERS = (
    LeaderSetting(name="leaders-two", expects=_STALE | {"message: copy"}),
    LeaderSetting(name="leaders-repeat", ticks=1, repeats=True, expects=_STALE | {"message: copy"}),
    _asked(name="leaders-repeat-chain", leaders=3, ticks=1, at_once=True, repeats=True),
    _asked(name="leaders-silent", gives_up=1, expects=_SILENT),
    LeaderSetting(
        name="leaders-anew",
        ticks=1,
        recorded=False,
        gives_up=1,
        expects=_SILENT | {"message: copy"},
    ),
    _asked(name="leaders-begin", recorded=False, expects=_STALE),
    _asked(name="leaders-three", leaders=3, ticks=1, expects=_STALE),
    _asked(name="leaders-chain", leaders=3, at_once=True),
    _asked(name="leaders-long-chain", leaders=3, ticks=3, at_once=True, whole=False),
    _asked(
        name="leaders-reorder",
        gives_up=1,
        reorders=True,
        expects=_ENDS | {"write: unavailable"},
        whole=False,
    ),
    LeaderSetting(
        name="leaders-forget",
        ticks=1,
        forgets=1,
        expects=_ENDS | {"something was lost with a node's data"},
    ),
)
