"""
Faults in the guards of resources: they serve the past, write in part, or share what is theirs.
"""

from __future__ import annotations

from evidence.planted.writing import fault, tested

GUARDS = (
    fault(
        "a claim leaves in the session what was loaded before it",
        tested("test_what_is_read_after_the_guard_is_what_the_last_holder_has_written"),
        ("fencing/sqlalchemy/session_objects.py::refresh", "session.expire(loaded)", ""),
    ),
    fault(
        "a change from before the claim is dropped",
        tested("test_changes_that_were_made_before_the_guard_are_refused_by_name"),
        (
            "fencing/sqlalchemy/session_objects.py::_pending_changes_of",
            "if part.modified:",
            "if False:",
        ),
    ),
    fault(
        "rows that are not newer are written although another one is",
        tested("test_update.py::test_one_newer_row_among_several_refuses_them_all"),
        (
            "fencing/sqlalchemy/update.py::_count_in_statement",
            "selection.where, count == 0)",
            "selection.where, ~selection.blocked)",
        ),
    ),
    fault(
        "new content may go into a file that was there",
        tested("test_new_content_is_written_to_a_new_file_that_nobody_could_have_named"),
        (
            "fencing/token_file.py::Drafts.create",
            "os.O_CREAT | os.O_EXCL | _SAFE_FLAGS",
            "os.O_CREAT | _SAFE_FLAGS",
        ),
    ),
    fault(
        "the lock may be a symbolic link",
        tested("test_what_stands_in_a_guard_s_place_and_is_no_file_is_named"),
        ("fencing/token_file.py::_SAFE_FLAGS", "_SAFE_FLAGS = os.O_NOFOLLOW | ", "_SAFE_FLAGS = "),
    ),
    fault(
        "what another writer still writes is removed",
        tested("test_what_another_writer_still_writes_is_not_removed"),
        (
            "fencing/token_file.py::Drafts._remove_abandoned",
            "_lock_now(descriptor)\n                    path.unlink()",
            "path.unlink()",
        ),
    ),
    fault(
        "a prefix and a key that are split elsewhere have one record",
        tested("test_a_prefix_and_a_key_that_are_split_elsewhere_do_not_share_a_record"),
        (
            "fencing/redis_script.py::FenceRecords._record_key",
            'f"{self.prefix}}}{key}"',
            'f"{self.prefix}:{key}"',
        ),
    ),
    fault(
        "a record of a key with a closing brace is anywhere",
        tested("test_a_record_of_a_key_with_braces_is_where_its_key_is"),
        (
            "fencing/redis_script.py::FenceRecords._record_key",
            'if key and "}" not in key:',
            "if key:",
        ),
    ),
)
