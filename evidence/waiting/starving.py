"""
Whether one that needs two keys can wait for ever beside others that need one of them each.
"""

from __future__ import annotations

from evidence.waiting.line import FREE, Line, LineSetting

#: The oldest needs both keys; of each key two others hold it in turn.
_WANTS = ((0, 1), (0,), (0,), (1,), (1,))


def starved(rounds: int, *, fair: bool) -> bool:
    """
    Return whether the oldest is named in no round.

    All wait at one node and attend without delay; the keys are released in turn, and whoever is
    named takes its key at once.
    """
    line = Line(LineSetting(name="starving", wants=_WANTS, fair=fair))
    owners, present = [1, 3], 0b10101
    for turn in range(rounds):
        key = turn % 2
        over = owners[key]
        owners[key] = FREE
        may = line._walk((tuple(owners), (present,), False), present)
        if may & 1:
            return False
        granted = may.bit_length() - 1
        owners[key] = granted
        present = present & ~(1 << granted) | 1 << over  # the one that is over is sent again
    return True
