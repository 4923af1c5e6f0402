"""
What is explored of the line: settings in which all promises hold, and rules taken back.
"""

from __future__ import annotations

from evidence.waiting.line import LineSetting

ONE, THREE, FOUR = ((0,), (0,)), ((0,), (0,), (0,)), ((0,),) * 4
#: The oldest needs two keys, of which each of the others needs one.
MIXED = ((0, 1), (0,), (1,))
#: A key, and a second key of which there are two slots.
SHARED = ((1,), (0, 1), (1,), (0, 1))
FIRST = frozenset({0})

_PLAIN = (
    LineSetting(name="two", wants=ONE, wanders=True),
    LineSetting(name="two-prompt", wants=ONE, wanders=True, prompt=True),
    LineSetting(name="three-prompt", wants=THREE, running=(2,), attends=2, prompt=True),
    LineSetting(name="workers-prompt", wants=FOUR, workers=3, running=(3,), prompt=True),
    LineSetting(name="busy-prompt", wants=((0,), (0,), (1,)), running=(2,), prompt=True),
    LineSetting(name="busy-late", wants=((0,), (0,), (1,)), running=(2,), attends=2, prompt=True),
    LineSetting(name="three-revoked", wants=THREE, running=(2,), attends=2, kills=1),
    LineSetting(name="mixed-prompt", wants=MIXED, running=(2,), prompt=True),
    LineSetting(name="free-prompt", wants=MIXED, workers=3, prompt=True),
    LineSetting(
        name="both-prompt", wants=((0,), (0, 1), (1,), (0, 1)), workers=3, running=(3,), prompt=True
    ),
    LineSetting(name="limit-prompt", wants=FOUR, slots=(2,), running=(2, 3), prompt=True),
    LineSetting(
        name="alike-prompt", wants=((0, 1), (1,), (0, 1)), slots=(1, 2), running=(2,), prompt=True
    ),
    LineSetting(name="shared-prompt", wants=SHARED, slots=(1, 2), running=(3, 2), prompt=True),
    LineSetting(name="nodes-prompt", wants=ONE, nodes=3, running=(1,), prompt=True),
    LineSetting(
        name="down-prompt", wants=THREE, nodes=3, down=frozenset({2}), running=(2,), prompt=True
    ),
    LineSetting(name="two-fresh", wants=ONE, fresh=(0, 1), wanders=True),
    LineSetting(name="three", wants=THREE, running=(2,), wanders=True),
    LineSetting(name="three-late", wants=THREE, running=(2,), attends=2, answers_apart=True),
    LineSetting(name="three-late-wakes", wants=THREE, running=(2,), attends=2, late_wakes=True),
    LineSetting(name="three-lost", wants=THREE, running=(2,), attends=2, losses=1),
    LineSetting(name="three-faults", wants=ONE, attends=2, losses=1, kills=1, blocks=1),
    LineSetting(name="three-restart", wants=THREE, running=(2,), losses=1, restarts=1),
    LineSetting(name="three-gone", wants=THREE, running=(2,), gone=(0,), losses=1),
    LineSetting(name="three-workers", wants=FOUR, workers=3, running=(3,), losses=1),
    LineSetting(name="busy", wants=((0,), (0,), (1,)), running=(2,), wanders=True, losses=1),
    LineSetting(name="mixed", wants=MIXED, running=(2,), losses=1, wanders=True),
    LineSetting(name="mixed-free", wants=MIXED, attends=2),
    LineSetting(name="mixed-first", wants=MIXED, running=(2,), first=1, losses=1),
    LineSetting(name="mixed-both", wants=((0,), (0, 1), (1,), (0, 1)), workers=3, running=(3,)),
    LineSetting(name="shared-three", wants=SHARED, slots=(1, 2), workers=3, running=(3, 2)),
    LineSetting(name="chain", wants=((0,), (0, 1), (1, 2), (2,)), workers=3),
    LineSetting(name="limit", wants=FOUR, slots=(2,), running=(2, 3)),
    LineSetting(name="limit-lost", wants=THREE, slots=(2,), attends=2, losses=1),
    LineSetting(name="limit-key", wants=SHARED, slots=(1, 2), running=(3, 2), losses=1),
    LineSetting(name="limit-alike", wants=((0, 1), (1,), (0, 1)), slots=(1, 2), running=(2,)),
    LineSetting(name="rate", wants=THREE, rates=FIRST, attends=2, losses=1),
    LineSetting(name="rate-gone", wants=THREE, rates=FIRST, gone=(0,), kills=1),
    LineSetting(name="nodes", wants=ONE, nodes=3, running=(1,), losses=1),
    LineSetting(name="nodes-two", wants=ONE, nodes=3),
    LineSetting(name="nodes-down", wants=THREE, nodes=3, down=frozenset({2}), running=(2,)),
    LineSetting(
        name="nodes-down-lost", wants=ONE, nodes=3, down=frozenset({2}), losses=1, restarts=1
    ),
    LineSetting(name="nodes-late", wants=ONE, nodes=3, running=(1,), attends=2),
    LineSetting(name="nodes-mixed", wants=MIXED, nodes=3, down=frozenset({2}), running=(2,)),
)


def _unfair(setting: LineSetting) -> LineSetting:
    from dataclasses import replace

    return replace(setting, name=f"{setting.name}-unfair", fair=False)


SETTINGS = {
    setting.name: setting
    for plain in _PLAIN
    for setting in ((plain,) if plain.rates else (plain, _unfair(plain)))
}

#: Rules that are taken back, one at a time; where it must be seen.
RULES: dict[str, tuple[str, ...]] = {
    "exclusion": ("two-unfair",),
    "quarantine": ("three-restart",),
    "order": ("three", "rate"),
    "who is gone lapses": ("three-gone",),
    "whom it omits is absent": ("three-revoked",),
    "an older one is ignored": ("three-revoked",),
    "who enters wakes": ("mixed-both",),
    "only those that could run count": ("mixed",),
    "the first of each set of keys": ("mixed-first",),
    "an attempt makes earlier attends void": ("mixed-prompt",),
    "a release wakes": ("three-prompt",),
    "all keys together": ("both-prompt",),
    "an undo wakes": ("down-prompt",),
    "a grant wakes": ("free-prompt-unfair",),
    "who is omitted wakes": ("three-revoked",),
    "a refusal ends the presence": ("mixed",),
    "a busy worker gives back": ("busy",),
    "an arrival attends": ("two",),
}

#: Searched for cycles of attempts.
LIVELOCKS = tuple(
    LineSetting(never_calm=True, **what)
    for what in (
        {"name": "lock-two", "wants": ONE, "wanders": True},
        {"name": "lock-three", "wants": THREE, "running": (2,)},
        {"name": "lock-three-unfair", "wants": THREE, "running": (2,), "fair": False},
        {"name": "lock-mixed", "wants": MIXED},
        {"name": "lock-mixed-unfair", "wants": MIXED, "fair": False},
        {"name": "lock-workers", "wants": THREE, "workers": 3},
        {"name": "lock-limit", "wants": THREE, "slots": (2,)},
        {"name": "lock-all-busy", "wants": ((0,), (1,), (2,)), "running": (1, 2)},
        {"name": "lock-nodes", "wants": ONE, "nodes": 3},
        {"name": "lock-nodes-at-once", "wants": ONE, "nodes": 3, "at_once": True},
        {"name": "lock-nodes-down", "wants": ONE, "nodes": 3, "down": frozenset({2})},
        {
            "name": "lock-down-at-once",
            "wants": ONE,
            "nodes": 3,
            "down": frozenset({2}),
            "at_once": True,
        },
        {
            "name": "lock-all-busy-gives-back",
            "wants": ((0,), (1,), (2,)),
            "running": (1, 2),
            "broken": frozenset({"only where another has room"}),
        },
        {
            "name": "lock-any-starts",
            "wants": ONE,
            "nodes": 3,
            "down": frozenset({2}),
            "broken": frozenset({"a quorum starts"}),
        },
    )
)
