"""
What is explored of a node whose master is replaced while clients still ask the former one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSetting:
    """
    What is explored. A tick is the time for which a named master counts as the master.

    Attributes:
        ttl: of every lease, in ticks; the longest that there is.
        takeover: ticks; a tick more than `unaware` are needed.
        unaware: ticks after the promotion in which others name the former master.
        expects: kinds of events that must be reached.
        whole: explored to the end in every run, however many states there are.
    """

    name: str
    ttl: int = 2
    takeover: int = 2
    unaware: int = 1
    expects: frozenset[str] = frozenset(
        {
            *("promoted with the key", "promoted without the key"),
            *("granted with the former master", "granted with the new master"),
            *("extended with the former master", "extended with the new master"),
            *("quarantined", "not confirmed", "too early", "two servers vote for one node"),
        }
    )
    whole: bool = True


PROMOTIONS = (PromotionSetting(name="promotion"),)
