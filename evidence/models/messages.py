"""
What is explored of locks that messages carry: copies of one, rivals, publishers, hand backs.

Where nothing ends by itself, a body may run once for all copies of a message, and a reservation
that nobody could take over has to be there afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from evidence.models.config import Contender, explored

#: A worker that got the message of `Q`, takes its lock over and marks the message.
_COPY = Contender(candidate=1, keys=("k", "m"), takes_over="Q", ends=("finish",), gives_up=False)
#: The same without the mark, and one that keeps the lock.
_TAKES = replace(_COPY, keys=("k",))
_KEEPS = replace(_COPY, ends=(), releases=False)
_LONG_COPY = replace(_KEEPS, candidate=0)
_HANDS_BACK = replace(_TAKES, ends=("hand back",))
# One that replaces another has a larger candidate: so its owner value is known in advance.
_PUBLISHER = Contender(reserves=True, ends=("lengthen", "cancel"), gives_up=False, starts_by=0)
#: A worker that got the message of `A`.
_HEIR = Contender(takes_over="A", ends=("finish",), gives_up=False)

#: The lock is there from the beginning, perhaps while time passes; or somebody has yet to publish.
_brought = partial(explored, brought=True, expiries=0)
_timed = partial(explored, brought=True, timed=True, ttl=3)
_published = partial(explored, expiries=0)
_SECOND_ROUND = {"contended (asks)", "second round"}

HAND_OVER = (
    _brought("hand-twins", _COPY, _COPY, expects=_SECOND_ROUND | {"finished"}),
    _brought("hand-vanish", _TAKES, _TAKES, expiries=3, expects=_SECOND_ROUND | {"finished"}),
    _brought(
        "hand-kept",
        replace(_KEEPS, gives_up=True),
        _KEEPS,
        keeps=True,
        expects={"undone: all known", "undone: some unknown", "split (asks)"},
    ),
    _brought(
        "hand-mark",
        Contender(candidate=1, keys=("m",), ends=("finish",), gives_up=False),
        replace(_KEEPS, gives_up=True),
        keeps=True,
        expects={"finished", "undone: all known", "contended (asks)"},
    ),
    _brought(
        "hand-left",
        replace(_COPY, gives_up=True),
        losses=1,
        keeps=True,
        whole=True,
        expects={"finished", "undone: some unknown"},
    ),
    _brought(
        "hand-rival",
        _TAKES,
        Contender(candidate=1, gives_up=False),
        expiries=3,
        expects=_SECOND_ROUND | {"finished"},
    ),
    _brought(
        "hand-back",
        _HANDS_BACK,
        Contender(candidate=1, takes_over="A", gives_up=False),
        expiries=2,
        expects=_SECOND_ROUND | {"lengthened"},
    ),
    _published(
        "hand-publish",
        _PUBLISHER,
        _HEIR,
        Contender(gives_up=False),
        expects={"lengthened", "cancelled", "finished"},
    ),
    _published(
        "hand-late",
        replace(_PUBLISHER, candidate=3, ends=("lengthen",)),
        _HEIR,
        expiries=1,
        clears=True,
        whole=True,
        expects={"finished", "late: extend", "late: release"},
    ),
    _brought(
        "hand-back-late",
        _HANDS_BACK,
        replace(_HEIR, candidate=1),
        clears=True,
        whole=True,
        expects={"finished", "lengthened", "asks whether it stands"},
    ),
    _published(
        "hand-replace",
        _PUBLISHER,
        replace(_PUBLISHER, candidate=1, takes_over="A"),
        _HEIR,
        expects={"lengthened", "cancelled", "contended (asks)"},
    ),
    _timed(
        "hand-trust",
        replace(_LONG_COPY, starts_by=0, ends=("finish",)),
        _LONG_COPY,
        Contender(releases=False, gives_up=False, starts_from=1),
        horizon=2,
        expects={"finished", "contended (asks)"},
    ),
    _timed(
        "hand-restart",
        replace(_LONG_COPY, starts_by=0),
        _LONG_COPY,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("snapshot", "empty"),
        expects={"acquire: Quarantined", "crash: snapshot", "crash: empty"},
    ),
)
