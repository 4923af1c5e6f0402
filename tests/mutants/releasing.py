"""
Faults in what operators release: another owner's lock, or nothing, and a page that anybody can use.
"""

from __future__ import annotations

from tests.mutants.writing import RESERVING, judged, mutant, operated

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
        (RELEASE, "if (rates or not entry.is_rate)", "if True"),
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
        (RELEASE, "if dry_run:", "if False:"),
    ),
    mutant(
        "a message runs that was revoked with its lock",
        operated("web/test_release.py", "test_a_queued_message_is_revoked_if_that_is_wanted"),
        (RELEASE, "        and (not revoke or _revoke(redlock, entry))\n", ""),
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
        (RELEASE, "if entry.state != LEFTOVER or any(one is not None for one in owners):", "if 0:"),
    ),
    mutant(
        "a leftover that was released is said to stay",
        operated("admin/test_lock_release.py", "test_a_leftover_is_taken_away"),
        (RELEASE, "if entry.state != LEFTOVER or any(one is not None for one in owners):", "if 1:"),
    ),
    mutant(
        "a release that no quorum confirms is said to have ended by itself",
        operated(
            "admin/test_lock_release.py", "test_a_release_that_is_not_confirmed_is_no_release"
        ),
        (RELEASE, "if entry.owner in owners:", "if False:"),
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
        operated("admin/test_lock_release.py", "test_as_many_are_woken_as_slots_become_free"),
        (RELEASE, "slots = 0 if entry.slot is None or entry.is_rate else slots", "slots = 0"),
    ),
    mutant(
        "a release from a foreign owner wakes nobody",
        operated("admin/test_lock_release.py", "test_those_who_wait_for_a_foreign_owner_are_woken"),
        (RESERVING, "number = max(1, candidate_above(", "number = max(0, candidate_above("),
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
