"""
Faults in what operators release: another owner's lock, or nothing; and in the page: anybody can use
it, or it counts wrongly.
"""

from __future__ import annotations

from evidence.planted.writing import fault, tested

SEEN = tested("test_a_lock_that_has_passed_on_stays")
OF_ONE_TASK = tested("test_a_tasks_queued_locks_are_released_and_no_others")
RIGHTS_END = tested("test_rights_that_end_while_a_release_waits_for_another_release_nothing")
FROM_THE_PAGE = tested("test_a_release_that_does_not_come_from_the_page_is_refused")

RELEASING = (
    fault(
        "the page releases a lock that has passed on to somebody else",
        SEEN,
        (
            "admin/lock_release.py::_is_wanted",
            "return only is None or (entry.node_key, entry.owner) in only",
            "return True",
        ),
    ),
    fault(
        "a key forgets what its rate has counted",
        tested("test_what_a_rate_has_counted_stays_unless_it_is_asked_for"),
        (
            "admin/lock_release.py::release_lock",
            "names or {}, rates=rates)",
            "names or {}, rates=True)",
        ),
    ),
    fault(
        "a task's locks are released in whatever state",
        OF_ONE_TASK,
        ("admin/lock_release.py::release_task", "state not in (None, entry.state)", "False"),
    ),
    fault(
        "a task's release takes foreign locks",
        OF_ONE_TASK,
        (
            "admin/lock_release.py::release_task",
            "if entry.task is None or entry.is_rate",
            "if entry.is_rate",
        ),
    ),
    fault(
        "a task's release forgets what a rate has counted",
        tested("test_with_a_task_what_a_rate_has_counted_stays"),
        (
            "admin/lock_release.py::release_task",
            "entry.task is None or entry.is_rate or",
            "entry.task is None or",
        ),
    ),
    fault(
        "a dry run releases",
        tested("test_a_dry_run_changes_nothing"),
        (
            "admin/lock_release.py::release_task",
            "taken = entry if dry_run else _delete(",
            "taken = _delete(",
        ),
    ),
    fault(
        "a message runs that was revoked with its lock",
        tested("test_a_queued_message_is_revoked_if_that_is_wanted"),
        (
            "admin/lock_release.py::release_lock",
            "and (not revoke or _revoke(client, entry))",
            "",
        ),
    ),
    fault(
        "a call is revoked that only shares a limit with another",
        tested("test_of_several_calls_none_is_chosen_and_all_are_named"),
        ("tasks/by_hand.py::_check_one", "if len(held) < 2:", "if True:"),
    ),
    fault(
        "a revocation frees the key of a message in a pool process",
        tested("test_a_revocation_frees_nothing_of_a_message_in_a_pool_process"),
        (
            "tasks/publish/cleanup.py::_free_if_revoked",
            "request not in worker_state.active_requests",
            "True",
        ),
    ),
    fault(
        "a message that is revoked while it is received keeps its key until its ETA",
        tested("test_a_message_that_is_revoked_while_it_is_received_frees_its_lock"),
        (
            "tasks/publish/cleanup.py::_note",
            "_received.add(request)\n    _free_if_revoked(request)",
            "_received.add(request)",
        ),
    ),
    fault(
        "a lock that the worker has by now is said to be released",
        tested("test_a_lock_that_has_another_owner_by_now_stays"),
        (
            "admin/lock_release.py::_delete",
            "if not any(isinstance(vote, Acknowledged) for vote in replied):",
            "if 0:",
        ),
    ),
    fault(
        "a leftover that was released is said to stay",
        tested("test_a_leftover_is_taken_away"),
        (
            "admin/lock_release.py::_delete",
            "not any(isinstance(vote, Acknowledged)",
            "not all(isinstance(vote, Acknowledged)",
        ),
    ),
    fault(
        "a release that no quorum confirms is said to have happened",
        tested("test_a_release_that_no_quorum_confirms_names_what_became_of_it_on_each_node"),
        ("admin/lock_release.py::_delete", "if len(replied) < nodes.quorum:", "if False:"),
    ),
    fault(
        "a row takes along what else its owner has of the key",
        tested("test_what_else_the_holder_has_of_the_key_stays"),
        (
            "admin/lock_release.py::_is_wanted",
            "or (entry.node_key, entry.owner) in only",
            "or entry.owner in {owner for _, owner in only}",
        ),
    ),
    fault(
        "a release of all slots wakes two",
        tested("test_one_more_is_woken_than_slots_become_free"),
        (
            "admin/lock_release.py::_delete",
            "if not deleted.stays and deleted.slot is not None:",
            "if False:",
        ),
    ),
    fault(
        "a release from a foreign owner wakes nobody",
        tested("test_those_who_wait_for_a_foreign_owner_are_woken"),
        (
            "admin/lock_release.py::_delete",
            "number = max(1, candidate_above(",
            "number = max(0, candidate_above(",
        ),
    ),
    fault(
        "a release for a node that was away waits for the next call",
        tested("test_a_release_reaches_a_node_that_is_back_without_a_further_call"),
        (
            "core/release.py::deliver_later",
            "process_watchdog().settle_later(",
            "(lambda *_: None)(",
        ),
    ),
    fault(
        "nodes have no longer to revoke a message than to grant a lock",
        tested("test_nodes_that_answer_later_than_clients_wait_revoke_a_message"),
        ("core/client.py::Client.patient", "self.settings.node_timeout >= seconds", "True"),
    ),
    fault(
        "connections without a request shut viewers out",
        tested("test_those_that_have_waited_longest_without_a_request_are_closed"),
        (
            "web/server.py::PageConnection.connection_made",
            "if len(self.connections) > self.most:",
            "if False:",
        ),
    ),
    fault(
        "clients without access keep their connections",
        tested("test_a_request_without_access_is_the_last_of_its_connection"),
        (
            "web/access.py::guarded.guard.send_with_headers",
            "answer is not app and",
            "False and",
        ),
    ),
    fault(
        "another site releases through a viewer's browser",
        FROM_THE_PAGE,
        (
            "web/access.py::is_from_page",
            'and request.headers.get("Origin") in [f"{scheme}://{host}" for scheme in schemes]',
            "",
        ),
    ),
    fault(
        "a page without TLS releases on one with TLS",
        FROM_THE_PAGE,
        ("web/access.py::is_from_page", '("https",) if _is_tls(request) else', ""),
    ),
    fault(
        "a release needs nothing that only the page has",
        FROM_THE_PAGE,
        (
            "web/access.py::is_from_page",
            '_is_same(request.headers.get(CSRF_HEADER, ""), csrf)',
            "True",
        ),
    ),
    fault(
        "a browser without the page's cookie releases",
        FROM_THE_PAGE,
        ("web/access.py::is_from_page", "bool(_is_token(csrf))", "True"),
    ),
    fault(
        "a cookie puts markup into the page",
        tested("test_a_cookie_with_markup_is_not_in_the_page"),
        ("web/access.py::csrf_of", "if _is_token(found)", "if found"),
    ),
    fault(
        "a page that is mounted serves other sites",
        tested("test_another_site_reaches_the_page_alone_below_a_root"),
        ("web/access.py::guarded", 'elif path != "/" and', 'elif not root and path != "/" and'),
    ),
    fault(
        "whoever sees a mounted page may release",
        tested("test_the_application_decides_who_releases"),
        (
            "web/access.py::MountedAccess.why_no_release",
            'self._allows("may_release", request)',
            'self._allows("may_view", request)',
        ),
    ),
    fault(
        "what is no decision admits whom it likes",
        tested("test_a_decision_that_is_none_is_named_and_admits_nobody"),
        (
            "web/access.py::MountedAccess._allows",
            "if decision is not None and not isinstance(decision, bool):",
            "if False:",
        ),
        (
            "web/access.py::MountedAccess._allows",
            "return decision is True",
            "return bool(decision)",
        ),
    ),
    fault(
        "the rules of an application get another scope than its own",
        tested("test_the_functions_get_the_scope_that_the_application_has_received"),
        ("web/access.py::_found", "request.scope[HOST_SCOPE]", "dict(request.scope[HOST_SCOPE])"),
    ),
    fault(
        "viewers without access make the process import all tasks",
        tested("test_no_task_is_imported_for_those_who_may_see_nothing"),
        ("web/app.py::mounted", "return guarded(serve,", "page()\nreturn guarded(serve,"),
    ),
    fault(
        "rights count as they were before the body came and others were released",
        RIGHTS_END,
        (
            "web/app.py::_Routes.release",
            "await self._late_refusal(request) or await self._no_release(request)",
            "None",
        ),
    ),
    fault(
        "who may no longer see the page still releases",
        RIGHTS_END,
        (
            "web/app.py::_Routes.release",
            "await self._late_refusal(request) or await self._no_release(request)",
            "await self._no_release(request)",
        ),
    ),
    fault(
        "who may no longer release still does",
        RIGHTS_END,
        (
            "web/app.py::_Routes.release",
            "await self._late_refusal(request) or await self._no_release(request)",
            "await self._late_refusal(request)",
        ),
    ),
    fault(
        "a body may take any time",
        tested("test_a_body_that_takes_too_long_releases_nothing"),
        ("web/app.py::_Routes.release", "asyncio.timeout(_BODY_WITHIN)", "asyncio.timeout(None)"),
    ),
    fault(
        "releases wait for details",
        tested("test_a_release_does_not_wait_for_details"),
        ("web/app.py::_Routes.release", "async with self._releases:", "async with self._details:"),
    ),
    fault(
        "any number of requests waits for details",
        tested("test_more_than_the_most_that_may_wait_for_details_are_refused"),
        ("web/app.py::_Routes.key", "self._asking_for_details > _MOST_WAITING", "False"),
    ),
    fault(
        "the nodes work for viewers who have left",
        tested("test_the_nodes_do_nothing_for_those_who_have_left_while_they_waited"),
        ("web/app.py::_Routes._late_refusal", "await request.is_disconnected()", "False"),
    ),
    fault(
        "viewers that come at once are all let in",
        tested("test_of_viewers_that_come_at_once_no_more_than_the_most_are_let_in"),
        ("web/refresher.py::Refresher.join", "self._viewers.total() >= MOST_VIEWERS", "False"),
    ),
    fault(
        "a viewer that has left keeps its place",
        tested("test_a_viewer_that_leaves_gives_its_place_back"),
        ("web/app.py::_EventStream.__call__", "self._leave()", "pass"),
    ),
    fault(
        "the changes of a filter are lost while its viewer connects again",
        tested("test_looks_go_through_the_filter_of_a_viewer_that_is_about_to_connect_again"),
        ("web/refresher.py::Refresher._filters", "chain(self._viewers, left)", "self._viewers"),
    ),
    fault(
        "a viewer of a mounted page is never asked for access again",
        tested("test_a_viewer_that_is_slower_than_the_looks_has_to_connect_again_too"),
        (
            "web/refresher.py::Refresher.frames",
            "if ends is not None and loop.time() >= ends:",
            "if False:",
        ),
    ),
    fault(
        "a lock that expired is taken to be released",
        tested("test_a_needed_lock_whose_time_is_over_has_expired"),
        ("admin/live_view.py::_differences", "0 <= earlier.expires_in <= elapsed", "False"),
    ),
    fault(
        "a lock that was released is taken to have expired",
        tested("test_a_change_is_what_two_looks_differ_in"),
        ("admin/live_view.py::_differences", "0 <= earlier.expires_in <= elapsed", "True"),
    ),
    fault(
        "a reservation whose message was lost is taken for a lost lock",
        tested("test_a_needed_lock_whose_time_is_over_has_expired"),
        ("admin/live_view.py::_differences", "earlier.state in _NEEDED", "True"),
    ),
    fault(
        "of several looks only the last one's expired locks are counted",
        tested("test_a_point_has_all_locks_that_have_expired"),
        ("web/refresher.py::History._noted", "expired + expired_before", "expired"),
    ),
    fault(
        "the wait of a key is that of the waiter that is last",
        tested("test_a_key_has_the_wait_of_the_waiter_that_is_next"),
        (
            "transport/memory.py::MemorySession.states",
            "min(scores, default=0.0)",
            "max(scores, default=0.0)",
        ),
    ),
    fault(
        "a look that saw a part of the keys is counted",
        tested("test_a_look_that_does_not_see_everything_is_a_gap"),
        ("web/refresher.py::History._noted", 'locks and locks["part"] >= 1.0', "locks"),
    ),
    fault(
        "the page keeps the counts of every filter that was ever typed",
        tested("test_the_filter_that_was_looked_at_least_recently_goes"),
        ("web/refresher.py::History._noted", "len(self._points) > MOST_VIEWERS", "False"),
    ),
    fault(
        "counts older than 15 minutes stay",
        tested("test_what_is_too_old_goes_also_where_no_look_is_complete"),
        ("web/refresher.py::History._noted", "points[0][0] <= now - MOST_POINTS", "False"),
    ),
)
