"""
Faults in debounced bursts: which call runs, and when (`lock_debounce`).
"""

from __future__ import annotations

from evidence.planted.planting import Fault
from evidence.planted.writing import fault, modelled, tested


def _explored(name: str, setting: str, *edit: str) -> Fault:
    where, old, new = edit
    return fault(name, modelled(setting), (where, old, new))


DEBOUNCING = (
    _explored(
        "the maximum of a burst begins again with each call",
        "burst",
        "tasks/publish/call.py::DebouncedCall.replacing",
        "begun = self.made if holder.burst_us is None else holder.burst_us / 1_000_000",
        "begun = self.made",
    ),
    _explored(
        "a burst has no maximum",
        "burst",
        "tasks/config/option_values.py::Debounce.due",
        "min(made + self.quiet, max(made, first + self.at_most))",
        "made + self.quiet",
    ),
    _explored(
        "a call waits for the maximum instead of the silence",
        "burst",
        "tasks/config/option_values.py::Debounce.due",
        "min(made + self.quiet, max(made, first + self.at_most))",
        "max(made, first + self.at_most)",
    ),
    fault(
        "a newer call is due with the older one",
        tested("test_each_newer_call_puts_the_run_off"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._replacing",
            "call = self.call.having(debounced.with_eta(self.call.options))",
            "early = replace(debounced, made=debounced.first)\n"
            "call = self.call.having(early.with_eta(self.call.options))",
        ),
    ),
    fault(
        "the first call's time is not in the lock",
        tested("test_a_burst_ends_at_most_so_long_after_its_first_call"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._label",
            "burst_us=None if self.debounced is None else self.debounced.first_us",
            "burst_us=None",
        ),
    ),
    _explored(
        "calls that follow each other fast keep a burst from its end",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.burst is Burst.DUE and not c.has_waited",
        "lambda c: False",
    ),
    fault(
        "a call does not wait for the worker that begins the last one of a burst",
        tested("test_a_call_waits_for_the_worker_that_is_about_to_begin_the_last_one_of_a_burst"),
        (
            "tasks/publish/call.py::DebouncedCall.burst_of",
            "0 <= over_for < BEGINS_WITHIN",
            "over_for < 0 and over_for > BEGINS_WITHIN",
        ),
    ),
    _explored(
        "a debounced call is lost when its replaced message arrives before the newer one is sent",
        "burst-died",
        "tasks/rules/arrival.py::CONTENTION",
        "c.obstacle is _MARKER and c.role.is_over,\n        Action.IGNORE",
        "c.obstacle is _MARKER and c.role is not Role.RUNNING,\n        Action.IGNORE",
    ),
    fault(
        "a call that has found the older one begun is due with its burst",
        tested("test_a_call_begins_a_burst_where_the_older_one_begins_before_it_is_replaced"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._take_over",
            "return self, reserved, self._withdraw(older)",
            "return self._replacing(older), reserved, self._withdraw(older)",
        ),
    ),
    _explored(
        "the older arguments run after the newer ones, for they were sent without a lock",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        'Row("debounce: a newer call waits", lambda c: c.holder_is_newer, Action.END_AS_REPLACED)',
        'Row("debounce: a newer call waits", lambda c: c.holder_is_newer, Action.WAIT)',
    ),
    fault(
        "a call without a lock gives way to an older one",
        tested("test_a_newest_call_without_a_lock_runs_after_an_older_one_that_waits"),
        (
            "tasks/run/arrival_facts.py::_is_newer_call",
            "and owner.since > sent * 1_000_000",
            "",
        ),
    ),
    fault(
        "the call of a tick that is sent late gives way to an older one of its burst",
        tested("test_the_call_of_a_tick_that_was_due_long_ago_counts_from_when_it_was_made"),
        (
            "tasks/run/arrival_facts.py::_is_newer_call",
            "owner.since > sent * 1_000_000",
            "owner.since > lock_request.age_us",
        ),
    ),
    fault(
        "a call without a lock gives way to one whose publisher may be dead",
        tested("test_a_call_without_a_lock_waits_for_a_newer_one_whose_publisher_may_be_dead"),
        (
            "tasks/run/arrival_facts.py::_is_newer_call",
            "return is_out and same",
            "return same",
        ),
    ),
    fault(
        "two calls with one id both run",
        tested("test_two_calls_with_one_id_run_once"),
        (
            "tasks/rules/publish.py::DUPLICATES",
            "(c.holder is Holder.ITSELF and c.burst is Burst.NONE)",
            "c.holder is Holder.ITSELF",
        ),
    ),
    fault(
        "an older call with the same id ends the task as revoked",
        tested("test_an_older_call_with_the_same_id_says_nothing_about_the_task"),
        (
            "tasks/rules/arrival.py::CONTENTION",
            "c.role is Role.REPLACED and c.holder is Holder.ITSELF",
            "False",
        ),
    ),
    fault(
        "workers discard a call together with an older one of its id",
        tested("test_a_call_with_the_id_of_one_that_was_replaced_is_not_discarded"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._replace",
            "emit(Event.REPLACED, self.task, holder.task_id, by=self.task_id)",
            "self.task.app.control.revoke(holder.task_id)",
        ),
    ),
    fault(
        "the oldest call runs after the newest, for the publisher between has died",
        tested(
            "test_the_oldest_one_does_not_run_where_the_publisher_between_fails_or_dies"
            "_after_a_takeover"
        ),
        (
            "tasks/publish/unique_publish.py::UniquePublish._replace",
            "if holder.replaces is not None:",
            "if False:",
        ),
    ),
    fault(
        "a call that was replaced while it was sent runs after its countdown",
        tested("test_what_was_replaced_while_it_was_sent_is_remembered_beyond_its_countdown"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._replace",
            "max(error.expires_in or 0.0, newer._life)",
            "(error.expires_in or 0.0)",
        ),
    ),
    fault(
        "a call that fails lets the oldest one run although a newer one has taken over",
        tested("test_a_call_that_fails_leaves_the_oldest_ones_marker_to_the_newest"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._send_with",
            "if withdrawn is not None and is_ours:",
            "if withdrawn is not None:",
        ),
    ),
    fault(
        "a call with an ETA of its own is sent",
        tested("test_a_call_with_a_time_of_its_own_is_refused_and_replaces_nothing"),
        ("tasks/publish/call.py::debounced_call", "if given:", "if not given and False:"),
    ),
    fault(
        "a retry waits as a call does",
        tested("test_a_retry_runs_when_the_body_has_asked_for"),
        (
            "tasks/publish/publish.py::_publish_with_lock",
            "lock.debounce is not None and not call.continues",
            "lock.debounce is not None",
        ),
    ),
    fault(
        "the lock of a call ends before it is due",
        tested("test_a_lock_of_a_debounced_call_waits_for_lock_queue_ttl_from_when_it_is_due"),
        (
            "tasks/publish/unique_publish.py::UniquePublish._life",
            "max(SHORTEST_LIFE, end - time.time())",
            "max(SHORTEST_LIFE, self.now + 1 - time.time())",
        ),
    ),
)
