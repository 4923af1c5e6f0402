"""
What is explored of one node whose process and replication ids change, with and without a loss.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySetting:
    """
    What is explored.

    Attributes:
        max_ttl: longest lease, and every lease, in ms.
        backlog_ttl: `repl-backlog-ttl`, in ms; long enough by default.
        expects: kinds of events that must be reached.
        whole: explored to the end in every run, however many states there are.
    """

    name: str
    max_ttl: int = 2
    backlog_ttl: int = 2
    expects: frozenset[str] = frozenset()
    whole: bool = True


IDENTITIES = (
    IdentitySetting(
        name="identity",
        expects=frozenset(
            {
                *("granted", "refused", "quarantined", "starts", "flush", "demoted", "promoted"),
                *(
                    "backup",
                    "backlog freed",
                    "a backlog was renewed, and it votes",
                    "a key is lost",
                ),
            }
        ),
    ),
)
