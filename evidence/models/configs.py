"""
What is explored, and how far.

Where time stands, everything may be late and every key may expire at any moment, which is also what
an operator's release does to a node: fencing has to hold. Where time passes in ticks of a
millisecond, clocks gain at most the drift that is allowed: exclusion has to hold. Votes that are
split have to be told from a conflict in any case.

A node keeps a key until the end of a millisecond, so its clock may gain one more than the drift
that is allowed for; a quarantine has no such reserve.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from celery_redlock.protocol.keys import Key
from evidence.models.bodies import BODIES
from evidence.models.bursts import BURSTS
from evidence.models.calls import CALLS
from evidence.models.config import Contender, Setting
from evidence.models.explorer import AnySetting
from evidence.models.identifying import IDENTITIES
from evidence.models.leaders import LEADERS
from evidence.models.messages import HAND_OVER
from evidence.models.pauses import PAUSES
from evidence.models.promoted import PROMOTIONS
from evidence.models.tables import TABLES
from evidence.models.waiters import WAITERS

#: Two keys whose fence counters are one.
_SHARING = ("k1", "k655")

_ONE = Contender(candidate=1)
_STAYS = Contender(releases=False, gives_up=False)
_FIRST = Contender(releases=False, gives_up=False, starts_by=0)

_SECOND_ROUND = frozenset({"second round", "granted (raises)", "raise: NotHeld", "split (raises)"})
_RESTART = frozenset({"acquire: Quarantined", "late (asks)"})
_EXTENDED = frozenset({"extension: kept", "extension: lost", "extend: NotHeld"})

FENCING = (
    Setting(name="fence-equal", contenders=(_ONE, _ONE), expects=_SECOND_ROUND, whole=True),
    Setting(
        name="fence-apart",
        contenders=(_ONE, Contender(candidate=3)),
        expects=_SECOND_ROUND,
    ),
    Setting(
        name="fence-poison",
        contenders=(Contender(candidate=2**53 - 1, gives_up=False), _ONE),
        expiries=3,
        expects=_SECOND_ROUND,
    ),
    Setting(
        name="fence-extend",
        contenders=(Contender(candidate=1, extends=1), Contender(candidate=1, gives_up=False)),
        expiries=4,
        expects=_SECOND_ROUND | _EXTENDED | {"says heal", "heal: Acknowledged", "heal: NotHeld"},
    ),
    Setting(
        name="fence-again",
        contenders=(_ONE, Contender(candidate=1, after=0, gives_up=False), _ONE),
        expiries=2,
        expects=_SECOND_ROUND,
    ),
    Setting(
        name="fence-three",
        contenders=(_ONE, Contender(candidate=1, gives_up=False), Contender(candidate=2)),
        expiries=3,
        expects=frozenset({"second round"}),
    ),
    Setting(
        name="fence-keys",
        contenders=(
            Contender(candidate=1, keys=("a", "b")),
            Contender(candidate=1, keys=("b", "a"), gives_up=False),
        ),
        expiries=4,
        expects=_SECOND_ROUND,
    ),
    Setting(
        name="fence-overlap",
        contenders=(
            Contender(candidate=1, keys=("a", "b"), gives_up=False),
            Contender(candidate=1, keys=("a",), gives_up=False),
            Contender(candidate=2, keys=("b",), gives_up=False),
        ),
        expiries=2,
        expects=frozenset({"second round"}),
    ),
    Setting(
        name="fence-uneven",
        contenders=(
            Contender(candidate=1, keys=("b", "a"), gives_up=False),
            Contender(candidate=1, keys=("a",), gives_up=False),
        ),
        fences=(("b", 1),),
        expiries=4,
        expects=frozenset({"second round", "granted (raises)"}),
    ),
    Setting(
        name="fence-bucket",
        contenders=(
            Contender(candidate=1, keys=_SHARING, gives_up=False),
            Contender(candidate=1, keys=(_SHARING[1],), gives_up=False),
        ),
        expiries=4,
        expects=frozenset({"second round", "granted (raises)"}),
    ),
)

#: Time passes; where nothing else is set, the second contender finds the first one's lock.
_timed = partial(Setting, contenders=(_FIRST, _STAYS), timed=True)

EXCLUSION = (
    _timed(
        name="trust-stay",
        ttl=3,
        horizon=2,
        leaps=1,
        expects=frozenset({"late (asks)", "contended (asks)"}),
    ),
    _timed(
        name="trust-long",
        horizon=6,
        leaps=2,
        expects=frozenset({"contended (asks)"}),
    ),
    _timed(
        name="trust-drift",
        ttl=4,
        drift_factor=0.25,  # with the 2 ms for precision, 3 ms of 4 are not trusted
        horizon=2,
        leaps=1,
        leap=4,
        expects=frozenset({"late (asks)"}),
    ),
    _timed(
        name="trust-second",
        contenders=(_FIRST, Contender(starts_by=0)),
        ttl=3,
        horizon=1,
        expects=frozenset({"late (raises)", "granted (raises)"}),
    ),
    _timed(
        name="trust-release",
        contenders=(Contender(), Contender(gives_up=False)),
        ttl=3,
        horizon=2,
        leaps=1,
        expects=frozenset({"late (asks)", "contended (asks)"}),
    ),
    _timed(
        name="trust-restart",
        ttl=3,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("empty", "stale", "flush"),
        expects=_RESTART | {"crash: empty", "crash: stale", "crash: flush"},
    ),
    _timed(
        name="trust-quarantine",
        leap=2,
        ttl=3,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("noticed",),
        leaps=1,
        expects=_RESTART,
    ),
    _timed(
        name="trust-crashes",
        leap=2,
        ttl=3,
        horizon=4,
        max_ttl=3,
        crashes=2,
        crash_kinds=("noticed",),
        expects=_RESTART,
    ),
    _timed(
        name="trust-extend",
        contenders=(replace(_FIRST, extends=1), _STAYS),
        ttl=4,
        horizon=2,
        leaps=1,
        expects=frozenset({"extension: kept", "extension: lost"}),
    ),
    _timed(
        name="trust-shorter",
        contenders=(replace(_FIRST, extends=1, extends_to=1), _STAYS),
        ttl=5,
        horizon=2,
        expects=frozenset({"extension: kept"}),
    ),
    _timed(
        name="trust-heal",
        contenders=(replace(_FIRST, extends=1), _STAYS),
        ttl=4,
        horizon=2,
        losses=1,
        leaps=1,
        expects=frozenset({"says heal"}),
    ),
    _timed(
        name="trust-missing",
        contenders=(replace(_FIRST, extends=1), replace(_STAYS, starts_from=2)),
        ttl=4,
        horizon=2,
        losses=1,
        leaps=1,
        expects=frozenset({"says heal"}),
    ),
    _timed(
        name="trust-heal-quarantined",
        contenders=(replace(_FIRST, extends=1), _STAYS),
        leap=2,
        ttl=4,
        horizon=2,
        max_ttl=4,
        crashes=1,
        crash_kinds=("noticed",),
        expects=frozenset({"says heal", "acquire: Quarantined"}),
    ),
    _timed(
        name="trust-keys",
        contenders=(
            Contender(keys=("a", "b"), gives_up=False),
            Contender(keys=("b", "c"), gives_up=False),
        ),
        horizon=2,
        expects=frozenset({"contended (asks)"}),
    ),
    _timed(
        name="trust-three",
        contenders=(Contender(starts_by=0), Contender(gives_up=False), _STAYS),
        ttl=3,
        horizon=0,
        expects=frozenset({"split (asks)", "release: NotHeld"}),
    ),
    _timed(
        name="trust-again",
        contenders=(Contender(starts_by=0), Contender(after=0, gives_up=False), _STAYS),
        ttl=3,
        horizon=0,
        expects=frozenset({"release: NotHeld"}),
    ),
    _timed(
        name="order-lost-counters",
        ttl=3,
        horizon=1,
        crashes=2,
        crash_kinds=("counters",),
        leaps=1,
        expects=frozenset({"crash: counters"}),
    ),
)

SPLIT = (
    Setting(
        name="split-two",
        contenders=(_ONE, _ONE),
        split=True,
        whole=True,
        expects=frozenset({"split (asks)", "contended (asks)", "unavailable (asks)"}),
    ),
    Setting(
        name="split-three",
        contenders=(Contender(gives_up=False),) * 3,
        expiries=1,
        split=True,
        expects=frozenset({"split (asks)", "contended (asks)"}),
    ),
    Setting(
        name="split-keys",
        contenders=(
            Contender(keys=("a", "b"), gives_up=False),
            Contender(keys=("b", "c"), gives_up=False),
            Contender(keys=("c", "a"), gives_up=False),
        ),
        expiries=0,
        split=True,
        expects=frozenset({"split (asks)", "contended (asks)"}),
    ),
)

_WAITS = Contender(waits=True, gives_up=False)
_FAIR = Contender(waits=True, fair=True, gives_up=False)

WAITING = (
    Setting(
        name="waits-one",
        contenders=(Contender(gives_up=False), _WAITS),
        expiries=0,
        wakes=True,
        whole=True,
        expects=frozenset({"contended (asks)", "granted (asks)"}),
    ),
    Setting(
        name="waits-forgotten",
        contenders=(Contender(gives_up=False), _WAITS),
        expiries=0,
        crashes=1,
        crash_kinds=("queues",),
        wakes=True,
        whole=True,
        expects=frozenset({"contended (asks)", "crash: queues"}),
    ),
    Setting(
        name="waits-two",
        contenders=(Contender(gives_up=False), _WAITS, _WAITS),
        expiries=0,
        wakes=True,
        expects=frozenset({"contended (asks)", "split (asks)"}),
    ),
    Setting(
        name="waits-in-order",
        contenders=(Contender(gives_up=False), _FAIR, _FAIR),
        expiries=0,
        expects=frozenset({"contended (asks)", "granted (asks)", "refused to go first"}),
    ),
    Setting(
        name="waits-in-order-expired",
        contenders=(_STAYS, _FAIR, _FAIR),
        expiries=3,
        expects=frozenset({"contended (asks)", "granted (asks)", "refused to go first"}),
    ),
)

#: Two may have this key at once; one may have the other in 3 ms, which says 2 where clocks gain 1.
_PAIR = (Key.of("", "k", 2),)
_RATE = (Key.of("", "k", 1, 3),)

#: They want the same slot first, as their owner values are drawn alike.
_SHARES = Contender(keys=_PAIR, gives_up=False)
_KEEPS = replace(_SHARES, releases=False)
_SPENDS = Contender(keys=_RATE, gives_up=False, starts_by=0)
_WANTS = Contender(keys=_RATE, gives_up=False, releases=False, behind=0)

_MOVES = _SECOND_ROUND | {"raise: Acknowledged"}

LIMITS = (
    Setting(
        name="limit-two",
        contenders=(_SHARES, _SHARES),
        expiries=1,
        whole=True,
        expects=_MOVES,
    ),
    Setting(
        name="limit-order",
        contenders=(_KEEPS, _KEEPS),
        expiries=2,
        whole=True,
        expects=_MOVES,
    ),
    Setting(
        name="limit-three",
        contenders=(_KEEPS, replace(_KEEPS, behind=0), replace(_KEEPS, behind=0)),
        expiries=1,
        whole=True,
        expects=_MOVES | {"contended (asks)", "split (asks)"},
    ),
    Setting(
        name="limit-extend",
        contenders=(replace(_SHARES, extends=1), replace(_KEEPS, behind=0)),
        expiries=2,
        whole=True,
        expects=_MOVES | _EXTENDED | {"says heal", "heal: Acknowledged"},
    ),
    _timed(
        name="limit-restart",
        contenders=(
            replace(_KEEPS, starts_by=0),
            replace(_KEEPS, behind=0),
            replace(_KEEPS, behind=1),
        ),
        ttl=3,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("noticed",),
        whole=True,
        expects=_MOVES | {"raise: Quarantined", "late (raises)", "contended (asks)"},
    ),
    _timed(
        name="rate-release",
        contenders=(_SPENDS, _WANTS),
        horizon=4,
        period=3,
        whole=True,
        expects=frozenset({"contended (asks)", "granted (asks)", "release: Acknowledged"}),
    ),
    _timed(
        name="rate-drift",
        contenders=(replace(_SPENDS, releases=False), replace(_WANTS, starts_from=2)),
        horizon=4,
        period=2,
        leaps=1,
        leap=1,
        whole=True,
        expects=frozenset({"contended (asks)", "granted (asks)"}),
    ),
    _timed(
        name="rate-restart",
        contenders=(replace(_SPENDS, releases=False), replace(_WANTS, starts_from=2)),
        ttl=3,
        horizon=4,
        period=2,
        max_ttl=3,
        crashes=1,
        crash_kinds=("noticed",),
        whole=True,
        expects=_RESTART - {"late (asks)"} | {"contended (asks)", "split (asks)"},
    ),
)

ALL: dict[str, AnySetting] = {
    setting.name: setting
    for setting in (
        *FENCING,
        *EXCLUSION,
        *SPLIT,
        *WAITING,
        *LIMITS,
        *HAND_OVER,
        *LEADERS,
        *TABLES,
        *CALLS,
        *BODIES,
        *WAITERS,
        *IDENTITIES,
        *PAUSES,
        *PROMOTIONS,
        *BURSTS,
    )
}
