"""
Faults in how the newest call of a task wins: by what it asks, and what a stopped body keeps.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

CONTENTION = "tasks/run/contention.py"
STOP_REQUEST = "tasks/run/stop_request.py"

STOPPING = (
    fault(
        "a body that was asked to stop gives its lock up before it has ended",
        tested("test_a_run_that_is_replaced_keeps_its_lock_until_it_has_ended"),
        (
            f"{STOP_REQUEST}::StoppingLock.retain",
            "self._retained = self._take_over()",
            "self._retained = None",
        ),
    ),
    fault(
        "a pause takes the lock from a body that was asked to stop",
        tested("test_it_keeps_its_lock_although_the_key_is_paused_meanwhile"),
        (f"{STOP_REQUEST}::StoppingLock._take_over", "is_held=True", "is_held=False"),
    ),
    fault(
        "a free slot of a limit hides that the key is kept",
        tested("test_it_keeps_its_key_beside_the_slot_of_a_limit"),
        (
            f"{STOP_REQUEST}::StoppingLock._own_names",
            "holding_of(self._lease).names_of(self._lock_request.held_keys)",
            "places_of(self._lock_request.held_keys)",
        ),
    ),
    fault(
        "the lock of a body that was asked to stop is given up after one late reply",
        tested("test_it_keeps_its_lock_although_nodes_reply_too_late_for_its_first_try"),
        (
            "tasks/run/lease_lost.py::_handle",
            "start_thread(stopping_lock.keep_trying)",
            "pass",
        ),
    ),
    fault(
        "a request that came to nothing counts as the loss of the keys",
        tested("test_it_keeps_its_lock_although_the_request_came_to_nothing"),
        (
            f"{STOP_REQUEST}::StoppingLock._is_stop_requested",
            "(is_gone or set(owners[len(own) :]) != {owner})",
            "set(owners[len(own) :]) != {owner}",
        ),
    ),
    fault(
        "a call for which newer ones were dropped ends for a newer one",
        tested("test_a_call_that_others_gave_way_to_does_not_end_for_a_newer_one"),
        (
            "tasks/rules/arrival.py::CONTENTION",
            "c.order is Order.NEWER and not c.others_gave_way",
            "c.order is Order.NEWER",
        ),
    ),
    fault(
        "a stop request hides a pause",
        tested("test_a_paused_key_decides_before_the_age_of_calls"),
        (
            "core/failures.py::_obstacle",
            "key.is_record and key.text not in texts",
            "key.is_record",
        ),
    ),
    fault(
        "a stop request is seen as late as the TTL allows",
        tested("test_a_stop_request_is_seen_long_before_a_third_of_the_ttl"),
        (
            "tasks/run/run.py::_watch",
            "math.inf if running_lock.stopping_lock is None else STOP_SEEN_WITHIN",
            "math.inf",
        ),
    ),
    fault(
        "a retry counts as a new call",
        tested("test_a_retry_keeps_the_time_of_its_call"),
        (
            "tasks/publish/publish.py::publish",
            "now if body is None else body.lock_request.age_us / 1_000_000",
            "now",
        ),
    ),
    fault(
        "a requeued message forgets when its call was sent",
        tested("test_a_requeued_call_keeps_its_time"),
        (
            "tasks/message/envelope.py::Envelope.write",
            "if self.sent is not None:",
            "if self.sent is not None and self.wait_history is None:",
        ),
    ),
    fault(
        "a call whose place has expired asks nobody any more",
        tested("test_a_call_whose_place_has_expired_asks_anew"),
        (
            f"{CONTENTION}::_reserve_next_run",
            "if before is not None and before.expires_at > time.time():",
            "if before is not None:",
        ),
    ),
    fault(
        "a call that brought its lock asks nobody",
        tested("test_the_next_one_by_its_publishers_lock_asks_too"),
        (
            f"{CONTENTION}::_reserve_next_run",
            "client.evict(stop_key.stored, case.holder_value)",
            "pass",
        ),
    ),
    fault(
        "the holders of a limit exclude each other by their stop requests",
        tested("test_a_key_that_several_may_have_is_asked_of_none"),
        (
            "tasks/message/node_keys.py::stop_request_keys",
            "stop_request_key(key) for key in keys if not key.is_shared",
            "stop_request_key(key) for key in keys",
        ),
    ),
    fault(
        "the age of a holder is when it took the key",
        tested("test_an_older_call_is_older_although_it_took_the_key_later"),
        (
            "tasks/message/owner_label.py::TaskOwner.age_us",
            "(self.due_us, self.sent_us, self.since)",
            "(self.due_us, self.since)",
        ),
    ),
    fault(
        "a holder whose age is not known is taken for a newer one",
        tested("test_a_tick_waits_for_the_run_of_a_program_that_began_after_it"),
        (
            "tasks/run/arrival_facts.py::_order",
            "theirs > mine and is_known",
            "theirs > mine",
        ),
    ),
    fault(
        "a call that ends as replaced keeps its place",
        tested("test_a_call_that_ends_as_replaced_gives_its_place_up"),
        (
            "tasks/run/arrival_facts.py::raised_by",
            "(Withdrawn, Raised.EXCEPTION),",
            "(Withdrawn, Raised.YIELDED),",
        ),
    ),
    fault(
        "a call that could not be requeued keeps its place",
        tested("test_a_call_that_could_not_be_requeued_gives_its_place_up"),
        (
            "tasks/run/requeue.py::_not_published",
            "if lock_request.place is not None:",
            "if False:",
        ),
    ),
    fault(
        "a call waits for its own place",
        tested("test_a_call_whose_worker_died_before_it_was_requeued_takes_its_place_again"),
        (
            "tasks/rules/arrival.py::Contention.is_next",
            "(Holder.ITSELF, Holder.COPY)",
            "(Holder.COPY,)",
        ),
    ),
    fault(
        "a tick waits for its own place",
        modelled("ticks-stop-lost"),
        (
            "tasks/rules/arrival.py::Contention.is_next",
            "(Holder.ITSELF, Holder.COPY)",
            "(Holder.ITSELF,)",
        ),
    ),
    fault(
        "a call whose policy is a function waits for its own place",
        modelled("calls-while_executing-function"),
        (
            "tasks/rules/arrival.py::Contention.is_next",
            "(ConflictPolicy.STOP, ConflictPolicy.FUNCTION)",
            "(ConflictPolicy.STOP,)",
        ),
    ),
    fault(
        "a call is reported as replaced by itself",
        tested("test_a_call_whose_worker_died_before_it_was_requeued_takes_its_place_again"),
        (f"{CONTENTION}::_reserve_next_run", "(renews or is_its_own)", "renews"),
    ),
    fault(
        "an eager call asks the body that waits for it to stop",
        tested("test_an_eager_call_deep_inside_a_body_does_not_ask_that_body"),
        (
            f"{CONTENTION}::_reserve_next_run",
            "if lock_request.request.is_eager and case",
            "if False and case",
        ),
    ),
    fault(
        "an eager call that waits does not see that a newer one is the next",
        tested("test_an_eager_call_that_waits_ends_once_a_newer_is_the_next"),
        (
            f"{CONTENTION}::_wait_in_place",
            "return _acquire(replace(case, pauses=case.pauses + 1, is_logged=is_logged))",
            "return EFFECTS[Action.WAIT_IN_PLACE](again) if isinstance(again := _acquire("
            "replace(case, pauses=case.pauses + 1, is_logged=is_logged)), Case) else again",
        ),
    ),
)
