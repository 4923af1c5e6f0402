"""
Why a connection to a node cannot be made, in one sentence, and whether waiting repairs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import NamedTuple, TypeVar

from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_redlock._greenlets.threads import start_thread
from celery_redlock.protocol.texts import shortened

_T = TypeVar("_T")

#: Replies to a wrong user, password or right.
_REFUSALS = (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    NoPermissionError,
)

#: The beginning of the reply of a server in which a script runs for long.
_BUSY = "BUSY "

_no_tls_reply = re.compile(r"(?i)wrong.version.number|record.layer.failure|unknown.protocol").search
_closed_at_first_command = re.compile(r"reading from|closed by server|b'\\x1[56]\\x03").search

#: Modes of a server in which it takes no locks, as INFO names them.
_WRONG_MODES = {
    "cluster": (
        "runs in cluster mode (cluster-enabled yes), which refuses scripts with several keys; name "
        "independent masters without cluster mode"
    ),
    "sentinel": (
        "is a Sentinel, which stores no keys; name the group that it watches: "
        "redis+sentinel://sentinel-1:26379,sentinel-2,sentinel-3/group"
    ),
}

_KEEPS_ITS_ID = (
    "has a new run_id but still the same master_replid, so the restart quarantine does not notice "
    "its restarts; name a Redis or Valkey server that answers INFO itself"
)


class Spelling(NamedTuple):
    """
    How a node's URL names what a connection needs.

    Attributes:
        password: a password.
        plain: no TLS.
        tls: TLS.
    """

    password: str
    plain: str
    tls: str


OF_SERVER = Spelling("redis://:password@host", "redis://", "rediss://")
OF_MASTER = Spelling(
    "redis+sentinel://:password@sentinels/group", "redis+sentinel://", "rediss+sentinel://"
)
OF_SENTINEL = Spelling("?sentinel_password=password", "sentinel_tls=false", "sentinel_tls=true")


class ConnectError(Exception):
    """
    A node cannot be connected to, or does not answer; the text gives the reason.

    Attributes:
        lasting: the node or its URL is set up wrongly, which no waiting repairs.
    """

    def __init__(self, reason: str, *, lasting: bool) -> None:
        super().__init__(reason)
        self.lasting = lasting


def answer_within(limit: float, call: Callable[[], _T], what: str) -> _T:
    """
    Return what a function returns, or raise its exception, if it ends in time.

    Args:
        limit: seconds to wait. A call that takes longer continues in its thread, without effect.
        call: the function.
        what: what it does, for the error.

    Raises:
        ConnectError: it takes longer.
    """
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as exc:
            answer.set_exception(exc)

    start_thread(run, "redlock-answer")
    if wait([answer], limit).not_done:
        raise ConnectError(f"{what} took longer than {limit:g} s", lasting=False)
    return answer.result()


def explained(
    exc: BaseException,
    *,
    tls: bool,
    has_password: bool,
    asks_for_password: bool = False,
    timeout: float,
    spelling: Spelling = OF_SERVER,
) -> ConnectError:
    """
    Return the error that names why a connection was not made.

    Args:
        exc: what redis-py raised.
        tls: whether the URL asks for TLS.
        has_password: whether the URL has a password.
        asks_for_password: whether it names code that gives one, at each connection another.
        timeout: seconds that each step had.
        spelling: how the URL names what is needed.
    """
    text = str(exc)
    # The other kinds of a ResponseError, such as LOADING, are those of a server that serves later.
    lasting = isinstance(exc, _REFUSALS) or (
        type(exc) is ResponseError and not text.startswith(_BUSY)
    )
    if asks_for_password and isinstance(exc, AuthenticationError):
        return ConnectError(describe_failure(exc), lasting=False)
    if isinstance(exc, TimeoutError):
        reason = f"no answer within {timeout:.3g} s while connecting"
        if tls:
            reason += f"; a port without TLS does not answer {spelling.tls}: write {spelling.plain}"
        return ConnectError(reason, lasting=False)
    if isinstance(exc, AuthenticationError) and not has_password:
        return ConnectError(
            f"asks for a password, but its URL has none; write {spelling.password}", lasting=True
        )
    reason = describe_failure(exc)
    if tls and _no_tls_reply(text):
        reason = f"answers without TLS; write {spelling.plain} instead of {spelling.tls}"
        lasting = True
    elif not tls and not lasting and _closed_at_first_command(text):
        reason = f"{reason.rstrip('.')}; a TLS port does that: write {spelling.tls} for it"
    return ConnectError(reason, lasting=lasting)


def check_mode(info: Mapping[str, str] | None) -> None:
    """
    Check that a server can take locks at all.

    Args:
        info: its reply to INFO; None if this user may not see it.

    Raises:
        ConnectError: it runs in a mode in which it never takes locks.
    """
    if info is None:
        return
    named = info.get("redis_mode", info.get("server_mode", ""))  # Valkey 9 has the second alone
    mode = "cluster" if info.get("cluster_enabled") == "1" else named
    if mode in _WRONG_MODES:
        raise ConnectError(_WRONG_MODES[mode], lasting=True)


def check_role(info: Mapping[str, str] | None) -> None:
    """
    Check that the server that was named as the master of a node takes writes.

    Raises:
        ConnectError: it is a replica, perhaps of the master that is promoted now.
    """
    if info is not None and info.get("role") != "master":
        raise ConnectError("is a replica, so a failover is under way", lasting=False)


def hides_ids(info: Mapping[str, str] | None) -> bool:
    """Return whether this user cannot see the ids by which a restart or a failover is noticed."""
    return info is None or "run_id" not in info or "master_replid" not in info


def check_identity(info: Mapping[str, str] | None, record: str) -> None:
    """
    Check that a master has not kept its `master_replid` over a restart.

    Args:
        info: its reply to INFO; None if this user may not see it.
        record: the guard record that it stores; empty if there is none.

    Raises:
        ConnectError: it has, so the restart quarantine cannot notice its restarts.
    """
    if info is None or info.get("role") != "master":
        return
    run_id, replication_id = info.get("run_id", ""), info.get("master_replid", "")
    if replication_id and record[40:81] == f"{replication_id} " and record[:40] != run_id:
        raise ConnectError(_KEEPS_ITS_ID, lasting=True)


def failure_of(exc: BaseException) -> ConnectError:
    """Return why a connection failed; without the traceback, which would keep its frames."""
    return ConnectError(
        describe_failure(exc), lasting=isinstance(exc, ConnectError) and exc.lasting
    )


def describe_failure(exc: BaseException) -> str:
    """Return the reason of a failed connection in one line."""
    if isinstance(exc, ConnectError):
        return str(exc)
    if isinstance(exc, RedisError | OSError):
        return f"{type(exc).__name__}: {shortened(str(exc))}"
    return f"unexpected {type(exc).__name__}: {shortened(str(exc))}"
