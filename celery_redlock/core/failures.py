"""
Errors for attempts that were not granted, and what kept each node from granting them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from celery_redlock.core.attempt import AcquireParams, Attempt
from celery_redlock.errors import LockContended, LockNotAcquired, QuorumUnavailable
from celery_redlock.protocol.keys import PAUSED, Key, owner_label
from celery_redlock.protocol.rounds import AcquireRound, Phase, Round
from celery_redlock.protocol.texts import enumerated, readable, shortened
from celery_redlock.protocol.votes import Failed, Granted, KeyHolder, Quarantined, Refused

#: Texts for nodes in an error: the vote counted; the other nodes had decided before it came.
VOTED, NO_REPLY = "voted", "not waited for, the other nodes had decided"


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    The reason why others refused an attempt, from the votes alone.

    Attributes:
        key: the key that refused it; None if no single one is known.
        holder: as for `LockContended`.
        expires_in: as for `LockContended`.
        split: as for `LockContended`.
        keys: the keys of the attempt that the holder has, or all its limited keys that are full.
        refused: the keys of the attempt that a quorum of nodes refuses, with any holder.
        before: as for `LockContended`.
    """

    key: Key | None
    holder: str | None
    expires_in: float | None
    split: bool
    keys: tuple[Key, ...]
    refused: tuple[Key, ...]
    before: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether the key may have several holders, none of which does the work of a call."""
        return self.key is not None and self.key.is_shared

    @property
    def is_paused(self) -> bool:
        """Whether the key is paused, so that nobody gets it for `expires_in`."""
        return self.holder == PAUSED and not self.split

    @property
    def is_rate(self) -> bool:
        """Whether the key has a rate that is reached, so that no release frees it."""
        return self.key is not None and self.key.is_rate and not self.is_paused

    @property
    def frees_later(self) -> bool:
        """Whether `expires_in` is the time until the key is free for this attempt."""
        return self.is_rate or self.is_paused

    @classmethod
    def of(cls, error: LockContended) -> Refusal:
        """Return the refusal that an error is about."""
        if isinstance(error.refusal, Refusal):
            return error.refusal
        # An application made it, or it comes from another process: it has only texts.
        key = None if error.key is None else Key(error.key, error.key)
        keys = tuple(Key(text, text) for text in error.keys)
        return cls(key, error.holder, error.expires_in, error.split, keys, keys, error.before)

    def error(
        self, message: str, key: str | None = None, nodes: Mapping[str, str] | None = None
    ) -> LockContended:
        """
        Return the error about this refusal.

        Args:
            message: the text for people.
            key: the error's name for what was not acquired, if no single key is known.
            nodes: the votes, by the nodes' names.
        """
        error = LockContended(
            message,
            key if self.key is None else self.key.text,
            self.holder,
            self.expires_in,
            self.split,
            list(dict.fromkeys(key.text for key in self.keys)),
            nodes,
            self.before,
        )
        error.refusal = self
        return error


def refusal_of(attempt: Attempt) -> Refusal:
    """Return the reason why others refused an attempt."""
    round_, params = attempt.round, attempt.params
    split, before = attempt.phase is Phase.SPLIT, round_.before()
    key_at = _key_at(params)
    taken = {key_at[place] for place in round_.taken_keys()}
    refusing = sorted(taken.union(round_.full(), round_.refused()))
    refused = tuple(params.keys[at] for at in refusing)
    found = _obstacle(attempt)
    if found is None:
        key = params.keys[0] if len(params.keys) == 1 else None
        # A rate may stay split until the turn of this attempt.
        return Refusal(key, None, round_.turn_in() or None, split, (), refused, before)
    obstacle, positions = found
    key = params.keys[key_at[obstacle.key]]
    # A key with a rate has grants, but no holder.
    owner = obstacle.owner
    holder = None if key.is_rate and owner != PAUSED else owner
    keys = tuple(params.keys[at] for at in positions)
    return Refusal(key, holder, obstacle.expires_in, split, keys, refused, before)


def not_acquired_error(attempt: Attempt, nodes: tuple[str, ...], waited: float) -> LockNotAcquired:
    """
    Return the error that names why an attempt was not granted.

    Args:
        attempt: the last attempt.
        nodes: the nodes' names.
        waited: for how many seconds the client tried.
    """
    round_ = attempt.round
    # The reader knows nothing of records, so they are named only if there is nothing else.
    named = [key.text for key in attempt.params.asked_for]
    key = named[0] if len(named) == 1 else enumerated(named)
    name = repr(shortened(key) if len(named) == 1 else key)
    after = f" within {waited:g} s" if waited else ""
    if round_.phase in (Phase.CONTENDED, Phase.SPLIT):
        refused = refusal_of(attempt)
        by_node = {**node_votes(round_, nodes), **_contenders(round_, nodes)}
        if refused.split or not refused.keys:
            text = (
                f"Lock {name} was not acquired{after}: no owner has it on {round_.needed} of "
                f"{len(nodes)} nodes, and it is free on too few. {describe_problems(by_node)}. Try "
                "again."
            )
        else:
            text = _in_words(refused, after)
        return refused.error(text, key, by_node)
    votes = node_votes(round_, nodes)
    if round_.phase is Phase.LATE:
        votes.setdefault("this process", "read the answers when the lease had nearly ended")
    return QuorumUnavailable(
        f"Lock {name} needs {round_.needed} of {len(nodes)} nodes; not acquired{after}. "
        f"{describe_problems(votes)}.",
        key,
        votes,
        _available_in(round_),
    )


def _available_in(round_: AcquireRound) -> float | None:
    """Return in how many seconds enough quarantined nodes vote, if no others are missing."""
    ends = sorted(vote.remaining for vote in round_.votes if isinstance(vote, Quarantined))
    missing = round_.needed - len(round_.nodes_without(Failed)) + len(ends)
    return ends[missing - 1] if 0 < missing <= len(ends) else None


def _obstacle(attempt: Attempt) -> tuple[KeyHolder, Sequence[int]] | None:
    """
    Return the holder of the key that refused an attempt: a reserved, a paused, last a limited key.

    Of a limited key it is the holder of the slot that expires first. For a key with a rate,
    `expires_in` is the time until it is the attempt's turn.

    Returns:
        The holder, and the positions of all keys that it has, or of all limited keys that are full.
    """
    round_, keys, key_at = attempt.round, attempt.params.keys, _key_at(attempt.params)
    paused, taken = round_.taken_keys(PAUSED), round_.taken_keys()
    # A marker comes before a pause. The records that belong to a paused key have its text.
    texts = {keys[key_at[place]].text for place in paused}
    of_taken = [keys[key_at[place]] for place in taken]
    if paused and not any(key.is_record and key.text not in texts for key in of_taken):
        longest = max((found for place in paused if (found := round_.holder([place]))), key=_left)
        return longest, sorted({key_at[place] for place in paused})
    full = round_.full() or round_.refused()
    limited = [at for at in full if keys[at].slots]
    if limited == full != []:
        at = limited[0]
        of_key = [place for place, key in enumerate(key_at) if key == at]
        holders = [holder for place in of_key if (holder := round_.holder([place]))]
        first = min(holders, key=_left)
        turn = attempt.turn_in if keys[at].is_rate else first.expires_in
        return replace(first, expires_in=turn), limited
    record = [place for place in sorted(taken) if keys[key_at[place]].is_record][:1]
    ordinary = [place for place, at in enumerate(key_at) if at in full and at not in limited]
    holder = round_.holder(record) or round_.holder(ordinary) or round_.holder()
    if holder is None:
        return None
    own = sorted({key_at[place] for place in round_.taken_keys(holder.owner)})
    return holder, [at for at in own if at not in limited]


def _key_at(params: AcquireParams) -> list[int]:
    """Return the position of the key that each place belongs to."""
    return [at for at, key in enumerate(params.keys) for _ in key.places]


def _left(holder: KeyHolder) -> float:
    return holder.expires_in


def _in_words(refused: Refusal, after: str) -> str:
    """Return a sentence with the key that refused the attempt, and for how long."""
    key, expires_in = refused.key, refused.expires_in or 0.0
    name = repr(shortened("" if key is None else key.text))
    if refused.is_paused:
        return (
            f"Lock {name} is paused for {readable(expires_in)} s more, and no caller gets it until "
            f"then; not acquired{after}. Wait longer, or end the pause: celery-redlock resume "
            f"{name}."
        )
    by = repr(shortened(owner_label(refused.holder or "")))
    if key is None or not key.slots:
        return f"Lock {name} is held by {by} {_for_how_long(expires_in, after)}"
    if key.is_rate:
        return (
            f"Lock {name} has reached its rate; the next slot is free in {readable(expires_in)} s; "
            f"not acquired{after}. Try again then, or wait longer (wait; in a worker, lock_wait)."
        )
    return (
        f"Lock {name} has reached its limit of {key.slots}; one slot is held by {by} "
        f"{_for_how_long(expires_in, after)}"
    )


def _for_how_long(expires_in: float, after: str) -> str:
    if expires_in < 0:
        return (
            "without an expiry, so a program that is not a client of this package set it; not "
            f"acquired{after}. Call force_release() once that program has ended."
        )
    return (
        f"for up to {readable(expires_in)} s more unless extended; not acquired{after}. Try "
        "again later, or wait longer (wait; in a worker, lock_wait)."
    )


def describe_problems(problems: Mapping[str, str]) -> str:
    """Return a sentence for errors: each node that did not help, with its reason."""
    failed = {name: why for name, why in problems.items() if why not in (VOTED, NO_REPLY)}
    # A node that has not replied yet may be well; name it only if no other explains the outcome.
    shown = failed or {name: why for name, why in problems.items() if why != VOTED}
    return "; ".join(f"{name}: {why.rstrip('.')}" for name, why in shown.items())


def node_problems(round_: Round, names: tuple[str, ...]) -> dict[str, str]:
    """Return the reason of each node that did not help because of its own state."""
    found = {}
    for name, vote in zip(names, round_.votes, strict=True):
        # None: the other nodes had decided before it answered.
        if isinstance(vote, Failed):
            found[name] = vote.reason
        elif isinstance(vote, Quarantined):
            found[name] = (
                f"is quarantined for {readable(vote.remaining)} s more after its first use, a "
                "restart, a loss of data or a change of role (to avoid this for brand-new nodes, "
                "run celery-redlock init --nodes URL,... before their first use)"
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
    """Return the vote of each node that voted on an attempt, in words."""
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
