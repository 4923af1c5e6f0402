"""
Faults in who waits for a key, who is woken, and who goes first.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

ENDED = tested("test_a_message_that_ends_without_its_lock_waits_no_more")

WAITING = (
    fault(
        "a message that waits hides another one with its id",
        tested("test_a_message_of_a_free_key_starts_although_another_one_has_its_id"),
        (
            "tasks/waiting_messages.py::WaitingMessages.add",
            "if first is not None and first.until <= now:",
            "if first is not None:",
        ),
    ),
    fault(
        "who is refused is not remembered",
        modelled("waits-one"),
        ("protocol/node_model.py::ModelNode._acquire", "for key in refused:", "for key in ():"),
    ),
    fault(
        "a release wakes nobody",
        modelled("waits-one"),
        (
            "protocol/node_model.py::ModelNode._release",
            "self._wake(lock_of(key), max(1, slots) if is_slot else 0, now_us)",
            "pass",
        ),
    ),
    fault(
        "one that waits takes a free key past one that has waited longer",
        modelled("waits-in-order-expired"),
        (
            "protocol/wait_queue.py::WaitQueue.goes_before",
            "self.scores[other] >= waiter.score",
            "self.scores[other] <= waiter.score",
        ),
    ),
    fault(
        "a release wakes by time alone, whatever the priorities are",
        modelled("way-ranks"),
        (
            "protocol/commands.py::Waiter.score",
            "self.since_ms + self.rank * RANK_MS",
            "self.since_ms",
        ),
    ),
    fault(
        "a release wakes the least urgent first",
        modelled("way-ranks"),
        (
            "protocol/wait_queue.py::WaitQueue.wake",
            "self.first(wanted + LOOKED_AT + 1)",
            "self.first(wanted + LOOKED_AT + 1)[::-1]",
        ),
    ),
    fault(
        "a message that is entered again loses its priority",
        modelled("way-ranks"),
        (
            "protocol/commands.py::enqueue",
            "(waiter.name, waiter.score)",
            "(waiter.name, waiter.since_ms)",
        ),
    ),
    fault(
        "in order, an older message goes before a more urgent one",
        modelled("way-ranks-in-order"),
        (
            "protocol/commands.py::acquire",
            "waiter.name, waiter.score, waiter.keep_ms",
            "waiter.name, waiter.since_ms, waiter.keep_ms",
        ),
    ),
    fault(
        "a worker starts the oldest message of a free key, not the most urgent",
        tested("test_of_a_free_key_the_message_with_the_most_urgent_priority_starts"),
        (
            "tasks/waiting_messages.py::WaitingMessages._first",
            "held.waiter.score",
            "held.waiter.since_ms",
        ),
    ),
    fault(
        "a worker enters what it keeps in its wait queues without its priority",
        tested("test_a_message_enters_its_wait_queue_again_with_its_priority"),
        (
            "tasks/message/envelope.py::Envelope.waiter",
            "keep_ms, rank=rank)",
            "keep_ms)",
        ),
    ),
    fault(
        "a message that may start waits in a busy worker",
        tested("test_it_is_the_same_message"),
        ("tasks/busy_worker.py::BusyWorker.returns", "not self.is_busy", "self.is_busy"),
    ),
    fault(
        "a message whose ETA comes waits in a busy worker",
        tested("test_a_busy_worker_does_not_wait_for_the_eta_of_a_message"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "if self._busy_worker.is_busy:",
            "if not self._busy_worker.is_busy:",
        ),
    ),
    fault(
        "busy workers return a message without end",
        tested("test_busy_workers_return_it_a_few_times_and_then_it_is_as_any_other"),
        (
            "tasks/busy_worker.py::BusyWorker.returns",
            "returns=envelope.returns + 1",
            "returns=1",
        ),
    ),
    fault(
        "a message that has returned waits for its ETA beside a process that is free",
        tested("test_a_message_that_has_returned_starts_at_once"),
        (
            "tasks/waiting_messages.py::WaitingMessages.add",
            "if envelope.returns:",
            "if not envelope.returns:",
        ),
    ),
    fault(
        "a message is acknowledged before it is sent to its queue again",
        tested("test_it_is_sent_before_it_is_acknowledged"),
        (
            "tasks/busy_worker.py::BusyWorker._send",
            "send_again(",
            "request.acknowledge() or send_again(",
        ),
    ),
    fault(
        "a message that was delivered again returns to its queue as one that was not",
        tested("test_it_stays_where_another_worker_would_gain_nothing"),
        (
            "tasks/busy_worker.py::_may_return",
            "is_first and ",
            "",
        ),
    ),
    fault(
        "a message that expires returns to its queue, where RabbitMQ drops it",
        tested("test_it_stays_where_another_worker_would_gain_nothing"),
        ("tasks/busy_worker.py::_may_return", "request.expires is None and ", ""),
    ),
    fault(
        "two greenlets use one connection to the broker",
        tested("test_messages_that_return_at_the_same_time_share_none"),
        (
            "tasks/busy_worker.py::BusyWorker._borrowed",
            "connection = self._consumer.app.connection_for_write()",
            "connection = self._connection = self._consumer.app.connection_for_write()",
        ),
    ),
    fault(
        "a message returns to a long queue, behind all others",
        tested("test_it_stays_where_another_worker_would_gain_nothing"),
        (
            "tasks/busy_worker.py::BusyWorker._send",
            "_length(connection, queue) > self._ahead",
            "False",
        ),
    ),
    fault(
        "a message keeps its process beside a body that has proved to be long",
        tested("test_a_call_that_listens_ends_soon_once_waiting_cannot_help"),
        (
            "core/waiting.py::_Call._until",
            "min(longest, max(_FIRST_PAUSE, now - self._begun))",
            "longest",
        ),
    ),
    fault(
        "nodes are asked to forget a waiter that none of them remembers",
        tested("test_each_node_gets_two_commands_of_a_run_that_need_not_wait"),
        (
            "protocol/commands.py::Waiter.may_be_remembered",
            "self.has_waited or self.keep_ms > 0",
            "True",
        ),
    ),
    fault(
        "a message waits for the keys of one holder alone",
        tested("test_all_keys_that_a_quorum_refuses_are_waited_for"),
        (
            "core/failures.py::refusal_of",
            "expires_in, split, keys, refused, before",
            "expires_in, split, keys, keys, before",
        ),
    ),
    fault(
        "the holder of a slot hides that of an ordinary key",
        tested("test_of_an_ordinary_key_and_one_with_a_limit_the_ordinary_one_is_named"),
        ("core/failures.py::_obstacle", "or round_.holder(ordinary) ", ""),
    ),
    fault(
        "a message that ends without its lock is woken in the place of others",
        ENDED,
        (
            "tasks/run/running_lock.py::RunningLock._clear_unrun",
            "lock_request.client.forget_waiter(keys, lock_request.waiter(is_registered=False))",
            "pass",
        ),
    ),
    fault(
        "a message that was replaced is woken in the place of others",
        ENDED,
        (
            "tasks/run/arrival_facts.py::raised_by",
            "(Withdrawn, Raised.EXCEPTION),",
            "(Withdrawn, Raised.YIELDED),",
        ),
    ),
    fault(
        "a message that ends still waits to ask a holder to stop",
        ENDED,
        (
            "tasks/run/running_lock.py::RunningLock._clear_unrun",
            "*lock_request.records)",
            ")",
        ),
    ),
    fault(
        "a message that ends still waits for the end of a pause",
        ENDED,
        (
            "protocol/commands.py::forget_waiter",
            "(*stored, *filter(None, map(pause_of, stored)))",
            "stored",
        ),
    ),
    fault(
        "a message that expires while it waits is woken in the place of others",
        tested("test_a_message_that_is_revoked_or_expires_while_it_waits_is_forgotten"),
        (
            "tasks/publish/cleanup.py::_cancel_all",
            "forget_waiter(app, _header(request), request)",
            "pass",
        ),
    ),
    fault(
        "a message that is revoked is woken in the place of others until its ETA",
        tested("test_a_worker_that_is_told_of_a_revocation_has_nodes_forget_who_waits"),
        (
            "tasks/publish/cleanup.py::_free_if_revoked",
            "forget_waiter(request.app, _header(request.request_dict), request)",
            "pass",
        ),
    ),
    fault(
        "a worker enters a message that was revoked in its wait queues again",
        tested("test_a_message_that_was_revoked_does_not_enter_its_wait_queue_again"),
        (
            "tasks/waiting_messages.py::_is_asleep",
            " and not is_revoked(held.request)",
            "",
        ),
    ),
    fault(
        "a call that was cancelled or interrupted is woken in the place of others",
        tested("test_nodes_forget_a_call_that_ends_while_it_waits"),
        (
            "core/waiting.py::_Call.steps",
            "waiter is None and not self._attempt.is_granted",
            "False",
        ),
    ),
    fault(
        "a call whose client was closed is woken in the place of others",
        tested("test_nodes_forget_a_call_that_ends_while_it_waits"),
        ("core/waiting.py::_Call._wait", "self._listener.on_close = self._forget", "pass"),
    ),
    fault(
        "a call whose time ends during an attempt is woken in the place of others",
        tested("test_nodes_forget_a_call_whose_time_ends_during_an_attempt"),
        (
            "core/waiting.py::_Call.steps",
            "waiter is None and not self._attempt.is_granted",
            "waiter is None and self._left() > 0",
        ),
    ),
    fault(
        "a coroutine that is cancelled while nodes are asked is woken in the place of others",
        tested("test_nodes_forget_a_coroutine_that_is_cancelled_while_they_are_asked_again"),
        (
            "core/aio.py::AsyncRedlock._attempt",
            "elif params.waiter is not None:",
            "elif False:",
        ),
    ),
    fault(
        "calls in an event loop wait on when their client is closed",
        tested("test_a_call_that_waits_ends_when_its_client_is_closed"),
        (
            "core/waiting.py::in_event_loop",
            "check_open()\n            if isinstance(step, AcquireParams):\n"
            "                reply = await",
            "if isinstance(step, AcquireParams):\n    reply = await",
        ),
    ),
    fault(
        "a closed client listens to its nodes again",
        tested("test_a_call_whose_client_is_closed_does_not_begin_to_listen"),
        (
            "core/waiting.py::in_event_loop",
            "check_open()\n            if isinstance(step, AcquireParams):\n"
            "                reply = await",
            "if isinstance(step, AcquireParams):\n    check_open()\n    reply = await",
        ),
    ),
    fault(
        "calls of a client that is being closed ask the nodes in new threads",
        tested("test_no_call_begins_an_attempt_while_closing_waits_for_another_one"),
        ("core/aio.py::AsyncRedlock.aclose", "self._client.closed = True", "pass"),
    ),
    fault(
        "an event loop waits for nodes while its client is being closed",
        tested(
            "test_the_loop_does_not_wait_for_the_release_of_a_lock_that_is_granted_while_closing"
        ),
        ("core/aio.py::AsyncRedlock._attempt.ask", "if client.closed:", "if False:"),
    ),
    fault(
        "a node forgets a message that began to wait after the one that has ended",
        tested("test_one_of_the_same_name_that_waits_since_later_is_not_forgotten"),
        (
            "protocol/lua/release.lua::may_forget",
            "tonumber(score) == tonumber(ARGV[6])",
            "true",
        ),
    ),
    fault(
        "a process names its message to the nodes without its priority",
        tested("test_a_message_waits_by_its_priority"),
        (
            "tasks/run/lock_request.py::LockRequest.waiter",
            "rank=rank_of(self.task.app, self.request.delivery_info)",
            "rank=0",
        ),
    ),
    fault(
        "with Sentinel the largest priority is the most urgent",
        tested("test_with_redis_the_smallest_priority_is_first"),
        (
            "tasks/message/envelope.py::_sign_of",
            "driver = app.connection_for_read().get_transport_cls().driver_type",
            "driver = app.connection_for_read().transport_cls",
        ),
    ),
    fault(
        "with RabbitMQ the smallest priority is the most urgent",
        tested("test_with_all_others_the_largest_priority_is_first"),
        ("tasks/message/envelope.py::_sign_of", "else -1", "else 1"),
    ),
    fault(
        "a message that waits for an hour goes before a more urgent one",
        tested("test_no_wait_of_six_weeks_makes_up_for_a_rank"),
        ("protocol/commands.py", "= 2**32, 255", "= 3_600_000, 255"),
    ),
    fault(
        "a waiter with a priority is shown to wait since another year",
        tested("test_a_waiter_is_shown_with_its_priority_and_since_when_it_waits"),
        ("protocol/commands.py::since_and_rank", "score - rank * RANK_MS, rank", "score, rank"),
    ),
    fault(
        "one that waits takes a free key past one that was woken",
        tested("test_the_second_in_line_lets_the_first_go_first"),
        (
            "protocol/lua/acquire.lua::goes_first",
            "elseif name ~= waiter and (at or (in_order and wake_one(key, name, now))) then",
            "elseif not at and in_order then",
        ),
    ),
    fault(
        "a first attempt overtakes one that was just woken",
        tested("test_a_first_attempt_does_not_overtake_one_that_was_just_woken"),
        (
            "protocol/lua/acquire.lua::is_promised",
            "return latest and now - tonumber(latest) <= START",
            "return nil",
        ),
    ),
    fault(
        "one that was woken keeps a free key from others for ever",
        tested("test_one_that_was_woken_has_a_start_for_a_moment_only"),
        ("protocol/lua/acquire.lua::is_promised", "now - tonumber(latest) <= START", "true"),
        ("protocol/lua/acquire.lua::goes_first", "at and now - at > grace", "at and now < at"),
    ),
    fault(
        "one that is refused again is not woken again",
        modelled("way-three"),
        (
            "protocol/wait_queue.py::WaitQueue.enter",
            "self.woken.pop(waiter.name, None)\n        for",
            "for",
        ),
    ),
    fault(
        "a wake-up that cannot be noted keeps the key from others",
        tested("test_where_a_wake_up_cannot_be_noted_no_waiter_goes_first"),
        (
            "protocol/lua/wait_queue.lua::wake_one",
            "return woken_at(key, name) ~= nil",
            "return true",
        ),
    ),
    fault(
        "a release wakes its own holder",
        tested(
            "test_a_waiter_that_is_entered_again_while_it_acquires_is_not_woken_by_its_own_release"
        ),
        (
            "core/holding.py::Holding.release_command",
            "keep, actions, self._waiter)",
            "keep, actions)",
        ),
    ),
    fault(
        "a retry with the header of the run before it is woken before its ETA",
        tested("test_a_retry_with_the_header_of_the_run_before_it_is_not_woken"),
        (
            "tasks/waiting_messages.py::WakeStep._received",
            "history is not None and history.retries == retries",
            "history is not None",
        ),
    ),
    fault(
        "a requeued message gets the serializer of its task",
        tested("test_a_requeued_message_keeps_its_serializer_and_its_compression"),
        (
            "tasks/message/envelope.py::send_again",
            '"serializer": registry.type_to_name.get('
            '(request.properties or {}).get("content_type")),',
            "",
        ),
    ),
    fault(
        "the pool process does not learn how a message was encoded",
        tested("test_the_request_of_a_message_names_its_content_type_to_the_pool_process"),
        (
            "tasks/publish/cleanup.py::_note",
            'request.request_dict["properties"] = encoded',
            "pass",
        ),
    ),
    fault(
        "a message that cannot be encoded again circles without delay",
        tested("test_a_message_that_cannot_be_encoded_again_fails_and_does_not_circle"),
        (
            "tasks/run/requeue.py::_not_published",
            "if task.acks_late and not isinstance(failure, EncodeError):",
            "if task.acks_late:",
        ),
    ),
    fault(
        "messages start in a circle while nodes answer and take no lock",
        tested("test_messages_that_wait_for_a_quorum_do_not_start_while_nodes_take_no_lock"),
        (
            "tasks/waiting_messages.py::WaitingMessages._free",
            "if sum(isinstance(vote, Granted | Refused) for vote in polled.votes)"
            " >= polled.needed:",
            "if True:",
        ),
    ),
    fault(
        "a worker looks at no key again while new ones come",
        tested("test_of_many_keys_it_looks_at_some_in_turn"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "dict.fromkeys([*earlier, *self._by_keys])",
            "self._by_keys",
        ),
    ),
    fault(
        "a message that is revoked waits until its ETA",
        tested("test_a_message_that_is_revoked_starts_to_end"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "if is_revoked(held.request)",
            "if False",
        ),
    ),
    fault(
        "a message tries by itself only at its ETA",
        tested("test_a_message_tries_although_its_key_does_not_look_free"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "due += longest[:TRIES_AT_ONCE]",
            "",
        ),
    ),
    fault(
        "messages of a paused key try before its pause ends",
        tested("test_a_message_tries_although_its_key_does_not_look_free"),
        (
            "tasks/waiting_messages.py::Held.tries",
            "not any(key.startswith(PAUSE_PREFIX) for key in self.keys)",
            "True",
        ),
    ),
    fault(
        "all that a worker keeps tries at once",
        tested("test_few_of_many_messages_try_at_once_and_all_in_turn"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "longest[:TRIES_AT_ONCE]",
            "longest",
        ),
    ),
    fault(
        "keys that cannot be read hide others",
        tested("test_keys_that_cannot_be_read_hide_no_others"),
        (
            "tasks/waiting_messages.py::_batches",
            "size >= INSPECTED_AT_ONCE",
            "size < 0",
        ),
    ),
    fault(
        "a worker that keeps messages of many keys looks at some of them after minutes",
        tested("test_it_looks_at_all_keys_within_half_a_minute"),
        (
            "tasks/waiting_messages.py::WaitingMessages._look_at_next",
            "max(LOOKS_AT_ONCE, math.ceil(len(in_turn) * LOOKS_EVERY / LOOKS_WITHIN))",
            "LOOKS_AT_ONCE",
        ),
    ),
    fault(
        "a worker keeps a message for longer than the broker waits for it",
        tested("test_the_delay_stays_below_half_the_visibility_timeout"),
        (
            "tasks/run/requeue.py::_longest_delay",
            "min(LONGEST_KEPT, visible, expires_in)",
            "min(LONGEST_KEPT, expires_in)",
        ),
    ),
    fault(
        "a worker keeps a message that has expired",
        tested("test_a_message_that_expires_comes_back_soon_after"),
        (
            "tasks/run/requeue.py::_longest_delay",
            "min(LONGEST_KEPT, visible, expires_in)",
            "min(LONGEST_KEPT, visible)",
        ),
    ),
    fault(
        "the script remembers nobody",
        tested("test_a_node_remembers_whom_it_refuses"),
        ("protocol/lua/wait_queue.lua::remember", "redis.pcall('ZADD', queue, since, name)", ""),
    ),
    fault(
        "one that is refused again counts as on its way",
        tested("test_who_is_refused_again_is_woken_again"),
        (
            "protocol/lua/wait_queue.lua::remember",
            "redis.pcall('ZADD', queue, since, name)\n  redis.pcall('ZREM', woken_of(key), name)",
            "redis.pcall('ZADD', queue, since, name)",
        ),
    ),
    fault(
        "nodes that granted an attempt which is undone forget that it waits",
        tested("test_a_waiter_whose_attempt_is_undone_waits_on_the_nodes_that_granted_it"),
        (
            "core/attempt.py::_UnderWay._wait_where_granted",
            "self.channel.send(enqueue(waiters), round_.nodes_without(Refused))",
            "pass",
        ),
    ),
    fault(
        "the script remembers who has the key",
        tested("test_who_is_granted_the_key_is_not_woken_for_it"),
        ("protocol/lua/acquire.lua", "for i = 1, waiter and count or 0 do", "for i = 1, 0 do"),
    ),
    fault(
        "an attempt that is undone wakes others",
        tested("test_an_attempt_that_is_undone_wakes_nobody"),
        (
            "protocol/lua/release.lua",
            "if token > 0 and not stays then wake",
            "if not stays then wake",
        ),
    ),
    fault(
        "one that does not come is woken for ever",
        tested("test_who_does_not_return_is_woken_once_more_and_removed"),
        ("protocol/lua/wait_queue.lua::wake", "forget(key, waiters[i])", ""),
    ),
    fault(
        "those that are gone keep the others asleep",
        tested("test_for_each_that_does_not_come_two_others_are_woken"),
        (
            "protocol/lua/wait_queue.lua::wake",
            "publish(key, waiters[i])",
            "publish(key, waiters[i])\nwanted = wanted - 1",
        ),
    ),
    fault(
        "a release wakes no more than usual where some did not come",
        tested("test_for_each_that_does_not_come_two_others_are_woken"),
        (
            "protocol/lua/wait_queue.lua::wake",
            "if more > 0 then wanted, more = wanted + 2, more - 2 end",
            "",
        ),
    ),
    fault(
        "a release wakes two more for each that did not come, without end",
        tested("test_of_a_crowd_that_does_not_come_each_release_passes_more"),
        ("protocol/lua/wait_queue.lua::wake", "more - 2", "more"),
    ),
    fault(
        "a crowd of those that are gone goes first, one after the other",
        tested("test_a_crowd_of_those_that_are_gone_is_passed_soon"),
        ("protocol/lua/acquire.lua::goes_first", "more = more + 2", "more = more"),
    ),
    fault(
        "one that lacks another key goes first",
        tested("test_one_that_lacks_another_key_holds_nobody_up"),
        (
            "protocol/lua/acquire.lua",
            "if waiter and forget(key, waiter) and taken[i][4] then",
            "if false then",
        ),
    ),
    fault(
        "one that lacks another key uses a wake-up up",
        tested("test_a_waiter_that_lacks_another_key_wakes_the_next_in_its_place"),
        (
            "protocol/lua/acquire.lua",
            "if waiter and forget(key, waiter) and taken[i][4] then wake(key, taken[i][4]) end",
            "if waiter then forget(key, waiter) end",
        ),
    ),
    fault(
        "wait queues grow without bound",
        tested("test_of_too_many_those_are_remembered_that_have_waited_longest"),
        (
            "protocol/lua/wait_queue.lua::remember",
            "redis.pcall('ZREMRANGEBYRANK', queue, 1000, -1)",
            "",
        ),
    ),
    fault(
        "a wait queue that was overwritten spoils the acquire",
        tested("test_a_wait_queue_that_was_overwritten_keeps_nobody_from_the_lock"),
        (
            "protocol/lua/wait_queue.lua::remember",
            "redis.pcall('ZADD', queue",
            "redis.call('ZADD', queue",
        ),
    ),
    fault(
        "a message that Celery has started is started again",
        tested("test_a_message_whose_eta_has_come_is_not_started_again"),
        (
            "tasks/waiting_messages.py::WaitingMessages._start",
            "if entry is None or now > held.until - AT_ETA:",
            "if entry is None:",
        ),
    ),
    fault(
        "a message that only waits puts off another one with its id",
        tested("test_a_message_of_a_free_key_starts_although_another_one_has_its_id"),
        (
            "tasks/waiting_messages.py::Held.earlier_is_under_way",
            "any(earlier in requests for requests in under_way)",
            "under_way is not None",
        ),
    ),
    fault(
        "a message that is started keeps its timer",
        tested("test_a_message_starts_once"),
        ("tasks/waiting_messages.py::WaitingMessages._start", "entry.cancel()", ""),
    ),
    fault(
        "a message starts while its last run ends",
        tested("test_a_message_does_not_start_before_its_last_run_has_ended"),
        (
            "tasks/waiting_messages.py::WaitingMessages._start",
            "else held.starts_from - now",
            "else 0.0",
        ),
    ),
    fault(
        "a message that arrives is not put back into its wait queue",
        tested("test_a_message_that_arrives_is_put_back_into_its_wait_queue"),
        (
            "tasks/waiting_messages.py::WaitingMessages._free",
            "client.inspect(places, waiters=waiters)",
            "client.inspect(places)",
        ),
    ),
    fault(
        "a worker wakes messages that have begun in the place of others",
        tested("test_a_message_that_has_begun_is_not_looked_at"),
        (
            "tasks/waiting_messages.py::_is_asleep",
            "held.until > time.monotonic() + AT_ETA and",
            "",
        ),
    ),
    fault(
        "nobody looks whether one that was woken has come",
        tested("test_after_a_wake_up_a_worker_looks_whether_anybody_has_come"),
        (
            "tasks/waiting_messages.py::WaitingMessages.on_wake",
            "self._soon(self._look_later, channel)",
            "pass",
        ),
    ),
    fault(
        "a worker that is closed starts a message",
        tested("test_a_message_that_a_closed_worker_has_kept_for_a_moment_is_not_started"),
        (
            "tasks/waiting_messages.py::WaitingMessages._start",
            "if self._closed or held not in self._held:",
            "if held not in self._held:",
        ),
    ),
    fault(
        "every message of a key that is free is started",
        tested("test_of_a_free_key_only_the_oldest_message_starts"),
        (
            "tasks/waiting_messages.py::WaitingMessages._first",
            "key=lambda held: held.waiter.score",
            "key=lambda held: -held.waiter.score",
        ),
    ),
)
