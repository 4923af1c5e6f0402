"""The rights that are tried are those that the containers' user has."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from celery_redlock.admin.rights import WAKE_RIGHTS, Right, missing_rights, rights

ACL = Path(__file__).parents[3] / "docker/redis/lock.acl"
TRIED = rights("redlock:")


def granted() -> set[str]:
    (line,) = (line for line in ACL.read_text().splitlines() if line.startswith("user redlock "))
    return {word for word in line.split() if word.startswith(("+", "~", "&"))}


def test_every_right_that_the_containers_grant_is_tried_and_no_other() -> None:
    assert {name for right in TRIED for name in (right.name, right.place)} == granted()


def test_the_rights_to_sorted_sets_and_channels_are_for_wake_ups() -> None:
    assert {
        name for name in granted() if name.startswith(("+z", "&", "+publish", "+subscribe"))
    } == (WAKE_RIGHTS)


def test_another_key_prefix_takes_another_right() -> None:
    assert "~shop:*" in {right.place for right in rights("shop:")}


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("User u has no permissions to run the 'get' command", "+get"),
        ("this user has no permissions to run the 'get' command or its subcommand", "+get"),
        ("User u has no permissions to access the 'k' key", "~k"),
        ("this user has no permissions to access one of the keys used as arguments", "~k"),
    ],
)
def test_the_reply_names_what_is_missing(text: str, missing: str) -> None:
    tried = Right(name="+get", probe=("GET", "k"), place="~k")

    assert missing_rights([(tried, NoPermissionError(text)), (tried, None)]) == (missing,)
