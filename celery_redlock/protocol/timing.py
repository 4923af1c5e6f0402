"""
The numbers of the protocol: quorum size, clock drift allowance, token range.

Durations are float seconds everywhere in Python; integer milliseconds exist on the wire only.
"""

from __future__ import annotations

#: Fencing tokens stay exact in Lua doubles and in JSON up to here.
MAX_TOKEN = 2**53 - 1

#: Redis expires keys with millisecond precision; the original Redlock text adds 2 ms for it.
EXPIRY_PRECISION = 0.002

#: A candidate token may run ahead of a node's own clock by at most this many microseconds, so that
#: a client with a wrong clock cannot poison the counters.
CANDIDATE_AHEAD_US = 5_000_000


def quorum(nodes: int) -> int:
    """Return how many of `nodes` votes decide: any two quorums share a node."""
    return nodes // 2 + 1


def drift(ttl: float, factor: float) -> float:
    """Return the part of `ttl` that is not trusted, because clocks run at different rates."""
    return ttl * factor + EXPIRY_PRECISION


def milliseconds(seconds: float) -> int:
    """Convert to the wire's unit."""
    return round(seconds * 1000)
