"""
Faults in what answers come to: in how votes are told, in the transport, and in the clock.
"""

from __future__ import annotations

from tests.mutants.writing import (
    CHANNEL,
    CLOCK,
    LEASE,
    LINK,
    ROUNDS,
    modelled,
    mutant,
    operated,
    simulated,
    tested,
)

POOL = "transport/redis/transport.py"

VOTES = (
    mutant(
        "one node's word is a conflict",
        modelled("split-two"),
        (ROUNDS, "if self._is_taken():", "if self._seen_owners():"),
    ),
    mutant(
        "a split vote is a conflict",
        modelled("split-two"),
        (ROUNDS, "return self._enter(Phase.SPLIT)", "return self._enter(Phase.CONTENDED)"),
    ),
    mutant(
        "different owners make one conflict",
        modelled("split-three"),
        (ROUNDS, "(holder.key, holder.owner)\n", "holder.key\n"),
    ),
)

TRANSPORT = (
    mutant(
        "replies that came while the process stood still are not read",
        operated(
            "transport/test_faults.py",
            "test_replies_that_came_while_the_process_stood_still_count",
        ),
        (
            CHANNEL,
            "            self._receive_replies(max(0.0, remaining))\n        if self._open",
            "            if remaining <= 0:\n                break\n"
            "            self._receive_replies(remaining)\n        if self._open",
        ),
    ),
    mutant(
        "a leftover reply is taken for the next answer",
        simulated("late", "1-400"),
        (LINK, "and reply[0] == pending.nonce", ""),
        (
            CHANNEL,
            "        self._number += 1\n",
            "        self._number += 1\n"
            "        for old in self._by_node:\n"
            "            if old is not None:\n"
            "                old.pending.clear()\n",
        ),
    ),
    mutant(
        "a release that is not awaited overtakes its own acquire",
        tested("test_unawaited_release.py", "test_it_does_not_overtake_its_own_acquire"),
        (LEASE, "        self.after_release(command, sent.channel)\n", ""),
    ),
    mutant(
        "a late vote on a release counts for the next lease",
        tested("test_unawaited_release.py", "test_late_votes_count_for_their_own_lease_alone"),
        (
            CHANNEL,
            "            self._give(pending.receiver, index, connection, vote)\n",
            "            self._give(pending.receiver, index, connection, vote)\n"
            "            for round_ in tuple(self._open_rounds):\n"
            "                self._vote(round_, index, vote, clock())\n",
        ),
    ),
    mutant(
        "the vote of a node that a release had to wait for is lost",
        tested(
            "test_unawaited_release.py", "test_the_votes_of_nodes_that_it_had_to_connect_to_count"
        ),
        (CHANNEL, "self._defer(index, command, receiver)", "self._defer(index, command)"),
    ),
    mutant(
        "a connection that nobody takes over keeps the votes that came on it",
        tested(
            "test_unawaited_release.py", "test_the_votes_of_nodes_that_it_had_to_connect_to_count"
        ),
        (
            CHANNEL,
            "        self._send_deferred_to(self._connections.take_connected())\n"
            "        for index, connection in enumerate(self._by_node):\n",
            "        for index, connection in enumerate(self._by_node):\n",
        ),
    ),
    mutant(
        "a client that is closed loses the votes on its last release",
        tested("test_unawaited_release.py", "test_closing_the_client_reports_it_first"),
        (POOL, "            channel.await_receivers(until)\n", ""),
    ),
    mutant(
        "an error in the delivery of deferred releases ends it for good",
        operated(
            "transport/test_faults.py",
            "test_a_release_reaches_a_node_that_is_back_after_an_error_in_its_delivery",
        ),
        (POOL, "            self._delivers = goes_on\n", "            self._delivers = True\n"),
    ),
    mutant(
        "releases whose connections broke behind them are deferred and delivered by nobody",
        operated(
            "transport/test_faults.py",
            "test_a_release_whose_connections_broke_behind_it_reaches_the_nodes_"
            "without_a_further_call",
        ),
        (
            POOL,
            "                idle.append(channel)\n        self._report_deferred()\n",
            "                idle.append(channel)\n",
        ),
    ),
    mutant(
        "a finished message leaves no mark",
        simulated("late", "1-60"),
        (
            "core/options.py",
            "checked_node_keys(settings.key_prefix, keys, reserved_keys)",
            "checked_node_keys(settings.key_prefix, keys, () if keys else reserved_keys)",
        ),
    ),
    mutant(
        "the clock stands still in a suspend",
        simulated("suspend", "1-400"),
        (CLOCK, 'getattr(time, "CLOCK_BOOTTIME", None) or ', ""),
    ),
)
