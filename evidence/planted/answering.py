"""
Faults in what answers come to: in how votes are told, in the transport, and in the clock.
"""

from __future__ import annotations

from evidence.planted.writing import fault, modelled, simulated, tested

VOTES = (
    fault(
        "one node's word is a conflict",
        modelled("split-two"),
        (
            "protocol/rounds.py::AcquireRound._without_quorum",
            "if self._is_taken():",
            "if self._seen_owners():",
        ),
    ),
    fault(
        "a lease that is taken away while nodes are down is lost only when it ends",
        tested("test_nodes_that_do_not_answer_hide_no_loss_that_a_quorum_shows"),
        (
            "protocol/rounds.py::_HolderRound._count_loss",
            "self._impossible(self._lost) and not may_be_gone",
            "self._impossible(self._lost)",
        ),
    ),
    fault(
        "a split vote is a conflict",
        modelled("split-two"),
        (
            "protocol/rounds.py::AcquireRound._without_quorum",
            "return self._enter(Phase.SPLIT)",
            "return self._enter(Phase.CONTENDED)",
        ),
    ),
    fault(
        "different owners make one conflict",
        modelled("split-three"),
        (
            "protocol/rounds.py::AcquireRound._seen_owners",
            "(holder.key, holder.owner) for vote",
            "holder.key for vote",
        ),
    ),
)

TRANSPORT = (
    fault(
        "deferred releases are sent as far as a socket takes them at once",
        tested("test_more_than_a_socket_takes_at_once_are_sent_to_the_end"),
        (
            "transport/redis/channel.py::RedisChannel._send_deferred_to",
            "self._send_deferred(index, connection)\n"
            "                    # The thread that has connected may have left something, too.\n"
            "                    if connection.has_unsent:",
            "self._send_deferred(index, connection)\nif False:",
        ),
    ),
    fault(
        "a connection that no channel has taken over has nothing left to send",
        tested("test_they_are_not_delivered_while_a_new_connection_may_have_some_left"),
        (
            "transport/redis/connections.py::Connections.has_new",
            "return bool(self._connected)",
            "return False",
        ),
    ),
    fault(
        "what a broken connection has lost is not sent again",
        tested("test_what_ended_before_a_command_is_replaced_for_it"),
        (
            "transport/redis/channel.py::RedisChannel._lose",
            "is_first = index not in self._again",
            "is_first = False",
        ),
    ),
    fault(
        "a release that is sent again is deferred as well",
        tested("test_what_ended_before_a_command_is_replaced_for_it"),
        (
            "transport/redis/channel.py::RedisChannel._lose",
            "keeps=unanswered if is_first else ()",
            "keeps=()",
        ),
    ),
    fault(
        "a release that was to be sent again is lost with its channel",
        tested("test_a_release_that_is_interrupted_before_it_is_sent_again_is_deferred"),
        (
            "transport/redis/channel.py::RedisChannel._give_up",
            "for entry in entries or ():\n            self._defer(index, entry.command)",
            "pass",
        ),
    ),
    fault(
        "a release without a reply is lost with its channel",
        tested("test_a_release_without_a_reply_is_deferred_when_its_channel_ends"),
        (
            "transport/redis/connections.py::Connections._defer_unanswered",
            "entry.command.script is Script.RELEASE and",
            "False and",
        ),
    ),
    fault(
        "a key that a command has got already refuses it",
        tested("test_a_command_that_is_sent_twice_gets_what_it_has"),
        (
            "protocol/lua/acquire.lua",
            "if holder == owner or (holder == ARGV[6] and holder ~= '') then",
            "if holder == ARGV[6] and holder ~= '' then",
        ),
    ),
    fault(
        "a command that is sent twice gets a second slot",
        tested("test_a_command_that_is_sent_twice_gets_what_it_has"),
        (
            "protocol/lua/acquire.lua::choose",
            "holder == owner and not slot",
            "false",
        ),
    ),
    fault(
        "a server that closes what is idle has failed",
        tested("test_a_server_that_closes_what_is_idle_is_no_node_that_fails"),
        (
            "transport/redis/connections.py::Connections.drop",
            "if connection.pending:\n            self._nodes",
            "if True:\n    self._nodes",
        ),
    ),
    fault(
        "a client gives up each look-up of a name that takes longer than a reply",
        tested("test_a_client_gets_its_connections_although_each_look_up_outlasts_a_reply"),
        (
            "transport/redis/connector.py::Connector.connect",
            "self.open(master, awaited=awaited)",
            "self.open(master, awaited=True)",
        ),
    ),
    fault(
        "a client asks for credentials once",
        tested("test_they_are_asked_for_at_each_new_connection"),
        (
            "transport/redis/url_options.py::NamedCredentials.__init__",
            "= _named(name)",
            "= lambda given=_named(name)(): given",
        ),
    ),
    fault(
        "a start waits for credentials as long as they take",
        tested("test_whoever_starts_waits_no_longer_for_them_than_for_a_connection"),
        (
            "transport/redis/connector.py::Connector._connection",
            "if awaited and",
            "if not awaited and",
        ),
    ),
    fault(
        "nodes have less time to reply where the process paused before it had asked them",
        tested("test_nodes_have_their_whole_timeout_although_this_process_paused_while_it_sent"),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "min(asked_at + timeout, now + limit)",
            "now + min(timeout, limit)",
        ),
    ),
    fault(
        "a pause of the process while it sends is taken for the silence of a node",
        tested("test_nodes_have_their_whole_timeout_although_this_process_paused_while_it_sent"),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "entry.asked_at = asked_at",
            "pass",
        ),
    ),
    fault(
        "first connections have less time where the process paused meanwhile",
        tested(
            "test_first_connections_have_their_whole_time_although_this_process_paused_meanwhile"
        ),
        (
            "transport/redis/connections.py::Connections.ensure",
            "begun = clock()",
            "begun = now",
        ),
    ),
    fault(
        "a reply that came during a pause of the process is read in part",
        tested("test_replies_that_came_while_the_process_stood_still_count"),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "(remaining > 0 or has_more)",
            "remaining > 0",
        ),
    ),
    fault(
        "a node that wakes waiters has no time to give a sign of life",
        tested("test_a_node_that_was_only_just_asked_for_a_sign_of_life_has_time_to_answer"),
        (
            "transport/redis/wake_ups.py::_Reader._serve",
            "elif now - asked_at > timeout:",
            "elif now - heard_at > _PING_AFTER + timeout:",
        ),
    ),
    fault(
        "a release that no caller waits for is given up at the first look after a pause",
        tested("test_a_release_paused_while_it_is_sent_gives_nodes_their_whole_timeout"),
        (
            "core/release.py::UnawaitedRelease.__init__",
            "self._give_up_at = math.inf",
            "self._give_up_at = transport.now() + 1.0 + node_timeout",
        ),
    ),
    fault(
        "a release shortens a TTL and waits for no extension under way",
        tested("test_a_release_while_an_extension_is_under_way_leaves_a_minimum_hold_as_it_is"),
        ("core/holding.py::Holding.release_command", "if self.shortens(actions):", "if False:"),
    ),
    fault(
        "an extension follows a release that came while its caller was connecting",
        tested("test_no_extension_follows_a_release_that_came_while_the_call_was_connecting"),
        (
            "core/holding.py::Holding.begin_extension",
            "if not self.is_valid:\n    return False",
            "if False:\n    return False",
        ),
    ),
    fault(
        "a lease that has ended is extended, because somebody watches it",
        tested("test_a_lease_that_has_ended_is_not_extended"),
        (
            "core/holding.py::Holding.begin_extension",
            "if not self.is_valid:\n    return False",
            "if False:\n    return False",
        ),
    ),
    fault(
        "a watch that another one has replaced reports a loss",
        tested("test_a_watch_that_a_callback_has_replaced_reports_no_loss"),
        (
            "core/watchdog.py::Watchdog._report_if_over",
            "if not self._is_live(watch):\n    return True",
            "if False:\n    return True",
        ),
    ),
    fault(
        "a release overtakes an extension on its way to slow nodes",
        tested("test_a_release_does_not_overtake_an_extension_on_its_way_to_slow_nodes"),
        ("core/lease.py::Lease.extend", "math.inf if held.shortens({}) else 0.0", "0.0"),
    ),
    fault(
        "a release in a callback waits for the extension that called it",
        tested("test_a_release_in_a_callback_does_not_wait_for_the_extension_that_called_it"),
        (
            "core/holding.py::Holding.wait_for_extension",
            "self._extending - {threading.get_ident()}",
            "self._extending",
        ),
    ),
    fault(
        "a lease that nobody watches any more is reported as lost",
        tested("test_a_lease_that_nobody_watches_any_more_is_not_reported"),
        (
            "core/watchdog.py::Watchdog._reschedule",
            "if not self._is_live(watch):\n    return\nif not lease",
            "if False:\n    return\nif not lease",
        ),
    ),
    fault(
        "a callback that takes its time delays the next extension of other leases",
        tested("test_a_callback_that_takes_its_time_delays_no_later_extension_of_others"),
        (
            "core/watchdog.py::Watchdog._reschedule",
            "extended_at + watch.period",
            "lease.now() + watch.period",
        ),
    ),
    fault(
        "a call that is refused in the last millisecond of a pause waits until it is woken",
        tested("test_a_key_that_is_taken_in_its_last_millisecond_is_asked_for_again"),
        ("core/attempt.py::Attempt.turn_in", "holder.expires_in + 0.001", "holder.expires_in"),
    ),
    fault(
        "a lease that a call extends to a shorter TTL is extended as seldom as before",
        tested("test_a_lease_is_extended_at_a_third_of_the_ttl_that_a_call_has_given_it"),
        (
            "core/watchdog.py::Watch.period",
            "min(self.lease.ttl / 3, self._seen_within)",
            "min(20.0, self._seen_within)",
        ),
    ),
    fault(
        "a release waits less for an extension where the process paused meanwhile",
        tested("test_a_release_waits_for_an_extension_although_the_process_paused_meanwhile"),
        (
            "core/holding.py::Holding.wait_for_extension",
            "left -= min(now - before, _PAUSE)",
            "left -= now - before",
        ),
    ),
    fault(
        "an extension waits for nodes beyond the end of its lease",
        tested("test_nobody_waits_beyond_the_end_of_a_lease_and_no_node_is_blamed_for_that"),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "min(asked_at + timeout, now + limit)",
            "asked_at + timeout",
        ),
    ),
    fault(
        "a node has failed that had less than its timeout to reply",
        tested("test_nobody_waits_beyond_the_end_of_a_lease_and_no_node_is_blamed_for_that"),
        (
            "transport/redis/channel.py::RedisChannel._time_out",
            "if is_failure:",
            "if True:",
        ),
    ),
    fault(
        "a connection that was idle for long is trusted",
        tested("test_connections_that_died_in_silence_while_idle_are_replaced_before_a_command"),
        (
            "transport/redis/channel.py::RedisChannel.connect",
            "self._check(until - clock())",
            "pass",
        ),
    ),
    fault(
        "a connection that died in silence is replaced once its node is not backing off: never",
        tested("test_connections_that_died_in_silence_between_two_commands_are_replaced"),
        (
            "transport/redis/connections.py::Connections.ensure",
            "if now >= self._replace_at.get(index, now):",
            "if not health[index].is_backing_off(now):",
        ),
    ),
    fault(
        "replies that came while the process stood still are not read",
        tested("test_replies_that_came_while_the_process_stood_still_count"),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "has_more = self._receive_replies(max(0.0, remaining))",
            "has_more = remaining > 0 and self._receive_replies(remaining)",
        ),
    ),
    fault(
        "a leftover reply is taken for the next answer",
        simulated("late", "1-400"),
        (
            "transport/redis/connection.py::NodeConnection.receive",
            "and reply[0] == pending.nonce",
            "",
        ),
        (
            "transport/redis/channel.py::RedisChannel.exchange",
            "self._number += 1",
            "self._number += 1\n"
            "for old in self._by_node:\n"
            "    if old is not None:\n"
            "        old.pending.clear()",
        ),
    ),
    fault(
        "a command that a node did not know undoes a later one of the same waiter",
        tested("test_a_script_said_again_in_full_undoes_nothing_that_came_later"),
        ("transport/redis/channel.py::_may_run_late", "return not sent_since", "return True"),
    ),
    fault(
        "a release that is not awaited overtakes its own acquire",
        tested("test_it_does_not_overtake_its_own_acquire"),
        (
            "core/lease.py::_release_unawaited",
            "holding.after_release(command, sent.channel)",
            "",
        ),
    ),
    fault(
        "a late vote on a release counts for the next lease",
        tested("test_late_votes_count_for_their_own_lease_alone"),
        (
            "transport/redis/channel.py::RedisChannel._handle_reply",
            "self._give(pending.receiver, index, connection, vote)",
            "self._give(pending.receiver, index, connection, vote)\n"
            "for round_ in tuple(self._open_rounds):\n"
            "    self._vote(round_, index, vote, clock())",
        ),
    ),
    fault(
        "the vote of a node that a release had to wait for is lost",
        tested("test_the_votes_of_nodes_that_it_had_to_connect_to_count"),
        (
            "transport/redis/channel.py::RedisChannel.send",
            "self._defer(index, command, receiver)",
            "self._defer(index, command)",
        ),
    ),
    fault(
        "a connection that nobody takes over keeps the votes that came on it",
        tested("test_the_votes_of_nodes_that_it_had_to_connect_to_count"),
        (
            "transport/redis/channel.py::RedisChannel.drain",
            "self._send_deferred_to(self._connections.take_connected())\n"
            "        for index, connection in self._connections.made():",
            "for index, connection in self._connections.made():",
        ),
    ),
    fault(
        "a client that is closed loses the votes on its last release",
        tested("test_closing_the_client_reports_it_first"),
        (
            "transport/redis/transport.py::RedisTransport.close",
            "channel.await_receivers(until)",
            "",
        ),
    ),
    fault(
        "an error in the delivery of deferred releases ends it for good",
        tested("test_a_release_reaches_a_node_that_is_back_after_an_error_in_its_delivery"),
        (
            "transport/redis/transport.py::RedisTransport.deliver_deferred",
            "self._delivers = goes_on",
            "self._delivers = True",
        ),
    ),
    fault(
        "releases whose connections broke behind them are deferred and delivered by nobody",
        tested(
            "test_a_release_whose_connections_broke_behind_it_reaches_the_nodes_"
            "without_a_further_call"
        ),
        (
            "transport/redis/transport.py::RedisTransport.drain",
            "if is_idle:\n            self._report_deferred()",
            "pass",
        ),
    ),
    fault(
        "a finished message leaves no mark",
        simulated("late", "1-60"),
        (
            "core/options.py::checked_options",
            "(*checked_keys(settings.key_prefix, key), *checked_records(records))",
            "checked_keys(settings.key_prefix, key) or checked_records(records)",
        ),
    ),
    fault(
        "the clock stands still in a suspend",
        simulated("suspend", "1-400"),
        ("transport/clock.py::_CLOCK", 'getattr(time, "CLOCK_BOOTTIME", None) or ', ""),
    ),
)
