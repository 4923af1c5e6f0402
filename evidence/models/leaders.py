"""
What is explored of beats that take turns: their register, their ticks, and who drops what arrives.

A leader can sleep between any two steps and for any time; a later one may win the lease meanwhile.
Nothing is assumed about how long anything takes. What a leader knows comes from the register alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evidence.models.explorer import AnySetting


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
    gives_up: int = 0
    forgets: int = 0
    whole: bool = False
    nodes: int = 3


_ENDS = frozenset(
    {
        "claim: claimed",
        "claim: nodes differ",
        "write: written",
        "message: ran",
        "message: late",
        "a tick is sent by two",
    }
)
_STALE = frozenset({"claim: stale", "write: stale"})
_SILENT = frozenset({"claim: unavailable", "write: unavailable"})

LEADERS = (
    LeaderSetting(name="leaders-two", expects=_ENDS | _STALE | {"message: copy"}, whole=True),
    LeaderSetting(
        name="leaders-silent",
        gives_up=1,
        arrives=False,
        expects=_ENDS | _STALE | _SILENT,
        whole=True,
    ),
    LeaderSetting(
        name="leaders-anew",
        ticks=1,
        recorded=False,
        gives_up=1,
        expects=_ENDS | _STALE | _SILENT | {"message: copy"},
        whole=True,
    ),
    LeaderSetting(
        name="leaders-begin",
        recorded=False,
        arrives=False,
        expects=_ENDS | _STALE,
        whole=True,
    ),
    LeaderSetting(
        name="leaders-three",
        leaders=3,
        ticks=1,
        arrives=False,
        expects=_ENDS | _STALE,
        whole=True,
    ),
    LeaderSetting(
        name="leaders-chain",
        leaders=3,
        at_once=True,
        arrives=False,
        expects=_ENDS,
        whole=True,
    ),
    LeaderSetting(
        name="leaders-long-chain",
        leaders=3,
        ticks=3,
        at_once=True,
        arrives=False,
        expects=_ENDS,
    ),
    LeaderSetting(
        name="leaders-reorder",
        gives_up=1,
        reorders=True,
        arrives=False,
        expects=_ENDS | {"write: unavailable"},
    ),
    LeaderSetting(
        name="leaders-forget",
        ticks=1,
        forgets=1,
        expects=_ENDS | {"something was lost with a node's data"},
        whole=True,
    ),
)
