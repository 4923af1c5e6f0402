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
from evidence.models.config import Contender, explored
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
#: Those that wait until the answers decide.
_PATIENT = Contender(gives_up=False)
_SURE = Contender(candidate=1, gives_up=False)
_STAYS = replace(_PATIENT, releases=False)
_FIRST = replace(_STAYS, starts_by=0)
_EXTENDS = replace(_FIRST, extends=1)


def _of(contender: Contender, *keys: str | Key) -> Contender:
    return replace(contender, keys=keys)


_TWO_ROUNDS = {"second round", "granted (raises)"}
_SECOND_ROUND = _TWO_ROUNDS | {"raise: NotHeld", "split (raises)"}
_RESTART = {"acquire: Quarantined", "late (asks)"}
_EXTENDED = {"extension: kept", "extension: lost", "extend: NotHeld"}
_HEALED = {"says heal", "heal: Acknowledged"}
_CONTENDED, _SPLIT = {"contended (asks)"}, {"contended (asks)", "split (asks)"}
_GOT_LATER = {"contended (asks)", "granted (asks)"}

_fence = partial(explored, expects=_SECOND_ROUND)

FENCING = (
    _fence("fence-equal", _ONE, _ONE, whole=True),
    _fence("fence-apart", _ONE, Contender(candidate=3)),
    _fence("fence-poison", replace(_PATIENT, candidate=2**53 - 1), _ONE, expiries=3),
    _fence(
        "fence-extend",
        replace(_ONE, extends=1),
        _SURE,
        expiries=4,
        expects=_SECOND_ROUND | _EXTENDED | _HEALED | {"heal: NotHeld"},
    ),
    _fence("fence-again", _ONE, replace(_SURE, after=0), _ONE, expiries=2),
    explored(
        "fence-three", _ONE, _SURE, Contender(candidate=2), expiries=3, expects={"second round"}
    ),
    _fence("fence-keys", _of(_ONE, "a", "b"), _of(_SURE, "b", "a"), expiries=4),
    explored(
        "fence-overlap",
        _of(_SURE, "a", "b"),
        _of(_SURE, "a"),
        _of(replace(_SURE, candidate=2), "b"),
        expiries=2,
        expects={"second round"},
    ),
    explored(
        "fence-uneven",
        _of(_SURE, "b", "a"),
        _of(_SURE, "a"),
        fences=(("b", 1),),
        expiries=4,
        expects=_TWO_ROUNDS,
    ),
    explored(
        "fence-bucket",
        _of(_SURE, *_SHARING),
        _of(_SURE, _SHARING[1]),
        expiries=4,
        expects=_TWO_ROUNDS,
    ),
)

#: Time passes; or also, a node crashes that somebody asks at once when it is back.
_timed = partial(explored, timed=True)
_noticed = partial(_timed, ttl=3, max_ttl=3, crashes=1, crash_kinds=("noticed",))

#: The second contender finds the lock of the first; or they share one of their keys.
_FOUND = (_FIRST, _STAYS)
_CROSSING = (_of(_PATIENT, "a", "b"), _of(_PATIENT, "b", "c"))

EXCLUSION = (
    _timed("trust-stay", *_FOUND, ttl=3, horizon=2, leaps=1, expects=_CONTENDED | {"late (asks)"}),
    _timed("trust-long", *_FOUND, horizon=6, leaps=2, expects=_CONTENDED),
    _timed(
        "trust-drift",
        *_FOUND,
        drift_factor=0.25,  # with the 2 ms for precision, 3 ms of 4 are not trusted
        horizon=2,
        leaps=1,
        leap=4,
        expects={"late (asks)"},
    ),
    _timed(
        "trust-second",
        _FIRST,
        Contender(starts_by=0),
        ttl=3,
        horizon=1,
        expects={"late (raises)", "granted (raises)"},
    ),
    _timed(
        "trust-release",
        Contender(),
        _PATIENT,
        ttl=3,
        horizon=2,
        leaps=1,
        expects=_CONTENDED | {"late (asks)"},
    ),
    _timed(
        "trust-restart",
        *_FOUND,
        ttl=3,
        horizon=1,
        max_ttl=3,
        crashes=1,
        crash_kinds=("empty", "stale", "flush"),
        expects=_RESTART | {"crash: empty", "crash: stale", "crash: flush"},
    ),
    _noticed("trust-quarantine", *_FOUND, horizon=1, leaps=1, leap=2, expects=_RESTART),
    _noticed("trust-crashes", *_FOUND, horizon=4, crashes=2, leap=2, expects=_RESTART),
    _timed(
        "trust-extend",
        _EXTENDS,
        _STAYS,
        horizon=2,
        leaps=1,
        expects={"extension: kept", "extension: lost"},
    ),
    _timed(
        "trust-shorter",
        replace(_EXTENDS, extends_to=1),
        _STAYS,
        ttl=5,
        horizon=2,
        expects={"extension: kept"},
    ),
    _timed("trust-heal", _EXTENDS, _STAYS, horizon=2, losses=1, leaps=1, expects={"says heal"}),
    _timed(
        "trust-missing",
        _EXTENDS,
        replace(_STAYS, starts_from=2),
        horizon=2,
        losses=1,
        leaps=1,
        expects={"says heal"},
    ),
    _noticed(
        "trust-heal-quarantined",
        _EXTENDS,
        _STAYS,
        ttl=4,
        horizon=2,
        max_ttl=4,
        leap=2,
        expects={"says heal", "acquire: Quarantined"},
    ),
    _timed("trust-keys", *_CROSSING, horizon=2, expects=_CONTENDED),
    _timed(
        "trust-three",
        Contender(starts_by=0),
        _PATIENT,
        _STAYS,
        ttl=3,
        expects={"split (asks)", "release: NotHeld"},
    ),
    _timed(
        "trust-again",
        Contender(starts_by=0),
        replace(_PATIENT, after=0),
        _STAYS,
        ttl=3,
        expects={"release: NotHeld"},
    ),
    _timed(
        "order-lost-counters",
        *_FOUND,
        ttl=3,
        horizon=1,
        crashes=2,
        crash_kinds=("counters",),
        leaps=1,
        expects={"crash: counters"},
    ),
)

_split = partial(explored, split=True, expects=_SPLIT)

SPLIT = (
    _split("split-two", _ONE, _ONE, whole=True, expects=_SPLIT | {"unavailable (asks)"}),
    _split("split-three", _PATIENT, _PATIENT, _PATIENT, expiries=1),
    _split("split-keys", *_CROSSING, _of(_PATIENT, "c", "a"), expiries=0),
)

_WAITS = replace(_PATIENT, waits=True)
_FAIR = replace(_WAITS, fair=True)

_waits = partial(explored, expiries=0)
_IN_ORDER = _GOT_LATER | {"refused to go first"}

WAITING = (
    _waits("waits-one", _PATIENT, _WAITS, wakes=True, whole=True, expects=_GOT_LATER),
    _waits(
        "waits-forgotten",
        _PATIENT,
        _WAITS,
        crashes=1,
        crash_kinds=("queues",),
        wakes=True,
        whole=True,
        expects=_CONTENDED | {"crash: queues"},
    ),
    _waits("waits-two", _PATIENT, _WAITS, _WAITS, wakes=True, expects=_SPLIT),
    _waits("waits-in-order", _PATIENT, _FAIR, _FAIR, expects=_IN_ORDER),
    _waits("waits-in-order-expired", _STAYS, _FAIR, _FAIR, expiries=3, expects=_IN_ORDER),
)

#: Two may have this key at once; one may have the other in 3 ms, which says 2 where clocks gain 1.
_PAIR = Key.of("", "k", 2)
_RATE = Key.of("", "k", 1, 3)

#: They want the same slot first, as their owner values are drawn alike.
_SHARES = _of(_PATIENT, _PAIR)
_KEEPS = replace(_SHARES, releases=False)
_KEEPS_NEXT = replace(_KEEPS, behind=0)
_SPENDS = replace(_of(_PATIENT, _RATE), starts_by=0)
_WANTS = replace(_of(_STAYS, _RATE), behind=0)
_AT_ONCE = (replace(_SPENDS, releases=False), replace(_WANTS, starts_from=2))

_MOVES = _SECOND_ROUND | {"raise: Acknowledged"}
_limit = partial(explored, whole=True, expects=_MOVES)
_rate = partial(_timed, whole=True, horizon=4)

LIMITS = (
    _limit("limit-two", _SHARES, _SHARES, expiries=1),
    _limit("limit-order", _KEEPS, _KEEPS, expiries=2),
    _limit("limit-three", _KEEPS, _KEEPS_NEXT, _KEEPS_NEXT, expiries=1, expects=_MOVES | _SPLIT),
    _limit(
        "limit-extend",
        replace(_SHARES, extends=1),
        _KEEPS_NEXT,
        expiries=2,
        expects=_MOVES | _EXTENDED | _HEALED,
    ),
    _noticed(
        "limit-restart",
        replace(_KEEPS, starts_by=0),
        _KEEPS_NEXT,
        replace(_KEEPS, behind=1),
        horizon=1,
        whole=True,
        expects=_MOVES | _CONTENDED | {"raise: Quarantined", "late (raises)"},
    ),
    _rate(
        "rate-release", _SPENDS, _WANTS, period=3, expects=_GOT_LATER | {"release: Acknowledged"}
    ),
    _rate("rate-drift", *_AT_ONCE, period=2, leaps=1, leap=1, expects=_GOT_LATER),
    _noticed(
        "rate-restart",
        *_AT_ONCE,
        horizon=4,
        period=2,
        whole=True,
        expects=_SPLIT | {"acquire: Quarantined"},
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
