"""
Errors for attempts that were not granted, and what kept each node from granting them.
"""

from __future__ import annotations

from collections.abc import Mapping

from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol import Failed, Granted, Phase, Quarantined, Refused, Round
from celery_redlock.protocol.keys import META_PREFIX, owner_label, user_key
from celery_redlock.protocol.texts import enumerated, shortened

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
    key = shown[0] if len(shown) == 1 else enumerated(shown)
    # Reserved keys are no business of the reader, unless there are no others.
    named = [name for name in shown if not name.startswith(META_PREFIX)] or shown
    name = repr(shortened(named[0]) if len(named) == 1 else enumerated(named))
    after = f" within {waited:g} s" if waited else ""
    if round_.phase in (Phase.CONTENDED, Phase.SPLIT):
        records = [
            at for at, node_key in enumerate(params.node_keys) if node_key.startswith(META_PREFIX)
        ]
        holder = round_.holder(records)
        split = round_.phase is Phase.SPLIT
        if holder is None or split:
            text = (
                f"Lock {name} was not taken{after}: several contenders share the nodes and none "
                "holds a quorum. Try again."
            )
        else:
            key = shown[holder.key]
            by, till = shortened(owner_label(holder.owner)), holder.expires_in
            text = f"Lock {shortened(key)!r} is held by {by!r} {_for_how_long(till, after)}"
        return LockContended(
            text,
            key,
            holder.owner if holder else None,
            holder.expires_in if holder else None,
            split,
            [shown[at] for at in sorted(round_.taken_keys(holder.owner))] if holder else (),
            {**node_votes(round_, nodes), **_contenders(round_, nodes)},
        )
    votes = node_votes(round_, nodes)
    if round_.phase is Phase.LATE:
        votes.setdefault("this process", "took the answers only when the lease had all but ended")
    return QuorumUnavailable(
        f"Lock {name} needs {round_.needed} of {len(nodes)} nodes; not taken{after}. "
        f"{describe_problems(votes)}.",
        named[0] if len(named) == 1 else enumerated(named),
        votes,
    )


def _for_how_long(expires_in: float, after: str) -> str:
    if expires_in < 0:
        return (
            "without an expiry, so a program that is no client of this package has set it; not "
            f"taken{after}. Call force_release() once that program has ended."
        )
    return (
        f"for up to {expires_in:.3g} s more unless extended; not taken{after}. Wait longer, or try "
        "again later."
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
                f"is quarantined for {vote.remaining:.3g} s more after a restart, a loss of data "
                "or a change of role (brand-new nodes are armed by: celery-redlock init --nodes "
                "URL,...)"
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
            found[name] = f"held by {shortened(owner_label(vote.holders[0].owner))!r}"
        elif isinstance(vote, Granted):
            found[name] = "granted it"
    return found
