"""What a register accepts, and how it speaks to the nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock import ConfigurationError, InvalidFencingToken, LockKeyError, Redlock
from celery_redlock.core import Register, VersionedValue, client_of
from celery_redlock.protocol.commands import CHUNK_BYTES, Command


@pytest.fixture
def said(redlock: Redlock, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """What has been said to the nodes."""
    commands: list[Command] = []
    channel: Any = client_of(redlock).transport.checkout()
    exchange = channel.exchange

    def overheard(batch: Any, *args: Any, **options: Any) -> None:
        commands.extend(command for command, _ in batch)
        exchange(batch, *args, **options)

    monkeypatch.setattr(channel, "exchange", overheard)
    return commands


@pytest.mark.parametrize("name", ["", None, 7, b"bytes", "x\udcff"], ids=repr)
def test_a_name_that_cannot_be_written_is_refused(redlock: Redlock, name: Any) -> None:
    with pytest.raises(LockKeyError, match="name of a register"):
        Register(client_of(redlock), name)
    register = Register(client_of(redlock), "r")
    with pytest.raises(LockKeyError, match="name of a field of register 'r'"):
        register.write(7, {name: (1, "")})
    with pytest.raises(LockKeyError, match="name of a field of register 'r'"):
        register.read([name])


@pytest.mark.parametrize("token", [0, -1, 2**53, True, 7.0, "7", None, math.nan], ids=repr)
def test_what_is_no_token_is_refused(redlock: Redlock, token: Any, said: list[Command]) -> None:
    register = Register(client_of(redlock), "r")
    with pytest.raises(InvalidFencingToken):
        register.claim(token)
    with pytest.raises(InvalidFencingToken):
        register.write(token, {"a": (1, "")})
    assert not said


@pytest.mark.parametrize(
    "field",
    [(-1, ""), (2**53, ""), (1, "é" * 500_001)],
    ids=lambda field: f"{field!r:.40}",
)
def test_what_is_no_field_is_refused_by_name_and_nothing_is_written(
    redlock: Redlock, field: tuple[int, str], said: list[Command]
) -> None:
    with pytest.raises(ConfigurationError, match="Field 'b' of register 'r'"):
        Register(client_of(redlock), "r").write(7, {"a": (1, ""), "b": field})
    assert not said


def test_many_fields_go_in_several_pieces(redlock: Redlock, said: list[Command]) -> None:
    Register(client_of(redlock), "r").write(7, {str(n): (n, "") for n in range(1_001)})
    assert [len(command.args[1:]) // 3 for command in said] == [500, 500, 1]


def test_long_fields_go_in_pieces_too(redlock: Redlock, said: list[Command]) -> None:
    register = Register(client_of(redlock), "r")
    register.write(7, {str(n): (n, "é" * (CHUNK_BYTES // 5)) for n in range(5)})
    assert [len(command.args[1:]) // 3 for command in said] == [2, 2, 1]


def test_a_write_of_nothing_asks_the_nodes_all_the_same(
    redlock: Redlock, said: list[Command]
) -> None:
    Register(client_of(redlock), "r").write(7, {})
    assert [command.args for command in said] == [(7,)]


def test_an_ordinary_claim_and_an_ordinary_read_are_one_round_trip(
    redlock: Redlock, said: list[Command]
) -> None:
    register = Register(client_of(redlock), "r")
    register.write(7, {str(n): (n, "x" * 100) for n in range(500)})
    said.clear()
    register.claim(8)
    register.read()
    assert len(said) == 2


def test_a_call_that_is_broken_off_gives_its_channel_up(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(BaseException):
        pass

    def struck(*_: Any, **__: Any) -> None:
        raise Struck

    register = Register(client_of(redlock), "r")
    discarded: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(client_of(redlock).transport, "exchange", struck)
        patched.setattr(client_of(redlock).transport, "discard", discarded.append)
        calls: list[Callable[[], Any]] = [
            lambda: register.claim(7),
            register.read,
            lambda: register.write(7, {}),
        ]
        for call in calls:
            with pytest.raises(Struck):
                call()
    assert len(discarded) == 3
    register.write(7, {"a": (1, "")})
    assert register.read() == {"a": VersionedValue(7, 1, "")}


def test_a_register_is_named_where_it_is_shown(redlock: Redlock) -> None:
    assert "beat:app" in repr(Register(client_of(redlock), "beat:app"))
