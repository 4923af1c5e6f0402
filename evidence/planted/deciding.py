"""
Faults in the rules of the task layer.

Most are seen by the exploration of their table, and the worst by the model of messages, which knows
nothing of single rows.
"""

from __future__ import annotations

from evidence.planted.planting import Fault
from evidence.planted.writing import fault, modelled, tested


def _row(name: str, killer: str, where: str, old: str, new: str) -> Fault:
    # A table is explored to its end, messages for as long as the fault needs to show.
    limit = 400_000 if killer.startswith("rules-") else 30_000
    return fault(name, modelled(killer, limit), (where, old, new))


_AT_PUBLISH = (
    _row(
        "a call that somebody waits for is dropped",
        "calls-until_executed-plain",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a duplicate that has to be sent carries nothing",
        "calls-until_executed-tied",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE",
        "lambda c: c.has_dependents, Publish.SEND",
    ),
    fault(
        "a call after the first one's result is dropped",
        modelled("calls-until_executed-plain"),
        (
            "tasks/rules/publish.py::DUPLICATES",
            "lambda c: c.holder_has_ended and not c.has_waited",
            "lambda c: False",
        ),
        (
            "tasks/rules/publish.py::DUPLICATES",
            "lambda c: c.holder_has_ended, Publish.SEND_AFTER",
            "lambda c: False, Publish.SEND_AFTER",
        ),
    ),
    fault(
        "the sender of a duplicate waits forever for a result that is not stored",
        tested("test_a_result_that_the_first_call_does_not_store_is_unreadable"),
        (
            "tasks/message/duplicate_result.py::result_of",
            "ignored or holder.ignored",
            "ignored",
        ),
    ),
    fault(
        "the result of a call under apply counts as stored",
        tested("test_a_result_that_the_first_call_does_not_store_is_unreadable"),
        (
            "tasks/run/lock_request.py::LockRequest.ignores_result",
            "return is_eager or bool(",
            "return bool(",
        ),
    ),
    fault(
        "a step after a replaced one is no duplicate",
        tested("test_a_step_after_one_that_replaced_itself_is_a_duplicate_as_any_other"),
        (
            "tasks/run/ended_tasks.py::may_replace",
            "return task_id in (request.id, request.parent_id, request.root_id)",
            "return True",
        ),
    ),
    fault(
        "a worker runs a duplicate that follows a replaced step",
        tested("test_a_step_after_one_that_replaced_itself_is_a_duplicate_as_any_other"),
        (
            "tasks/run/lock_request.py::LockRequest.is_continuation",
            "return is_continuation(self.request) and self.envelope.duplicate_of is None",
            "return is_continuation(self.request)",
        ),
    ),
    fault(
        "the last step that replaces a task counts as a call of its own",
        tested("test_the_last_step_that_replaces_a_task_continues_it"),
        (
            "tasks/run/ended_tasks.py::may_replace",
            "return task_id in (request.id, request.parent_id, request.root_id)",
            "return task_id == request.id",
        ),
    ),
    _row(
        "a call that has waited for the release of an ended task is dropped",
        "calls-until_executed-plain",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.holder_has_ended, Publish.SEND_AFTER",
        "lambda c: False, Publish.SEND_AFTER",
    ),
    _row(
        "the next step of a chain does not name the step before",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "(c.has_dependents or c.holder_has_ended),\n        Publish.SEND_AFTER",
        "(c.has_dependents or c.holder_has_ended),\nPublish.SEND_AS_DUPLICATE",
    ),
    _row(
        "a newer call is dropped for one that waits",
        "calls-until_executed-newest",
        "tasks/rules/publish.py::DUPLICATES",
        "c.role is Role.QUEUED,\n        Publish.REPLACE",
        "False,\nPublish.REPLACE",
    ),
    _row(
        "a newer call is dropped for one that runs",
        "calls-until_executed-newest",
        "tasks/rules/publish.py::DUPLICATES",
        "c.role is Role.RUNNING,\n        Publish.SEND",
        "False,\nPublish.SEND",
    ),
    _row(
        "a newer call replaces one that runs",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "c.policy is DuplicatePolicy.REPLACE and c.role is Role.QUEUED",
        "c.policy is DuplicatePolicy.REPLACE",
    ),
    _row(
        "a call is dropped in a split vote",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.split, Publish.SEND_UNDECIDED",
        "lambda c: False, Publish.SEND_UNDECIDED",
    ),
    _row(
        "a call is dropped for another task's",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: not c.same_work, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a call is dropped for another task's that waits",
        "calls-until_executed-shared",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: not c.same_work, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a retry is dropped as a duplicate",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.continues, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a tick is dropped for one that is skipped later",
        "rules-publish",
        "tasks/rules/publish.py::DUPLICATES",
        "lambda c: c.holder_may_be_skipped, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a tick that a worker has begun is sent with a lock for the next one",
        "rules-publish-ticks",
        "tasks/rules/publish.py::TICKS",
        '"a worker has begun its tick, and may be lost", lambda _: True, Publish.SEND',
        '"a worker has begun its tick, and may be lost", lambda _: True, Publish.SEND_WITH_LOCK',
    ),
)

_ON_ARRIVAL = (
    _row(
        "a finished call counts for nothing",
        "calls-until_executed-tied",
        "tasks/rules/arrival.py::evidence_of",
        "if Role.FINISHED in markers:",
        "if Role.SKIPPED in markers:",
    ),
    _row(
        "a call whose key is free already does not run",
        "calls-until_executing-tied",
        "tasks/rules/arrival.py::Sighting.shows_work",
        "return is_marked or self.key in",
        "return self.key in",
    ),
    _row(
        "a duplicate is skipped although the first call was revoked",
        "calls-until_executed-tied",
        "tasks/rules/arrival.py::Arrival.first_counts",
        "self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED)",
        "self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED, Evidence.GONE)",
    ),
    _row(
        "a duplicate waits for ever for a call that was revoked",
        "calls-until_executed-tied",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.is_duplicate and a.evidence is Evidence.UNCLEAR",
        "a.is_duplicate and a.evidence in (Evidence.UNCLEAR, Evidence.GONE)",
    ),
    _row(
        "a repetition runs after the call that replaced the first",
        "calls-until_executed-mixed",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.is_duplicate and a.evidence is Evidence.REPLACED",
        "False",
    ),
    _row(
        "a repetition runs because the first is being withdrawn",
        "calls-until_executed-mixed",
        "tasks/rules/arrival.py::evidence_of",
        "if Role.QUEUED in markers: return Evidence.UNCLEAR",
        "if Role.QUEUED in markers:\n    return Evidence.GONE",
    ),
    _row(
        "a repetition takes its turn although the first does the work",
        "calls-until_executed-refused",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.first_counts and a.policy is DuplicatePolicy.RAISE",
        "False",
    ),
    _row(
        "a late tick begins",
        "ticks-deadline",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.missed_deadline and not a.continues and not a.may_have_begun",
        "a.missed_deadline and a.continues",
    ),
    _row(
        "a tick that has begun is late after all",
        "rules-arrival",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.missed_deadline and not a.continues and not a.may_have_begun",
        "a.missed_deadline and not a.continues",
    ),
    _row(
        "a frozen leader's tick runs when it wakes",
        "ticks-leaders",
        "tasks/rules/arrival.py::ARRIVALS",
        "a.may_be_superseded and a.record is Record.SUPERSEDED",
        "False",
    ),
    _row(
        "a tick that others gave way to is dropped for a newer leader",
        "rules-arrival",
        "tasks/rules/arrival.py::Arrival.may_be_superseded",
        "self.from_leader and not self.continues and not self.brought_lock",
        "self.from_leader and not self.continues",
    ),
)

_IN_CONTENTION = (
    _row(
        "a delivery is acknowledged away while the first runs",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.obstacle is _MARKER and c.role.is_over,\n        Action.IGNORE",
        "lambda c: c.obstacle is _MARKER,\nAction.IGNORE",
    ),
    _row(
        "a delivery comes back for ever although the first has finished",
        "calls-until_executed-plain",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.obstacle is _MARKER and c.role.is_over,\n        Action.IGNORE",
        "lambda c: False,\nAction.IGNORE",
    ),
    _row(
        "a replaced message is ignored, and nobody hears of its end",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,",
        "lambda c: False,",
    ),
    _row(
        "a revoked message counts as replaced",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.role is Role.REVOKED,\n        Action.END_AS_REVOKED",
        "c.role is Role.REVOKED,\nAction.END_AS_REPLACED",
    ),
    _row(
        "what replaced a message leaves it waiting",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,\n        "
        "Action.END_AS_REPLACED",
        "lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,\nAction.WAIT",
    ),
    _row(
        "a tick whose own body wanted no outcome is never run again",
        "ticks-abandoned",
        "tasks/rules/arrival.py::CONTENTION",
        "and c.same_message and not c.has_retaken), Action.RETAKE",
        "and c.same_message and not c.has_retaken), Action.REQUEUE_COPY",
    ),
    _row(
        "a body without an outcome is run again by the message of another beat",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "and c.role is Role.ABANDONED\n            and c.same_message",
        "and c.role is Role.ABANDONED",
    ),
    _row(
        "a marker is evicted again and again",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "and not c.same_message\n            and not c.has_retaken",
        "and not c.same_message",
    ),
    _row(
        "a marker is taken over again and again",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "and c.has_taken_over",
        "and False",
    ),
    _row(
        "the message of another beat is skipped for the one that waits",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.holder is Holder.COPY, Action",
        "lambda c: False, Action",
    ),
    _row(
        "a retry is the rival of the run before it",
        "rules-contention",
        "tasks/rules/arrival.py::Contention.holder_is_earlier_part",
        "return self.holder in (Holder.ITSELF, Holder.PREDECESSOR)",
        "return self.holder is Holder.PREDECESSOR",
    ),
    _row(
        "the call after a task's end is its duplicate",
        "calls-until_executed-chain",
        "tasks/rules/arrival.py::Contention.holder_is_earlier_part",
        "return self.holder in (Holder.ITSELF, Holder.PREDECESSOR)",
        "return self.holder is Holder.ITSELF",
    ),
    _row(
        "all contenders give way in a split vote",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.split and c.at_run is not ConflictPolicy.RAISE",
        "False",
    ),
    _row(
        "a split vote makes duplicates",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.split and c.locks_at_publish",
        "lambda c: False",
    ),
    _row(
        "a message ends in the worker for another task's",
        "calls-until_executed-shared",
        "tasks/rules/arrival.py::CONTENTION",
        'Row("the holder does other work", lambda c: not c.same_work, Action.WAIT)',
        'Row("the holder does other work", lambda c: False, Action.WAIT)',
    ),
    _row(
        "a call overtakes another task's",
        "calls-while_executing-stop-shared",
        "tasks/rules/arrival.py::CONTENTION",
        "and (c.holder is Holder.FOREIGN or not c.same_work or c.role is Role.FINISHED)",
        "and c.role is Role.FINISHED",
    ),
    _row(
        "two calls give way to each other",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.stops and c.order is Order.NEWER and not c.others_gave_way",
        "c.stops and c.order is not Order.OLDER",
    ),
    _row(
        "a newer call is asked to stop",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.stops and c.order is Order.OLDER, Action",
        "lambda c: c.stops, Action",
    ),
    _row(
        "a call that waits is not overtaken",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.order is Order.OLDER and c.role is Role.QUEUED",
        "False",
    ),
    _row(
        "a call that a newer one replaces waits for lock_wait first",
        "rules-final",
        "tasks/rules/arrival.py::FINAL",
        "c.stops and on_contention(c) is Action.END_AS_REPLACED,\n        True",
        "c.stops and on_contention(c) is Action.END_AS_REPLACED,\n        False",
    ),
    _row(
        "a newer call waits for lock_wait before it asks",
        "rules-in-place",
        "tasks/rules/arrival.py::IN_PLACE",
        'Row("the older call is asked to stop first", lambda p: p.is_newer, False)',
        'Row("the older call is asked to stop first", lambda p: False, False)',
    ),
    _row(
        "a foreign lock makes a duplicate",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.holder is Holder.FOREIGN, Action.WAIT",
        "lambda c: False, Action.WAIT",
    ),
    _row(
        "a retry that lost its lock is skipped as a duplicate",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.has_begun and not (c.was_replaced",
        "False and not (c.was_replaced",
    ),
    _row(
        "a message that was replaced runs after the newer one",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.replaces and c.brought_lock,\n        Action.END_AS_REPLACED",
        "lambda c: False,\nAction.END_AS_REPLACED",
    ),
    _row(
        "a policy of lock_on_conflict has no row, and the message is judged as a duplicate",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "lambda c: c.obstacle is _LOCK and c.at_run is ConflictPolicy.RAISE",
        "lambda c: False",
    ),
    _row(
        "a conflict at run is never requeued",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.obstacle is _LOCK and c.at_run is ConflictPolicy.REQUEUE",
        "False",
    ),
    _row(
        "a body runs without its lock although nobody allowed that",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.unavailable is Unavailable.RUN_UNLOCKED",
        "c.unavailable is not Unavailable.RAISE",
    ),
    _row(
        "a chord's member is rejected",
        "rules-contention",
        "tasks/rules/arrival.py::CONTENTION",
        "c.at_run is ConflictPolicy.REJECT and c.may_be_rejected",
        "c.at_run is ConflictPolicy.REJECT",
    ),
    _row(
        "a message circles for ever",
        "rules-requeue",
        "tasks/rules/arrival.py::REQUEUES",
        "lambda w: w.is_exhausted, Action.GIVE_UP",
        "lambda w: False, Action.GIVE_UP",
    ),
    _row(
        "a message is requeued although no node would wake it",
        "rules-requeue",
        "tasks/rules/arrival.py::REQUEUES",
        "w.is_refused and not w.is_registered",
        "False",
    ),
    _row(
        "a message that is requeued waits beside a long body",
        "rules-in-place",
        "tasks/rules/arrival.py::IN_PLACE",
        "lambda p: p.is_held_long, False",
        "lambda p: False, False",
    ),
    _row(
        "a message that would be skipped does not wait for lock_wait",
        "rules-in-place",
        "tasks/rules/arrival.py::IN_PLACE",
        "lambda p: not p.is_requeued, True",
        "lambda p: False, True",
    ),
    _row(
        "a lock_wait that is set is not kept",
        "rules-in-place",
        "tasks/rules/arrival.py::IN_PLACE",
        "lambda p: p.wait_is_set, True",
        "lambda p: False, True",
    ),
)

_AT_THE_END = (
    _row(
        "a body that was interrupted has finished",
        "calls-until_executed-endings",
        "tasks/rules/ending.py::OUTCOMES",
        "lambda e: e.process_ends, Ending.INTERRUPTED",
        "lambda e: e.process_ends, Ending.DONE",
    ),
    _row(
        "a message that was rejected back to the queue has finished",
        "calls-until_executed-endings",
        "tasks/rules/ending.py::OUTCOMES",
        "Raised.REJECT_TO_QUEUE and e.acks_late,\n        Ending.REDELIVERED",
        "Raised.REJECT_TO_QUEUE and e.acks_late,\nEnding.DONE",
    ),
    _row(
        "an acknowledged message that is rejected to its queue keeps its lock",
        "rules-ending",
        "tasks/rules/ending.py::OUTCOMES",
        "Raised.REJECT_TO_QUEUE and e.acks_late",
        "Raised.REJECT_TO_QUEUE",
    ),
    _row(
        "a Retry without a message is an outcome",
        "rules-ending",
        "tasks/rules/ending.py::OUTCOMES",
        "CeleryState.RETRY and e.retry_is_out and not e.eager",
        "CeleryState.RETRY and not e.eager",
    ),
    _row(
        "a task that has finished leaves no marker",
        "calls-until_executing-plain",
        "tasks/rules/ending.py::MARKERS",
        "r.ending is Ending.DONE, Role.FINISHED",
        "False, Role.FINISHED",
    ),
    _row(
        "a revoked call counts as done",
        "rules-marker",
        "tasks/rules/ending.py::MARKERS",
        "r.state is State.UNRUN and r.unrun_as is Role.FAILED",
        "False",
    ),
    _row(
        "a tick that another message skipped has finished for the one that had begun",
        "rules-marker",
        "tasks/rules/ending.py::MARKERS",
        "r.state is State.UNRUN and r.for_tick",
        "False",
    ),
    _row(
        "a retry does not get the lock",
        "rules-keys",
        "tasks/rules/ending.py::KEYS",
        "r.state is State.HANDED_OVER,\n        Keys.HAND_OVER",
        "r.state is State.HANDED_OVER,\nKeys.RELEASE",
    ),
    _row(
        "a body that was interrupted keeps the key for its window",
        "rules-keys",
        "tasks/rules/ending.py::KEYS",
        "(Ending.REDELIVERED, Ending.REJECTED, Ending.INTERRUPTED)",
        "(Ending.REDELIVERED, Ending.REJECTED)",
    ),
    _row(
        "a lock is released before the result is stored",
        "rules-moment",
        "tasks/rules/ending.py::MOMENTS",
        "lambda e: not e.is_traced, Moment.NOW",
        "lambda e: True, Moment.NOW",
    ),
    _row(
        "a copy frees the lock of the delivery that runs",
        "rules-reservation",
        "tasks/rules/ending.py::RESERVATIONS",
        "lambda u: u.raised is Raised.YIELDED, True",
        "lambda u: u.raised is Raised.YIELDED, False",
    ),
    _row(
        "a function that ends its task leaves the lock",
        "rules-reservation",
        "tasks/rules/ending.py::RESERVATIONS",
        "lambda u: u.raised is Raised.YIELDED, True",
        "lambda u: u.raised in (Raised.YIELDED, Raised.IGNORE), True",
    ),
    _row(
        "an acknowledged message that no body ran for keeps its lock",
        "rules-reservation",
        "tasks/rules/ending.py::RESERVATIONS",
        "Raised.PROCESS_END) and u.acks_late",
        "Raised.PROCESS_END)",
    ),
    _row(
        "a requeued message loses its lock",
        "rules-reservation",
        "tasks/rules/ending.py::RESERVATIONS",
        "lambda u: u.raised is Raised.RETRY, True",
        "lambda u: u.raised is Raised.RETRY, False",
    ),
)

_FACTS = (
    fault(
        "a delivery that leaves the lock to another one frees it",
        tested("test_a_twin_that_comes_while_another_one_ends_keeps_the_lock_that_it_brings"),
        ("tasks/run/arrival_facts.py::raised_by", "(Yielded, Raised.YIELDED),", ""),
    ),
    fault(
        "a holder counts as one of the same task, whatever its task",
        tested("test_a_call_is_sent_while_another_tasks_body_runs"),
        (
            "tasks/message/owner_label.py::TaskOwner.runs",
            "return self.task == task_digest(name)",
            "return True",
        ),
    ),
    fault(
        "a name that JSON changes makes another key in the worker",
        tested("test_a_value_that_a_serializer_changes_has_one_key"),
        (
            "tasks/keys/canonical.py::canonical",
            "canonical(name if type(name) is str else json_name(name), deeper): item",
            "canonical(name, deeper): item",
        ),
    ),
)

DECIDING = (*_AT_PUBLISH, *_ON_ARRIVAL, *_IN_CONTENTION, *_AT_THE_END, *_FACTS)
