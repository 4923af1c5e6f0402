"""
Faults in what answers come to: in how votes are told, in the transport, and in the clock.
"""

from __future__ import annotations

from tests.mutants.writing import CHANNEL, CLOCK, LINK, ROUNDS, modelled, mutant, simulated

VOTES = (
    mutant(
        "one node's word is a conflict",
        modelled("split-two"),
        (ROUNDS, "if most >= self.needed:", "if most:"),
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
