"""
Extending leases, many in one exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock.core.holding import Holding
from celery_redlock.protocol.commands import Command, extend_together
from celery_redlock.protocol.rounds import BatchRound, ExtendRound, Round
from celery_redlock.transport import Channel

#: Keys, fence counters included, in a command that extends several leases: a node does nothing else
#: while it executes one.
_KEYS_AT_ONCE = 1000


def extend_leases(
    channel: Channel, leases: Sequence[Holding], *, until: float, linger: float
) -> dict[Holding, ExtendRound]:
    """
    Extend the leases that are still valid, and apply the votes of the nodes.

    No extension begins once the release of its lease has begun; a release that comes meanwhile can
    wait for it, see `Holding.wait_for_extension`.

    Args:
        channel: to the nodes of all these leases.
        leases: the leases.
        until: when no reply is waited for any more, on the clock of the leases.
        linger: seconds to wait longer for nodes whose vote was not needed.

    Returns:
        The rounds of the votes, without those leases that were not valid any more.
    """
    try:
        extended = [lease for lease in leases if lease.begin_extension()]
        batch = [lease.extend_command() for lease in extended]
        if batch:
            node_timeout, few = min(lease.node_timeout for lease in extended), _few_commands(batch)
            limit = max(0.001, until - extended[0].now())
            channel.exchange(few, node_timeout, limit=limit, linger=linger)
    finally:
        # Before the reports of lost leases: a callback may release the lease.
        for lease in leases:
            lease.end_extension()
    rounds = {}
    for lease, (command, round_) in zip(extended, batch, strict=True):
        lease.apply_extension(command, round_, channel)
        rounds[lease] = round_
    return rounds


def _few_commands(
    extensions: Sequence[tuple[Command, ExtendRound]],
) -> Sequence[tuple[Command, Round]]:
    """Combine extensions into few commands: a node's main cost is the call of a script."""
    groups: list[list[tuple[Command, ExtendRound]]] = []
    room = 0
    for extension in extensions:
        keys = len(extension[0].keys)
        if not groups or keys > room:
            groups.append([])
            room = _KEYS_AT_ONCE
        groups[-1].append(extension)
        room -= keys
    return [
        (extend_together([command for command, _ in group]), BatchRound([own for _, own in group]))
        if len(group) > 1
        else group[0]
        for group in groups
    ]
