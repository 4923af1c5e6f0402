"""
Faults in the rules of the task layer.

Most are seen by the exploration of their table, and the worst by the model of messages, which knows
nothing of single rows.
"""

from __future__ import annotations

from tests.mutants.planting import Mutant
from tests.mutants.writing import ARRIVAL, ENDING, PUBLISH, judged, modelled, mutant


def _row(name: str, killer: str, path: str, old: str, new: str) -> Mutant:
    # A table is explored to its end, messages for as long as the fault needs to show.
    limit = 400_000 if killer.startswith("rules-") else 30_000
    return mutant(name, modelled(killer, limit), (path, old, new))


_AT_PUBLISH = (
    _row(
        "a call that somebody waits for is dropped",
        "calls-until_executed-plain",
        PUBLISH,
        "lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a duplicate that has to be sent carries nothing",
        "calls-until_executed-tied",
        PUBLISH,
        "lambda c: c.has_dependents, Publish.SEND_AS_DUPLICATE",
        "lambda c: c.has_dependents, Publish.SEND",
    ),
    mutant(
        "a call after the first one's result is dropped",
        modelled("calls-until_executed-plain"),
        (PUBLISH, "lambda c: c.holder_has_ended and not c.has_waited,", "lambda c: False,"),
        (
            PUBLISH,
            "lambda c: c.holder_has_ended, Publish.SEND_AFTER",
            "lambda c: False, Publish.SEND_AFTER",
        ),
    ),
    _row(
        "a call that has waited for the release of an ended task is dropped",
        "calls-until_executed-plain",
        PUBLISH,
        "lambda c: c.holder_has_ended, Publish.SEND_AFTER",
        "lambda c: False, Publish.SEND_AFTER",
    ),
    _row(
        "the next step of a chain does not name the step before",
        "rules-publish",
        PUBLISH,
        "(c.has_dependents or c.holder_has_ended),\n        Publish.SEND_AFTER,",
        "(c.has_dependents or c.holder_has_ended),\n        Publish.SEND_AS_DUPLICATE,",
    ),
    _row(
        "a newer call is dropped for one that waits",
        "calls-until_executed-newest",
        PUBLISH,
        "c.role is Role.QUEUED,\n        Publish.REPLACE,",
        "False,\n        Publish.REPLACE,",
    ),
    _row(
        "a newer call is dropped for one that runs",
        "calls-until_executed-newest",
        PUBLISH,
        "c.role is Role.RUNNING,\n        Publish.SEND,",
        "False,\n        Publish.SEND,",
    ),
    _row(
        "a newer call replaces one that runs",
        "rules-publish",
        PUBLISH,
        "c.policy is PublishPolicy.REPLACE and c.role is Role.QUEUED,",
        "c.policy is PublishPolicy.REPLACE,",
    ),
    _row(
        "a call is dropped in a split vote",
        "rules-publish",
        PUBLISH,
        "lambda c: c.split, Publish.SEND_UNDECIDED",
        "lambda c: False, Publish.SEND_UNDECIDED",
    ),
    _row(
        "a call is dropped for another task's",
        "rules-publish",
        PUBLISH,
        "lambda c: not c.same_work, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a call is dropped for another task's that waits",
        "calls-until_executed-shared",
        PUBLISH,
        "lambda c: not c.same_work, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a retry is dropped as a duplicate",
        "rules-publish",
        PUBLISH,
        "lambda c: c.continues, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a tick is dropped for one that is skipped later",
        "rules-publish",
        PUBLISH,
        "lambda c: c.holder_may_be_skipped, Publish.SEND",
        "lambda c: False, Publish.SEND",
    ),
    _row(
        "a tick that a worker has begun is sent with a lock for the next one",
        "rules-publish-ticks",
        PUBLISH,
        'and may be lost", lambda _: True, Publish.SEND)',
        'and may be lost", lambda _: True, Publish.SEND_WITH_LOCK)',
    ),
)

_ON_ARRIVAL = (
    _row(
        "a finished call counts for nothing",
        "calls-until_executed-tied",
        ARRIVAL,
        "if Role.FINISHED in markers:",
        "if Role.SKIPPED in markers:",
    ),
    _row(
        "a call whose key is free already does not run",
        "calls-until_executing-tied",
        ARRIVAL,
        "return is_marked or self.key in",
        "return self.key in",
    ),
    _row(
        "a duplicate is skipped although the first call was revoked",
        "calls-until_executed-tied",
        ARRIVAL,
        "self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED)",
        "self.evidence in (Evidence.UNDER_WAY, Evidence.FINISHED, Evidence.GONE)",
    ),
    _row(
        "a duplicate waits for ever for a call that was revoked",
        "calls-until_executed-tied",
        ARRIVAL,
        "a.is_duplicate and a.evidence is Evidence.UNCLEAR,",
        "a.is_duplicate and a.evidence in (Evidence.UNCLEAR, Evidence.GONE),",
    ),
    _row(
        "a repetition runs after the call that replaced the first",
        "calls-until_executed-mixed",
        ARRIVAL,
        "a.is_duplicate and a.evidence is Evidence.REPLACED,",
        "False,",
    ),
    _row(
        "a repetition runs because the first is being withdrawn",
        "calls-until_executed-mixed",
        ARRIVAL,
        "        return Evidence.UNCLEAR  # a worker or a publisher",
        "        return Evidence.GONE  # a worker or a publisher",
    ),
    _row(
        "a repetition takes its turn although the first does the work",
        "calls-until_executed-refused",
        ARRIVAL,
        "a.first_counts and a.policy is PublishPolicy.RAISE,",
        "False,",
    ),
    _row(
        "a late tick begins",
        "ticks-deadline",
        ARRIVAL,
        "a.missed_deadline and not a.continues and not a.may_have_begun,",
        "a.missed_deadline and a.continues,",
    ),
    _row(
        "a tick that has begun is late after all",
        "rules-arrival",
        ARRIVAL,
        "a.missed_deadline and not a.continues and not a.may_have_begun,",
        "a.missed_deadline and not a.continues,",
    ),
    _row(
        "a frozen leader's tick runs when it wakes",
        "ticks-leaders",
        ARRIVAL,
        "a.may_be_superseded and a.record is Record.SUPERSEDED,",
        "False,",
    ),
    _row(
        "a tick that others gave way to is dropped for a newer leader",
        "rules-arrival",
        ARRIVAL,
        "self.from_leader and not self.continues and not self.brought_lock",
        "self.from_leader and not self.continues",
    ),
)

_IN_CONTENTION = (
    _row(
        "a delivery is acknowledged away while the first runs",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.obstacle is _MARKER and c.role.is_over,\n        Action.IGNORE,",
        "lambda c: c.obstacle is _MARKER,\n        Action.IGNORE,",
    ),
    _row(
        "a delivery comes back for ever although the first has finished",
        "calls-until_executed-plain",
        ARRIVAL,
        "lambda c: c.obstacle is _MARKER and c.role.is_over,\n        Action.IGNORE,",
        "lambda c: False,\n        Action.IGNORE,",
    ),
    _row(
        "a replaced message is ignored, and nobody hears of its end",
        "rules-contention",
        ARRIVAL,
        "c.obstacle is _MARKER and c.role is Role.REPLACED,",
        "False,",
    ),
    _row(
        "a revoked message counts as replaced",
        "rules-contention",
        ARRIVAL,
        "c.role is Role.REVOKED,\n        Action.END_AS_REVOKED",
        "c.role is Role.REVOKED,\n        Action.END_AS_REPLACED",
    ),
    _row(
        "what replaced a message leaves it waiting",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,\n        "
        "Action.END_AS_REPLACED",
        "lambda c: c.obstacle is _MARKER and c.role is Role.REPLACED,\n        Action.WAIT",
    ),
    _row(
        "a tick whose own body wanted no outcome is never run again",
        "ticks-abandoned",
        ARRIVAL,
        "and c.same_message\n            and not c.has_retaken\n        ),\n        Action.RETAKE,",
        "and c.same_message\n            and not c.has_retaken\n        ),\n        "
        "Action.REQUEUE_COPY,",
    ),
    _row(
        "a body without an outcome is run again by the message of another beat",
        "rules-contention",
        ARRIVAL,
        "and c.role is Role.ABANDONED\n            and c.same_message\n",
        "and c.role is Role.ABANDONED\n",
    ),
    _row(
        "a marker is evicted again and again",
        "rules-contention",
        ARRIVAL,
        "and not c.same_message\n            and not c.has_retaken\n",
        "and not c.same_message\n",
    ),
    _row(
        "a marker is taken over again and again",
        "rules-contention",
        ARRIVAL,
        " and c.has_taken_over\n",
        " and False\n",
    ),
    _row(
        "the message of another beat is skipped for the one that waits",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.holder is Holder.COPY,",
        "lambda c: False,",
    ),
    _row(
        "a retry is the rival of the run before it",
        "rules-contention",
        ARRIVAL,
        "return self.holder in (Holder.ITSELF, Holder.PREDECESSOR)",
        "return self.holder is Holder.PREDECESSOR",
    ),
    _row(
        "the call after a task's end is its duplicate",
        "calls-until_executed-chain",
        ARRIVAL,
        "return self.holder in (Holder.ITSELF, Holder.PREDECESSOR)",
        "return self.holder is Holder.ITSELF",
    ),
    _row(
        "all contenders give way in a split vote",
        "rules-contention",
        ARRIVAL,
        "c.split and c.at_run is not RunPolicy.RAISE,",
        "False,",
    ),
    _row(
        "a split vote makes duplicates",
        "rules-contention",
        ARRIVAL,
        "c.split and (c.locks_at_publish or c.overlap is not Overlap.NONE),",
        "c.split and c.overlap is not Overlap.NONE,",
    ),
    _row(
        "a message ends in the worker for another task's",
        "calls-until_executed-shared",
        ARRIVAL,
        'Row("the holder does other work", lambda c: not c.same_work, Action.WAIT)',
        'Row("the holder does other work", lambda c: False, Action.WAIT)',
    ),
    _row(
        "a schedule's run overtakes another task's",
        "ticks-replace-shared",
        ARRIVAL,
        "lambda c: c.overlap is Overlap.REPLACE and not c.same_work,",
        "lambda c: False,",
    ),
    _row(
        "two runs give way to each other",
        "rules-contention",
        ARRIVAL,
        "c.overlap is Overlap.REPLACE and c.order is Order.NEWER,",
        "c.overlap is Overlap.REPLACE and c.order is not Order.OLDER,",
    ),
    _row(
        "a newer run is asked to stop",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.overlap is Overlap.REPLACE and c.order is Order.OLDER,",
        "lambda c: c.overlap is Overlap.REPLACE,",
    ),
    _row(
        "a foreign lock makes a duplicate",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.holder is Holder.FOREIGN, Action.WAIT",
        "lambda c: False, Action.WAIT",
    ),
    _row(
        "a retry that lost its lock is skipped as a duplicate",
        "rules-contention",
        ARRIVAL,
        "c.has_begun and not (c.was_replaced",
        "False and not (c.was_replaced",
    ),
    _row(
        "a message that was replaced runs after the newer one",
        "rules-contention",
        ARRIVAL,
        "lambda c: c.brought_lock, Action.END_AS_REPLACED",
        "lambda c: False, Action.END_AS_REPLACED",
    ),
    _row(
        "a conflict at run is never requeued",
        "rules-contention",
        ARRIVAL,
        "c.obstacle is _LOCK and c.at_run is RunPolicy.REQUEUE,",
        "False,",
    ),
    _row(
        "a body runs without its lock although nobody allowed that",
        "rules-contention",
        ARRIVAL,
        "c.unavailable is Unavailable.RUN_UNLOCKED,",
        "c.unavailable is not Unavailable.RAISE,",
    ),
    _row(
        "a chord's member is rejected",
        "rules-contention",
        ARRIVAL,
        "c.at_run is RunPolicy.REJECT and c.may_be_rejected,",
        "c.at_run is RunPolicy.REJECT,",
    ),
    _row(
        "a message circles for ever",
        "rules-requeue",
        ARRIVAL,
        "lambda w: w.is_exhausted, Action.GIVE_UP",
        "lambda w: False, Action.GIVE_UP",
    ),
    _row(
        "a message is requeued although no node would wake it",
        "rules-requeue",
        ARRIVAL,
        "w.is_refused and not w.is_remembered,",
        "False,",
    ),
    _row(
        "a message that is requeued waits beside a long body",
        "rules-in-place",
        ARRIVAL,
        "lambda p: p.is_held_long, False",
        "lambda p: False, False",
    ),
    _row(
        "a message that would be skipped does not wait for lock_wait",
        "rules-in-place",
        ARRIVAL,
        "lambda p: not p.is_requeued, True",
        "lambda p: False, True",
    ),
    _row(
        "a lock_wait that is set is not kept",
        "rules-in-place",
        ARRIVAL,
        "lambda p: p.wait_is_set, True",
        "lambda p: False, True",
    ),
)

_AT_THE_END = (
    _row(
        "a body that was interrupted has finished",
        "calls-until_executed-endings",
        ENDING,
        "lambda e: e.process_ends, Outcome.INTERRUPTED",
        "lambda e: e.process_ends, Outcome.DONE",
    ),
    _row(
        "a message that was rejected back to the queue has finished",
        "calls-until_executed-endings",
        ENDING,
        "lambda e: e.rejection is Raised.REJECT_TO_QUEUE,\n        Outcome.REDELIVERED",
        "lambda e: e.rejection is Raised.REJECT_TO_QUEUE,\n        Outcome.DONE",
    ),
    _row(
        "a Retry without a message is an outcome",
        "rules-outcome",
        ENDING,
        "CeleryState.RETRY and e.retry_is_out and not e.eager,",
        "CeleryState.RETRY and not e.eager,",
    ),
    _row(
        "a task that has finished leaves no marker",
        "calls-until_executing-plain",
        ENDING,
        "r.outcome is Outcome.DONE, Role.FINISHED",
        "False, Role.FINISHED",
    ),
    _row(
        "a revoked call counts as done",
        "rules-marker",
        ENDING,
        "r.state is State.UNRUN and r.unrun_as is Role.FAILED,",
        "False,",
    ),
    _row(
        "a tick that another message skipped has finished for the one that had begun",
        "rules-marker",
        ENDING,
        "r.state is State.UNRUN and r.for_tick,",
        "False,",
    ),
    _row(
        "a retry does not get the lock",
        "rules-keys",
        ENDING,
        "r.state is State.HANDED_OVER,\n        Keys.HAND_OVER",
        "r.state is State.HANDED_OVER,\n        Keys.RELEASE",
    ),
    _row(
        "a body that was interrupted keeps the key for its window",
        "rules-keys",
        ENDING,
        "(Outcome.REDELIVERED, Outcome.REJECTED, Outcome.INTERRUPTED)",
        "(Outcome.REDELIVERED, Outcome.REJECTED)",
    ),
    _row(
        "a lock is released before the result is stored",
        "rules-moment",
        ENDING,
        "lambda e: not e.is_traced, Moment.NOW",
        "lambda e: True, Moment.NOW",
    ),
    _row(
        "a copy frees the lock of the delivery that runs",
        "rules-reservation",
        ENDING,
        "u.raised is Raised.IGNORE and u.state is not State.UNRUN,",
        "False,",
    ),
    _row(
        "a requeued message loses its lock",
        "rules-reservation",
        ENDING,
        "lambda u: u.raised is Raised.RETRY, True",
        "lambda u: u.raised is Raised.RETRY, False",
    ),
)

_FACTS = (
    mutant(
        "a holder counts as one of the same task, whatever its task",
        judged("test_shared_keys.py", "test_a_call_is_sent_while_another_tasks_body_runs"),
        ("tasks/message/owner_label.py", "return self.task == task_digest(name)", "return True"),
    ),
    mutant(
        "a name that JSON changes makes another key in the worker",
        judged("keys/test_received.py", "test_a_value_that_a_serializer_changes_has_one_key"),
        (
            "tasks/keys/canonical.py",
            "canonical(name if type(name) is str else json_name(name), deeper): item",
            "canonical(name, deeper): item",
        ),
    ),
)

DECIDING = (*_AT_PUBLISH, *_ON_ARRIVAL, *_IN_CONTENTION, *_AT_THE_END, *_FACTS)
