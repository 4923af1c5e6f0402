"""
The numbers of the protocol: quorum size, clock drift allowance, token range.

Durations are float seconds everywhere in Python; integer milliseconds exist on the wire only.
"""

from __future__ import annotations

#: Seconds of the units of time in texts.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

#: Fencing tokens stay exact in Lua doubles and in JSON up to here.
MAX_TOKEN = 2**53 - 1

#: Redis expires keys with millisecond precision; the original Redlock text adds 2 ms for it.
EXPIRY_PRECISION = 0.002

#: Microseconds by which a candidate may be ahead of a node's clock, so that a client with a wrong
#: clock cannot poison the counters.
CANDIDATE_AHEAD_US = 5_000_000


def quorum(nodes: int) -> int:
    """Return the size of a quorum of `nodes`; any two quorums share a node."""
    return nodes // 2 + 1


def drift(ttl: float, factor: float) -> float:
    """Return the part of `ttl` to subtract from validity, because clocks run at different rates."""
    return ttl * factor + EXPIRY_PRECISION


def milliseconds(seconds: float) -> int:
    """Convert to the wire's unit."""
    return round(seconds * 1000)
