"""
Faults in how a lost lease is raised in a body: where it may do harm, twice, or never.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled

_PASSES_ON = "frame is not innermost and (module, frame.f_code.co_name) in PASS_ON"

INTERRUPTING = (
    fault(
        "Celery's work in a body is interrupted",
        modelled("body-greenlet"),
        (
            "tasks/interrupt/body.py::SPARED",
            'SPARED = frozenset({"celery", "kombu", "logging"})',
            "SPARED = frozenset()",
        ),
        (
            "tasks/interrupt/body.py::SPARED_OF_OURS",
            '{"_greenlets", "_log", "beat", "core", "protocol", "schedules", "tasks", "transport"}',
            "",
        ),
    ),
    fault(
        "only the innermost function is looked at",
        modelled("body-signal"),
        (
            "tasks/interrupt/body.py::is_application_code",
            "frame = frame.f_back",
            "frame = body",
        ),
    ),
    fault(
        "autoretry is interrupted where it chooses what to do",
        modelled("body-signal-autoretry"),
        (
            "tasks/interrupt/body.py::is_application_code",
            _PASSES_ON,
            "(module, frame.f_code.co_name) in PASS_ON",
        ),
    ),
    fault(
        "a body under autoretry is never interrupted",
        modelled("body-thread-autoretry"),
        ("tasks/interrupt/body.py::is_application_code", _PASSES_ON, "False"),
    ),
    fault(
        "a signal's handler does not look where it is",
        modelled("body-signal"),
        (
            "tasks/interrupt/interrupters.py::_install_handler.strike",
            "if body.due is not None and body.may_be_interrupted(frame):",
            "if body.due is not None and not body.raised:",
        ),
    ),
    fault(
        "a thread is struck wherever it has got to",
        modelled("body-thread"),
        (
            "tasks/interrupt/interrupters.py::ThreadInterrupter.interrupt",
            "if frames[self._id] is frame and frame.f_lasti == place:",
            "if frames[self._id]:",
        ),
    ),
    fault(
        "what has not landed is left to autoretry",
        modelled("body-thread-autoretry"),
        (
            "tasks/run/running_lock.py::RunningLock.defer_interrupt",
            "self.body.defer(self.interrupter.recall)",
            "pass",
        ),
    ),
    fault(
        "what has not landed is left to Celery",
        modelled("body-thread"),
        (
            "tasks/interrupt/body.py::Body.finish",
            "self.running = False cancel()",
            "self.running = False",
        ),
    ),
    fault(
        "a body whose retry is out is interrupted",
        modelled("body-thread"),
        ("tasks/task.py::_ends_body", "running_lock.body.over = True", "pass"),
    ),
    fault(
        "a loss that was thrown is thrown again",
        modelled("body-greenlet"),
        (
            "tasks/interrupt/body.py::Body.may_be_interrupted",
            "if not self.running or self.over or self.raised or self.due is None:",
            "if not self.running or self.over or self.due is None:",
        ),
    ),
    fault(
        "a throw that was called off counts as made",
        modelled("body-thread"),
        (
            "tasks/interrupt/interrupters.py::ThreadInterrupter.interrupt",
            "body.raised = False",
            "pass",
        ),
    ),
)
