"""
Faults in what operators release: another owner's lock, or nothing, and a page that anybody can use.
"""

from __future__ import annotations

from tests.mutants.writing import judged, mutant, operated

RELEASE = "admin/lock_release.py"
ACCESS = "web/access.py"

SEEN = operated("web/test_release.py", "test_a_lock_that_has_passed_on_stays")
OF_ONE_TASK = operated(
    "admin/test_lock_release.py", "test_a_tasks_queued_locks_are_released_and_no_others"
)
FROM_THE_PAGE = operated(
    "web/test_release.py", "test_a_release_that_does_not_come_from_the_page_is_refused"
)

RELEASING = (
    mutant(
        "the page releases a lock that has passed on to somebody else",
        SEEN,
        (RELEASE, "return only is None or (entry.node_key, entry.owner) in only", "return True"),
    ),
    mutant(
        "a key forgets what its rate has counted",
        operated(
            "admin/test_lock_release.py",
            "test_what_a_rate_has_counted_stays_unless_it_is_asked_for",
        ),
        (RELEASE, "names or {}, rates=rates)", "names or {}, rates=True)"),
    ),
    mutant(
        "a task's locks are released in whatever state",
        OF_ONE_TASK,
        (RELEASE, "state not in (None, entry.state)", "False"),
    ),
    mutant(
        "a task's release takes foreign locks",
        OF_ONE_TASK,
        (RELEASE, "if entry.task is None or entry.is_rate", "if entry.is_rate"),
    ),
    mutant(
        "a task's release forgets what a rate has counted",
        operated("admin/test_lock_release.py", "test_with_a_task_what_a_rate_has_counted_stays"),
        (RELEASE, "entry.task is None or entry.is_rate or", "entry.task is None or"),
    ),
    mutant(
        "a dry run releases",
        operated("admin/test_lock_release.py", "test_a_dry_run_changes_nothing"),
        (RELEASE, "taken = entry if dry_run else _delete(", "taken = _delete("),
    ),
    mutant(
        "a message runs that was revoked with its lock",
        operated("web/test_release.py", "test_a_queued_message_is_revoked_if_that_is_wanted"),
        (RELEASE, " and (not revoke or _revoke(redlock, entry))", ""),
    ),
    mutant(
        "a call is revoked that only shares a limit with another",
        judged("limits/test_usage.py", "test_of_several_calls_none_is_chosen_and_all_are_named"),
        ("tasks/forced_release.py", "if len(held) < 2:", "if True:"),
    ),
    mutant(
        "a revocation frees the key of a message in a pool process",
        judged(
            "publish/test_cleanup.py",
            "test_a_revocation_frees_nothing_of_a_message_in_a_pool_process",
        ),
        ("tasks/publish/cleanup.py", "if request not in worker_state.active_requests:", "if True:"),
    ),
    mutant(
        "a lock that the worker has by now is said to be released",
        operated("admin/test_lock_release.py", "test_a_lock_that_has_another_owner_by_now_stays"),
        (RELEASE, "if not any(isinstance(vote, Acknowledged) for vote in replied):", "if 0:"),
    ),
    mutant(
        "a leftover that was released is said to stay",
        operated("admin/test_lock_release.py", "test_a_leftover_is_taken_away"),
        (
            RELEASE,
            "not any(isinstance(vote, Acknowledged)",
            "not all(isinstance(vote, Acknowledged)",
        ),
    ),
    mutant(
        "a release that no quorum confirms is said to have happened",
        operated(
            "admin/test_lock_release.py",
            "test_a_release_that_no_quorum_confirms_names_what_became_of_it_on_each_node",
        ),
        (RELEASE, "if len(replied) < nodes.quorum:", "if False:"),
    ),
    mutant(
        "a row takes along what else its owner has of the key",
        operated("web/test_release.py", "test_what_else_the_holder_has_of_the_key_stays"),
        (
            RELEASE,
            "or (entry.node_key, entry.owner) in only",
            "or entry.owner in {owner for _, owner in only}",
        ),
    ),
    mutant(
        "a release of all slots wakes two",
        operated("admin/test_lock_release.py", "test_one_more_is_woken_than_slots_become_free"),
        (RELEASE, "limits = None if entry.slot is None or entry.is_rate else", "limits = None and"),
    ),
    mutant(
        "a release from a foreign owner wakes nobody",
        operated("admin/test_lock_release.py", "test_those_who_wait_for_a_foreign_owner_are_woken"),
        (RELEASE, "number = max(1, candidate_above(", "number = max(0, candidate_above("),
    ),
    mutant(
        "a release for a node that was away waits for the next call",
        operated(
            "transport/test_faults.py",
            "test_a_release_reaches_a_node_that_is_back_without_a_further_call",
        ),
        (
            "core/release.py",
            "process_watchdog().settle_later(DeferredReleases(transport))",
            "DeferredReleases(transport)",
        ),
    ),
    mutant(
        "connections without a request shut viewers out",
        operated(
            "web/test_connections.py",
            "test_those_that_have_waited_longest_without_a_request_are_closed",
        ),
        ("web/connection.py", "if len(self.connections) > self.most:", "if False:"),
    ),
    mutant(
        "another site releases through a viewer's browser",
        FROM_THE_PAGE,
        (ACCESS, '            and origin == request.headers.get("Host")\n', ""),
    ),
    mutant(
        "a release needs nothing that only the page has",
        FROM_THE_PAGE,
        (ACCESS, '_is_same(request.headers.get(CSRF_HEADER, ""), self.csrf)', "True"),
    ),
)
