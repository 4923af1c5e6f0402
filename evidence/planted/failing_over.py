"""
Faults in whose votes count for a node that can fail over.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, tested

FAILING_OVER = (
    fault(
        "a former master's votes count",
        modelled("promotion"),
        (
            "protocol/mastership.py::Master.is_confirmed",
            "return now - self.confirmed_at <= MAX_AGE",
            "return True",
        ),
    ),
    fault(
        "a former master's votes count, and servers vote",
        tested("test_a_former_master_that_nobody_names_any_more_grants_nothing"),
        (
            "protocol/mastership.py::Master.counted",
            "if not self.is_confirmed(now):",
            "if False:",
        ),
    ),
    fault(
        "a former master's late votes count",
        tested("test_a_reply_from_a_former_master_that_comes_late_does_not_count"),
        (
            "protocol/mastership.py::Master.counted",
            "if not self.is_confirmed(now):",
            "if not self.is_confirmed(sent_at):",
        ),
    ),
    fault(
        "a former master that is promoted again votes at once",
        tested("test_it_votes_if_it_knows_of_the_promotion"),
        (
            "protocol/lua/lead.lua",
            "    not_before = now + ARGV[2] * 1000\n",
            "    not_before = not_before or now + ARGV[2] * 1000\n",
        ),
    ),
    fault(
        "nobody begins the quarantine of a former master that is promoted again",
        tested("test_a_former_master_that_is_promoted_again_sits_out_its_quarantine"),
        (
            "transport/redis/masters.py::GroupConnector._admit",
            "master.epoch, self._watch.quarantine_ms",
            "0, self._watch.quarantine_ms",
        ),
    ),
    fault(
        "a master gets the epoch of a failover that has not ended",
        tested("test_a_majority_names_the_master_unless_one_knows_better"),
        (
            "transport/redis/sentinel.py::named_master",
            "for report in vouching if report.address == address)",
            "for report in found if report.address == address)",
        ),
    ),
    fault(
        "a majority of the Sentinels that the URL names is enough",
        tested("test_sentinels_that_the_url_does_not_name_are_missed_with_the_guard_on"),
        (
            "transport/redis/sentinel.py::SentinelGroup.named_by",
            "of_all=self._takeover > 0",
            "of_all=False",
        ),
    ),
    fault(
        "a client that was disconnected watches no master",
        tested("test_a_client_may_be_disconnected_and_used_again"),
        (
            "transport/redis/masters.py::MasterWatch.use",
            "self._used_at = now\nself._closed = False",
            "self._used_at = now",
        ),
    ),
    fault(
        "the thread that watches the masters pauses no more once it was woken",
        tested("test_a_pause_lasts_whatever_wakes_the_thread"),
        (
            "_greenlets/polling.py::WakeupPipe.wait",
            "self.drain()",
            "pass",
        ),
    ),
    fault(
        "a pause between readings lasts after a suspension",
        tested("test_a_suspension_ends_a_pause"),
        (
            "transport/redis/masters.py::MasterWatch.use",
            "self._pipe.wake()",
            "pass",
        ),
    ),
    fault(
        "a Sentinel that is looked up holds up the others",
        tested("test_masters_are_named_while_a_sentinel_is_looked_up"),
        (
            "transport/redis/sentinel.py::_Sentinel.begin",
            'start_native_thread(self._connect, "redlock-sentinel")',
            "self._connect()",
        ),
    ),
    fault(
        "a connection to a Sentinel outlives the watch",
        tested("test_a_connection_that_is_made_after_the_end_of_a_watch_is_closed"),
        (
            "transport/redis/sentinel.py::_Sentinel._connect",
            "if connection is not None and not self._closed:",
            "if connection is not None:",
        ),
    ),
    fault(
        "the Sentinels are read until all have replied",
        tested("test_masters_are_confirmed_although_a_sentinel_never_ends_its_reply"),
        (
            "transport/redis/sentinel.py::Sentinels.rounds",
            "clock.now() >= until or self.are_done",
            "self.are_done",
        ),
    ),
    fault(
        "a reply of a Sentinel that comes late confirms a master",
        tested("test_a_late_reply_confirms_no_master"),
        (
            "transport/redis/sentinel.py::_Sentinel.give_up",
            "if self.is_awaited:\n    self._fail(",
            "if False:\n    self._fail(",
        ),
    ),
    fault(
        "two Sentinels name a master before the third has replied",
        tested("test_nobody_is_named_while_a_sentinel_that_replies_last_knows_of_a_promotion"),
        (
            "transport/redis/sentinel.py::Sentinels.rounds",
            "if is_whole or all(one.is_done for one in connected):",
            "if True:",
        ),
    ),
    fault(
        "a forked child uses its parent's connections to Sentinels",
        tested("test_a_forked_child_closes_its_copies_of_the_connections_and_no_more"),
        (
            "transport/redis/masters.py::MasterWatch.reset_after_fork",
            "self._sentinels.reset_after_fork()",
            "pass",
        ),
    ),
    fault(
        "a watch that is used while its thread ends does not begin again",
        tested("test_a_watch_that_is_used_while_its_thread_ends_begins_again"),
        (
            "transport/redis/masters.py::MasterWatch.use",
            "with self._lock:\n    self._used_at = now",
            "with native_lock():\n    self._used_at = now",
        ),
    ),
    fault(
        "two threads watch the masters after a start that was interrupted",
        tested("test_one_thread_watches_although_the_start_of_another_was_interrupted"),
        (
            "transport/redis/masters.py::MasterWatch._is_watching",
            "if is_used and self._pipe is pipe:",
            "if is_used:",
        ),
    ),
    fault(
        "a reading is as old as its last reply",
        tested("test_a_reading_is_as_old_as_its_first_question"),
        (
            "transport/redis/masters.py::MasterWatch._read",
            "self._read_at = asked_at",
            "self._read_at = clock.now()",
        ),
    ),
    fault(
        "a call waits for one reading, whether its connections are made or not",
        tested("test_a_call_waits_for_connections_that_take_longer_than_a_reading"),
        (
            "transport/redis/masters.py::MasterWatch._read",
            "if are_named or (is_whole and sentinels.are_done):",
            "if are_named or is_whole:",
        ),
    ),
    fault(
        "a watch that ended by an error never begins again",
        tested("test_a_watch_that_ended_by_an_error_begins_again"),
        (
            "transport/redis/masters.py::MasterWatch._end",
            "if self._pipe is pipe:",
            "if False:",
        ),
    ),
    fault(
        "a promoted server's votes on held locks count at once",
        modelled("promotion"),
        (
            "protocol/mastership.py::Master.counted",
            "and sent_at - self._seen_at < self._takeover",
            "and False",
        ),
    ),
    fault(
        "a promoted server's votes on held locks count at once, and servers vote",
        tested("test_nobody_extends_at_a_new_master_what_expires_at_the_former_one"),
        (
            "protocol/mastership.py::Master.counted",
            "and sent_at - self._seen_at < self._takeover",
            "and False",
        ),
    ),
    fault(
        "a vote in quarantine ends the time after a promotion",
        tested("test_neither_a_quarantine_nor_a_failure_shows_that_it_has_ended"),
        (
            "protocol/mastership.py::Master.counted",
            "self.has_voted |= type(vote) in (Granted, Refused)",
            "self.has_voted = True",
        ),
    ),
    fault(
        "a promoted server is not quarantined for the time of a takeover",
        modelled("promotion"),
        (
            "protocol/node_model.py::ModelNode._acquire",
            "quarantined = self._quarantined(call.quarantine_ms, now_us)",
            "quarantined = self._quarantined(call.quarantine_ms // 2, now_us)",
        ),
    ),
    fault(
        "a vote of a node that can fail over counts whoever sent it",
        tested("test_a_former_master_that_nobody_names_any_more_grants_nothing"),
        (
            "transport/redis/channel.py::RedisChannel._handle_reply",
            "if connection.master is not None:",
            "if False:",
        ),
    ),
)
