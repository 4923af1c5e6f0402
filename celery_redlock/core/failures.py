"""
Errors for attempts that were not granted, and what kept each node from granting them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol import (
    AcquireRound,
    Failed,
    Granted,
    KeyHolder,
    Phase,
    Quarantined,
    Refused,
    Round,
    SlotRound,
)
from celery_redlock.protocol.keys import (
    META_PREFIX,
    LimitedKey,
    is_lock_key,
    is_rate,
    owner_label,
    slots_of,
    user_key,
)
from celery_redlock.protocol.texts import enumerated, readable, shortened

#: Of a node in an error: its vote did count; the others had decided before it came.
VOTED, NO_REPLY = "voted", "not waited for, the other nodes had decided"


def not_acquired_error(
    attempt: Attempt, params: AcquireParams, nodes: tuple[str, ...], waited: float
) -> LockNotAcquired:
    """
    Return the error that names why an attempt was not granted.

    Args:
        attempt: the last attempt.
        params: what it asked of the nodes.
        nodes: the nodes' names.
        waited: for how many seconds the client tried.
    """
    round_ = attempt.round
    shown = [user_key(node_key, params.key_prefix) for node_key in params.node_keys]
    # Reserved keys are no business of the reader, unless there are no others.
    named = [name for name in shown if not name.startswith(META_PREFIX)] or shown
    name = repr(shortened(named[0]) if len(named) == 1 else enumerated(named))
    after = f" within {waited:g} s" if waited else ""
    if round_.phase in (Phase.CONTENDED, Phase.SPLIT):
        split = round_.phase is Phase.SPLIT
        found = _obstacle(round_, params, attempt.turn_in)
        key = shown[0] if len(shown) == 1 else enumerated(shown)
        by_node = {**node_votes(round_, nodes), **_contenders(round_, nodes)}
        if found is None or split:
            text = (
                f"Lock {name} was not taken{after}: no owner has it on {round_.needed} of "
                f"{len(nodes)} nodes, and too few have it free. {describe_problems(by_node)}. "
                "Try again."
            )
        else:
            key = shown[found.key]
            text = _refusal(key, found.holder, after)
        return LockContended(
            text,
            key,
            # A rate has starts, and no holder.
            None if found is None or is_rate(params.node_keys[found.key]) else found.holder.owner,
            found.holder.expires_in if found else _split_for(round_),
            split,
            [shown[at] for at in found.keys] if found else (),
            by_node,
            round_.before(),
        )
    votes = node_votes(round_, nodes)
    if round_.phase is Phase.LATE:
        votes.setdefault("this process", "took the answers only when the lease had all but ended")
    return QuorumUnavailable(
        f"Lock {name} needs {round_.needed} of {len(nodes)} nodes; not taken{after}. "
        f"{describe_problems(votes)}.",
        named[0] if len(named) == 1 else enumerated(named),
        votes,
        _available_in(round_),
    )


def _available_in(round_: AcquireRound) -> float | None:
    """Return in how many seconds enough quarantined nodes vote, if no others are missing."""
    ends = sorted(vote.remaining for vote in round_.votes if isinstance(vote, Quarantined))
    missing = round_.needed - len(round_.nodes_without(Failed)) + len(ends)
    return ends[missing - 1] if 0 < missing <= len(ends) else None


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """
    The key that refused an attempt.

    Attributes:
        key: its position.
        holder: its holder. Of a limited key, that of the slot that expires first; of one with a
            period, `expires_in` is when it is the attempt's turn.
        keys: positions of all keys that this holder has, or of all limited keys that are full.
    """

    key: int
    holder: KeyHolder
    keys: Sequence[int]


def _obstacle(round_: AcquireRound, params: AcquireParams, turn_in: float) -> _Obstacle | None:
    """Return what refused an attempt: reserved keys come first, keys with a limit last."""
    key_at = [at for at, key in enumerate(params.node_keys) for _ in slots_of(key)]
    full = (round_.full() or round_.refused()) if isinstance(round_, SlotRound) else []
    limited = [at for at in full if isinstance(params.node_keys[at], LimitedKey)]
    if limited == full != []:
        at = limited[0]
        of_key = [place for place, key in enumerate(key_at) if key == at]
        holders = [holder for place in of_key if (holder := round_.holder([place]))]
        first = min(holders, key=lambda holder: holder.expires_in)
        turn = turn_in if is_rate(params.node_keys[at]) else first.expires_in
        return _Obstacle(at, replace(first, expires_in=turn), limited)
    records = [place for place, at in enumerate(key_at) if not is_lock_key(params.node_keys[at])]
    ordinary = [place for place, at in enumerate(key_at) if at in full and at not in limited]
    holder = round_.holder(records) or round_.holder(ordinary)
    if holder is None:
        return None
    keys = sorted({key_at[place] for place in round_.taken_keys(holder.owner)})
    return _Obstacle(key_at[holder.key], holder, [at for at in keys if at not in limited])


def _split_for(round_: AcquireRound) -> float | None:
    """Return for how long a rate may stay split; None for other keys, or if nothing is known."""
    return round_.turn_in() or None if isinstance(round_, SlotRound) else None


def _refusal(key: str, holder: KeyHolder, after: str) -> str:
    """Return which key refused, and until when."""
    name, by = repr(shortened(key)), repr(shortened(owner_label(holder.owner)))
    if not isinstance(key, LimitedKey):
        return f"Lock {name} is held by {by} {_for_how_long(holder.expires_in, after)}"
    if is_rate(key):
        return (
            f"Lock {name} was got {key.slots} times within its period, and is free again in "
            f"{readable(holder.expires_in)} s; not taken{after}. Wait longer, or try again then."
        )
    return (
        f"Lock {name} is held by {key.slots} others, as many as its limit, one of them {by} "
        f"{_for_how_long(holder.expires_in, after)}"
    )


def _for_how_long(expires_in: float, after: str) -> str:
    if expires_in < 0:
        return (
            "without an expiry, so a program that is no client of this package has set it; not "
            f"taken{after}. Call force_release() once that program has ended."
        )
    return (
        f"for up to {readable(expires_in)} s more unless extended; not taken{after}. Wait longer, "
        "or try again later."
    )


def describe_problems(problems: Mapping[str, str]) -> str:
    """Return a sentence for errors: each node that did not help, with its reason."""
    failed = {name: why for name, why in problems.items() if why not in (VOTED, NO_REPLY)}
    # A node that has not replied yet may be well; it is named where no other explains the outcome.
    shown = failed or {name: why for name, why in problems.items() if why != VOTED}
    return "; ".join(f"{name}: {why.rstrip('.')}" for name, why in shown.items())


def node_problems(round_: Round, names: tuple[str, ...]) -> dict[str, str]:
    """Return for each node that did not help because of its own state why it did not."""
    found = {}
    for name, vote in zip(names, round_.votes, strict=True):
        # None: the other nodes had decided before it answered.
        if isinstance(vote, Failed):
            found[name] = vote.reason
        elif isinstance(vote, Quarantined):
            found[name] = (
                f"is quarantined for {readable(vote.remaining)} s more after a restart, a loss of "
                "data or a change of role (brand-new nodes are armed by: celery-redlock init "
                "--nodes URL,...)"
            )
    return found


def node_votes(round_: Round, names: tuple[str, ...]) -> dict[str, str]:
    """Return for each node why it did not help, or that it voted."""
    problems = node_problems(round_, names)
    return {
        name: problems.get(name) or (NO_REPLY if vote is None else VOTED)
        for name, vote in zip(names, round_.votes, strict=True)
    }


def _contenders(round_: Round, names: tuple[str, ...]) -> dict[str, str]:
    """Return for each node that voted on an attempt, what it voted."""
    found = {}
    for name, vote in zip(names, round_.votes, strict=True):
        if isinstance(vote, Refused):
            holder = vote.holders[0]
            left = f" for up to {readable(holder.expires_in)} s more"
            found[name] = f"held by {shortened(owner_label(holder.owner))!r}" + (
                left if holder.expires_in > 0 else ""
            )
        elif isinstance(vote, Granted):
            found[name] = "granted it"
    return found
