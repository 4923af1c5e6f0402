"""
Faults in the guards of resources: they serve the past, write in part, or share what is theirs.
"""

from __future__ import annotations

from tests.mutants.writing import guarded, mutant

LOADED = "fencing/sqlalchemy/session_objects.py"
SEVERAL = "fencing/sqlalchemy/multi_row.py"
DRAFTS = "fencing/drafts.py"
NAMES = "fencing/redis_script.py"

GUARDS = (
    mutant(
        "a claim leaves in the session what was loaded before it",
        guarded(
            "sql/test_session_objects.py",
            "test_what_is_read_after_the_guard_is_what_the_last_holder_has_written",
        ),
        (LOADED, "            session.expire(loaded)\n", ""),
    ),
    mutant(
        "a change from before the claim is dropped",
        guarded(
            "sql/test_session_objects.py",
            "test_changes_that_were_made_before_the_guard_are_refused_by_name",
        ),
        (LOADED, "        if part.modified:", "        if False:"),
    ),
    mutant(
        "rows that are not newer are written although another one is",
        guarded("sql/test_update.py", "test_one_newer_row_among_several_refuses_them_all"),
        (SEVERAL, "selection.where, count == 0)", "selection.where, ~selection.blocked)"),
    ),
    mutant(
        "new content may go into a file that was there",
        guarded(
            "files/test_shared_directories.py",
            "test_new_content_is_written_to_a_new_file_that_nobody_could_have_named",
        ),
        (DRAFTS, "os.O_CREAT | os.O_EXCL | _SAFE_FLAGS", "os.O_CREAT | _SAFE_FLAGS"),
    ),
    mutant(
        "the lock may be a symbolic link",
        guarded(
            "files/test_shared_directories.py",
            "test_what_stands_in_a_guard_s_place_and_is_no_file_is_named",
        ),
        (DRAFTS, "_SAFE_FLAGS = os.O_NOFOLLOW | ", "_SAFE_FLAGS = "),
    ),
    mutant(
        "what another writer still writes is removed",
        guarded(
            "files/test_shared_directories.py",
            "test_what_another_writer_still_writes_is_not_removed",
        ),
        (
            DRAFTS,
            "                    lock_now(descriptor)\n                    path.unlink()\n",
            "                    path.unlink()\n",
        ),
    ),
    mutant(
        "a prefix and a key that are split elsewhere have one record",
        guarded(
            "redis/test_records.py",
            "test_a_prefix_and_a_key_that_are_split_elsewhere_do_not_share_a_record",
        ),
        (NAMES, 'f"{self.prefix}}}{key}"', 'f"{self.prefix}:{key}"'),
    ),
    mutant(
        "a record of a key with a closing brace is anywhere",
        guarded(
            "redis/test_records.py",
            "test_a_record_of_a_key_with_braces_is_where_its_key_is",
        ),
        (NAMES, 'if key and "}" not in key:', "if key:"),
    ),
)
