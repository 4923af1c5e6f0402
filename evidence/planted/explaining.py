"""
Faults in what `celery-redlock explain` makes of the rules.
"""

from __future__ import annotations

from evidence.planted.writing import fault, tested

EXPLAINING = (
    fault(
        "a kept key is explained as that of a body",
        tested("test_a_second_call_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call.states",
            "stage=Stage.KEPT, role=Role.FINISHED",
            "stage=Stage.KEPT",
        ),
    ),
    fault(
        "a call that runs is explained as one whose publisher has its key",
        tested("test_a_second_call_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call.states",
            "at_publish=mode.at_publish and mode.held_in_body",
            "at_publish=mode.at_publish and mode.in_body",
        ),
    ),
    fault(
        "a call with a task id is explained as one that may be dropped",
        tested("test_a_call_with_a_task_id_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call._duplicate",
            "has_dependents=self.has_dependents,\n            continues=False",
            "has_dependents=False,\n            continues=False",
        ),
    ),
    fault(
        "another task's call is explained as a duplicate",
        tested("test_a_call_that_finds_another_task_s_lock_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call._duplicate",
            "same_work=self.same_work and not self.is_limit,\n            is_limit=self.is_limit",
            "same_work=True,\n            is_limit=self.is_limit",
        ),
    ),
    fault(
        "a limit is explained as a key of one holder",
        tested("test_a_call_that_finds_no_slot_free_fares_as_it_is_explained"),
        ("admin/courses.py::Call._duplicate", "is_limit=self.is_limit", "is_limit=False"),
    ),
    fault(
        "a call whose key is paused is explained as one that meets another task",
        tested("test_a_second_call_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call._received",
            "Holder.PAUSE if state.stage is Stage.PAUSED else Holder.OTHER",
            "Holder.OTHER",
        ),
    ),
    fault(
        "a publisher is explained to take a rate that is paused",
        tested("test_a_call_whose_slots_are_paused_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call.states",
            "at_publish=self.has_rate",
            "at_publish=False",
        ),
    ),
    fault(
        "no rate is explained to keep a publisher from a lock",
        tested("test_a_sentence_has_the_values_of_the_options"),
        (
            "admin/explanation.py::_Meaning.call",
            "has_rate=any(key.period for key in self.keys)",
            "has_rate=False",
        ),
    ),
    fault(
        "a fact of the explanation differs from that of a message",
        tested("test_the_facts_are_those_of_a_real_message"),
        (
            "admin/courses.py::Call._contention",
            "may_be_rejected=self.acks_late",
            "may_be_rejected=False",
        ),
    ),
    fault(
        "a redelivery is explained as another message",
        tested("test_a_redelivery_fares_as_it_is_explained"),
        (
            "admin/courses.py::Call.redelivery",
            "Obstacle.MARKER if self.marks_messages else Obstacle.LOCK",
            "Obstacle.LOCK",
        ),
    ),
    fault(
        "a worker's course is explained without the answer of the function",
        tested("test_a_function_has_a_course_for_each_answer"),
        ("admin/courses.py::Call.courses", "if course.answer:", "if False:"),
    ),
    fault(
        "a retry is explained as one that has to take its lock anew",
        tested("test_the_lock_of_a_body_that_retries_fares_as_it_is_explained"),
        ("admin/courses.py::Call.keys_after_retry", "if hands_over else", "if False else"),
    ),
    fault(
        "a base class is named as the task",
        tested("test_the_origin_of_an_option_is_named"),
        ("tasks/config/resolve.py::_declared_by", "if is_own else", "if True else"),
    ),
    fault(
        "an annotation is named as the task",
        tested("test_the_origin_of_an_option_is_named"),
        ("tasks/config/resolve.py::origins_of", "if is_annotated else", "if False else"),
    ),
    fault(
        "a module that only workers import is not explained",
        tested("test_a_module_that_only_workers_import_is_imported"),
        ("cli/explain.py::_task", "app.loader.import_default_modules()", "pass"),
    ),
    fault(
        "a taken key is drawn as free",
        tested("test_a_terminal_without_unicode_gets_ascii"),
        ("cli/explain.py::drawing", "(taken if stretch.key else free) * 2", "free * 2"),
    ),
)
