"""
Faults in how a lost lease is raised in a body: where it may do harm, twice, or never.
"""

from __future__ import annotations

from tests.mutants.writing import modelled, mutant

TASK = "tasks/task.py"
BODY = "tasks/interrupt/body.py"
INTERRUPTERS = "tasks/interrupt/interrupters.py"
APPLICATION_CODE = "tasks/interrupt/application_code.py"
RUNNING_LOCK = "tasks/run/running_lock.py"

_PASSES_ON = "frame is not innermost and (module, frame.f_code.co_name) in PASS_ON"

INTERRUPTING = (
    mutant(
        "Celery's work in a body is interrupted",
        modelled("body-greenlet"),
        (
            APPLICATION_CODE,
            'SPARED = frozenset({"celery", "kombu", "logging"})',
            "SPARED = frozenset()",
        ),
        (
            APPLICATION_CODE,
            '{"_greenlets", "_log", "beat", "core", "protocol", "schedules", "tasks", "transport"}',
            "",
        ),
    ),
    mutant(
        "only the innermost function is looked at",
        modelled("body-signal"),
        (APPLICATION_CODE, "        frame = frame.f_back\n", "        frame = body\n"),
    ),
    mutant(
        "autoretry is interrupted where it chooses what to do",
        modelled("body-signal-autoretry"),
        (APPLICATION_CODE, _PASSES_ON, "(module, frame.f_code.co_name) in PASS_ON"),
    ),
    mutant(
        "a body under autoretry is never interrupted",
        modelled("body-thread-autoretry"),
        (APPLICATION_CODE, _PASSES_ON, "False"),
    ),
    mutant(
        "a signal's handler does not look where it is",
        modelled("body-signal"),
        (
            INTERRUPTERS,
            "if body.due is not None and body.may_be_interrupted(frame):",
            "if body.due is not None and not body.raised:",
        ),
    ),
    mutant(
        "a thread is struck wherever it has got to",
        modelled("body-thread"),
        (
            INTERRUPTERS,
            "if frames[self._id] is frame and frame.f_lasti == place:",
            "if frames[self._id]:",
        ),
    ),
    mutant(
        "what has not landed is left to autoretry",
        modelled("body-thread-autoretry"),
        (
            RUNNING_LOCK,
            "            self.body.defer(self._interrupter.recall)\n",
            "            pass\n",
        ),
    ),
    mutant(
        "what has not landed is left to Celery",
        modelled("body-thread"),
        (BODY, "            cancel()\n", ""),
    ),
    mutant(
        "a body whose retry is out is interrupted",
        modelled("body-thread"),
        (TASK, "            running_lock.body.over = True\n", "            pass\n"),
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
        (INTERRUPTERS, "                    body.raised = False\n", "                    pass\n"),
    ),
)
