"""Why a connection was not made is a sentence with the remedy, and whether waiting repairs it."""

from __future__ import annotations

import ssl

import pytest
from redis import exceptions

from celery_redlock.transport.redis.connect_error import (
    ConnectError,
    check_identity,
    check_mode,
    explained,
)


def explain(exc: Exception, *, tls: bool = False, has_password: bool = True) -> ConnectError:
    return explained(exc, tls=tls, has_password=has_password, timeout=0.2)


@pytest.mark.parametrize(
    "refusal",
    [
        exceptions.AuthenticationError("invalid username-password pair"),
        exceptions.NoPermissionError("this user has no permissions to run the 'eval' command"),
        exceptions.ResponseError("DB index is out of range"),
        exceptions.ResponseError("unknown command 'SCRIPT'"),
    ],
)
def test_a_refusal_is_lasting(refusal: Exception) -> None:
    assert explain(refusal).lasting
    assert str(refusal) in str(explain(refusal))


@pytest.mark.parametrize(
    "trouble",
    [
        exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        exceptions.ResponseError("BUSY Redis is busy running a script."),
        exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'"),
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.ConnectionError("max number of clients reached"),
        exceptions.TimeoutError("Timeout reading from socket"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_what_may_pass_is_not_lasting(trouble: Exception) -> None:
    assert not explain(trouble).lasting


def test_a_silent_node_is_named_with_the_time_that_it_had() -> None:
    silence = exceptions.TimeoutError("Timeout reading from socket")
    assert str(explain(silence)) == "no answer within 0.2 s while connecting"


def test_a_missing_password_is_named_and_is_lasting() -> None:
    error = explain(exceptions.AuthenticationError("HELLO must be called ..."), has_password=False)
    assert error.lasting
    assert "its URL has none; write redis://:password@host" in str(error)


def test_a_reply_that_is_no_tls_names_the_scheme_without_it() -> None:
    error = explain(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), tls=True)
    assert error.lasting
    assert "write redis:// instead of rediss://" in str(error)


def test_a_port_that_does_not_answer_tls_may_be_one_without() -> None:
    error = explain(exceptions.TimeoutError("Timeout connecting to server"), tls=True)
    assert "write redis://" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "Error while reading from 127.0.0.1:6379 : (104, 'Connection reset by peer')",
        "Connection closed by server.",
        r"answered garbage: no reply begins with b'\x15\x03\x03\x00\x02\x02F'",
    ],
)
def test_a_port_that_ends_a_plain_connection_may_be_one_with_tls(text: str) -> None:
    assert "write rediss:// for it" in str(explain(exceptions.ConnectionError(text)))


@pytest.mark.parametrize(
    ("info", "named"),
    [
        ({"redis_mode": "cluster"}, "cluster-enabled yes"),
        ({"redis_mode": "standalone", "cluster_enabled": "1"}, "cluster-enabled yes"),
        ({"redis_mode": "sentinel"}, "name the group that it watches"),
    ],
)
def test_a_server_in_a_mode_without_locks_is_refused_for_good(
    info: dict[str, str], named: str
) -> None:
    with pytest.raises(ConnectError, match=named) as refused:
        check_mode(info)
    assert refused.value.lasting


@pytest.mark.parametrize("info", [None, {}, {"redis_mode": "standalone", "cluster_enabled": "0"}])
def test_a_server_of_its_own_is_not_refused(info: dict[str, str] | None) -> None:
    check_mode(info)


MASTER = {"role": "master", "run_id": "b" * 40, "master_replid": "c" * 40}


def test_a_master_that_keeps_its_replication_id_over_a_restart_is_refused_for_good() -> None:
    with pytest.raises(ConnectError, match="does not notice its restarts") as refused:
        check_identity(MASTER, "a" * 40 + "c" * 40 + " 0")
    assert refused.value.lasting


@pytest.mark.parametrize(
    ("info", "record"),
    [
        (None, "a" * 40 + "c" * 40 + " 0"),
        (MASTER, ""),
        (MASTER, "hidden 0"),
        (MASTER, "b" * 40 + "c" * 40 + " 0"),
        (MASTER, "a" * 40 + "d" * 40 + " 0"),
        ({**MASTER, "role": "slave"}, "a" * 40 + "c" * 40 + " 0"),
        ({"role": "master"}, "a" * 40 + " 0"),
    ],
)
def test_no_other_record_refuses_a_server(info: dict[str, str] | None, record: str) -> None:
    check_identity(info, record)
