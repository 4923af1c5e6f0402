"""
Faults in how a lost lease is raised in a body: where it may do harm, twice, or never.
"""

from __future__ import annotations

from tests.mutants.writing import modelled, mutant

BASE = "tasks/base.py"
BODY = "tasks/holding/body.py"
REACH = "tasks/holding/reach.py"
WHOSE = "tasks/holding/whose.py"
HOLD = "tasks/holding/hold.py"

_PASSES_ON = "frame is not innermost and (module, frame.f_code.co_name) in PASS_ON"

INTERRUPTING = (
    mutant(
        "Celery's work in a body is interrupted",
        modelled("body-greenlet"),
        (WHOSE, 'SPARED = frozenset({"celery", "kombu", "logging"})', "SPARED = frozenset()"),
        (
            WHOSE,
            'frozenset({"beat", "core", "protocol", "tasks", "transport"})',
            "frozenset()",
        ),
    ),
    mutant(
        "only the innermost function is looked at",
        modelled("body-signal"),
        (WHOSE, "        frame = frame.f_back\n", "        frame = body\n"),
    ),
    mutant(
        "autoretry is interrupted where it chooses what to do",
        modelled("body-signal-autoretry"),
        (WHOSE, _PASSES_ON, "(module, frame.f_code.co_name) in PASS_ON"),
    ),
    mutant(
        "a body under autoretry is never interrupted",
        modelled("body-thread-autoretry"),
        (WHOSE, _PASSES_ON, "False"),
    ),
    mutant(
        "a signal's handler does not look where it is",
        modelled("body-signal"),
        (
            REACH,
            "if body.due is not None and body.may_be_struck(frame):",
            "if body.due is not None and not body.raised:",
        ),
    ),
    mutant(
        "a thread is struck wherever it has got to",
        modelled("body-thread"),
        (
            REACH,
            "if frames[self._id] is frame and frame.f_lasti == place:",
            "if frames[self._id]:",
        ),
    ),
    mutant(
        "what has not landed is left to autoretry",
        modelled("body-thread-autoretry"),
        (HOLD, "            self.body.take_back(self._reach.recall)\n", "            pass\n"),
    ),
    mutant(
        "what has not landed is left to Celery",
        modelled("body-thread"),
        (BODY, "            forget()\n", ""),
    ),
    mutant(
        "a body whose retry is out is interrupted",
        modelled("body-thread"),
        (BASE, "            hold.body.over = True\n", "            pass\n"),
    ),
    mutant(
        "a loss that was thrown is thrown again",
        modelled("body-greenlet"),
        (
            BODY,
            "if not self.running or self.over or self.raised or self.due is None:",
            "if not self.running or self.over or self.due is None:",
        ),
    ),
    mutant(
        "a throw that was called off counts as made",
        modelled("body-thread"),
        (REACH, "                    body.raised = False\n", "                    pass\n"),
    ),
)
