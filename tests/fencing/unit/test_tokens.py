"""What can be a fencing token, and where it comes from when none is given."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from celery_redlock import Lease
from celery_redlock.errors import InvalidFencingToken
from celery_redlock.fencing import checked_token, token_or_current
from celery_redlock.fencing.arguments import stale
from tests.support.waiting import TIMEOUT


class Counting(int):
    """A number of somebody's own."""


NO_TOKENS: list[Any] = [
    *(0, -1, 2**53, 10**6000, -(10**6000)),
    *(1.0, float("nan"), "1", b"1", True, False, [1], Counting(1)),
]


def shown(token: Any) -> str:
    name = type(token).__name__
    return f"{name}-of-{token.bit_length()}-bits" if isinstance(token, int) else f"{token!r}"


@pytest.mark.parametrize("token", NO_TOKENS, ids=shown)
def test_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(InvalidFencingToken):
        checked_token(token)


@pytest.mark.parametrize("token", [1, 2**53 - 1])
def test_the_smallest_and_the_largest_token_pass(token: int) -> None:
    assert checked_token(token) == token


def test_the_token_is_the_current_lease_s(lease: Lease) -> None:
    assert token_or_current() == lease.fencing_token


def test_a_given_token_goes_before_the_current_lease_s(lease: Lease) -> None:
    assert token_or_current(5) == 5


def test_a_lease_that_was_lost_still_has_its_token(lease: Lease) -> None:
    lease.mark_lost()
    assert token_or_current() == lease.fencing_token


def test_a_wrong_token_is_refused_although_there_is_a_lease(lease: Lease) -> None:
    with pytest.raises(InvalidFencingToken):
        token_or_current(0)


def test_outside_a_lease_the_error_says_to_give_the_token() -> None:
    with pytest.raises(InvalidFencingToken, match="Give the token"):
        token_or_current()


def test_a_thread_of_the_body_must_be_given_the_token(lease: Lease) -> None:
    errors: list[Exception] = []

    def ask() -> None:
        try:
            token_or_current()
        except InvalidFencingToken as exc:
            errors.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_importing_the_guards_loads_no_optional_library() -> None:
    optional = {"celery", "kombu", "sqlalchemy", "django", "boto3", "botocore"}
    code = (
        "import sys, celery_redlock.fencing\n"
        f"loaded = {optional} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=2 * TIMEOUT)


def test_a_stale_token_s_error_tells_both_numbers() -> None:
    error = stale("ledger", seen=7, offered=5)
    assert (error.resource, error.seen, error.offered) == ("ledger", 7, 5)
