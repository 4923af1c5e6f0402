"""
What is explored of locks that messages carry: copies of one, rivals, publishers, hand backs.

Where nothing ends by itself, a body may run once for all copies of a message, and a reservation
that nobody could take over has to be there afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from evidence.models.config import Contender, Setting

#: A worker that got the message of `Q`, takes its lock over and marks the message.
_COPY = Contender(candidate=1, keys=("k", "m"), takes_over="Q", ends=("finish",), gives_up=False)
_LONG_COPY = replace(_COPY, candidate=0, ends=(), releases=False)
# One that replaces another has a larger candidate: so its owner value is known in advance.
_PUBLISHER = Contender(reserves=True, ends=("lengthen", "cancel"), gives_up=False, starts_by=0)

HAND_OVER = (
    Setting(
        name="hand-twins",
        contenders=(_COPY, _COPY),
        brought=True,
        expiries=0,
        expects=frozenset({"finished", "contended (asks)", "second round"}),
    ),
    Setting(
        name="hand-vanish",
        contenders=(replace(_COPY, keys=("k",)),) * 2,
        brought=True,
        expiries=3,
        expects=frozenset({"finished", "contended (asks)", "second round"}),
    ),
    Setting(
        name="hand-kept",
        contenders=(
            replace(_COPY, ends=(), releases=False, gives_up=True),
            replace(_COPY, ends=(), releases=False),
        ),
        brought=True,
        expiries=0,
        keeps=True,
        expects=frozenset({"undone: all known", "undone: some unknown", "split (asks)"}),
    ),
    Setting(
        name="hand-mark",
        contenders=(
            Contender(candidate=1, keys=("m",), ends=("finish",), gives_up=False),
            replace(_COPY, ends=(), releases=False, gives_up=True),
        ),
        brought=True,
        expiries=0,
        keeps=True,
        expects=frozenset({"finished", "undone: all known", "contended (asks)"}),
    ),
    Setting(
        name="hand-left",
        contenders=(replace(_COPY, gives_up=True),),
        brought=True,
        expiries=0,
        losses=1,
        keeps=True,
        whole=True,
        expects=frozenset({"finished", "undone: some unknown"}),
    ),
    Setting(
        name="hand-rival",
        contenders=(replace(_COPY, keys=("k",)), Contender(candidate=1, gives_up=False)),
        brought=True,
        expiries=3,
        expects=frozenset({"finished", "contended (asks)", "second round"}),
    ),
    Setting(
        name="hand-back",
        contenders=(
            replace(_COPY, keys=("k",), ends=("hand back",)),
            Contender(candidate=1, takes_over="A", gives_up=False),
        ),
        brought=True,
        expiries=2,
        expects=frozenset({"lengthened", "contended (asks)", "second round"}),
    ),
    Setting(
        name="hand-publish",
        contenders=(
            _PUBLISHER,
            Contender(takes_over="A", ends=("finish",), gives_up=False),
            Contender(gives_up=False),
        ),
        expiries=0,
        expects=frozenset({"lengthened", "cancelled", "finished"}),
    ),
    Setting(
        name="hand-late",
        contenders=(
            replace(_PUBLISHER, candidate=3, ends=("lengthen",)),
            Contender(takes_over="A", ends=("finish",), gives_up=False),
        ),
        expiries=1,
        clears=True,
        whole=True,
        expects=frozenset({"finished", "late: extend", "late: release"}),
    ),
    Setting(
        name="hand-back-late",
        contenders=(
            replace(_COPY, keys=("k",), ends=("hand back",)),
            Contender(candidate=1, takes_over="A", ends=("finish",), gives_up=False),
        ),
        brought=True,
        expiries=0,
        clears=True,
        whole=True,
        expects=frozenset({"finished", "lengthened", "asks whether it stands"}),
    ),
    Setting(
        name="hand-replace",
        contenders=(
            _PUBLISHER,
            replace(_PUBLISHER, candidate=1, takes_over="A"),
            Contender(takes_over="A", ends=("finish",), gives_up=False),
        ),
        expiries=0,
        expects=frozenset({"lengthened", "cancelled", "contended (asks)"}),
    ),
    Setting(
        name="hand-trust",
        contenders=(
            replace(_LONG_COPY, starts_by=0, ends=("finish",)),
            _LONG_COPY,
            Contender(releases=False, gives_up=False, starts_from=1),
        ),
        brought=True,
        timed=True,
        ttl=3,
        horizon=2,
        expects=frozenset({"finished", "contended (asks)"}),
    ),
    Setting(
        name="hand-restart",
        contenders=(replace(_LONG_COPY, starts_by=0), _LONG_COPY),
        brought=True,
        timed=True,
        ttl=3,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("snapshot", "empty"),
        expects=frozenset({"acquire: Quarantined", "crash: snapshot", "crash: empty"}),
    ),
)
