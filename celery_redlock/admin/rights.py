"""
The rights that a user needs on a node, each with a command that tests it.

`docker/redis/lock.acl` and the page about users grant these; the tests hold them against this
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from redis.exceptions import NoPermissionError

from celery_redlock.protocol.keys import META_PREFIX, WAKE_PREFIX

#: The key in the commands below. No client uses it, and none of the commands creates it.
PROBE_KEY = META_PREFIX + "doctor"

PROBE_CHANNEL = WAKE_PREFIX + "doctor"

INFO_RIGHT = "+info"

_RECORDS = f"~{META_PREFIX}*"
_CHANNELS = f"&{WAKE_PREFIX}*"

#: A script that cannot be compiled, so that a node keeps nothing of it.
_NO_SCRIPT = "("

#: Finds a refusal of the command itself; other refusals are of its keys or channels.
_refuses_command = re.compile(r"permissions? to run ").search


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """
    One right to a command.

    Attributes:
        name: as an ACL grants it.
        probe: the command, in a form that changes nothing: on a key that does not exist, or with
            arguments that it does not take.
        place: the right to the keys or channels that `probe` names.
        only_wakes: without this right locks work, but a waiter is not woken and tries again after a
            delay.
    """

    name: str
    probe: tuple[str, ...]
    place: str = _RECORDS
    only_wakes: bool = False


#: Also shows whether a node refuses all writes. `XX`: sets the key only if it exists.
WRITE_PROBE = ("SET", PROBE_KEY, "0", "XX")

#: SUBSCRIBE is the last: a connection takes no other command after it.
_RIGHTS = (
    Right(name=INFO_RIGHT, probe=("INFO", "server")),
    Right(name="+time", probe=("TIME",)),
    Right(name="+script|load", probe=("SCRIPT", "LOAD", _NO_SCRIPT)),
    Right(name="+eval", probe=("EVAL", _NO_SCRIPT, "0")),
    Right(name="+evalsha", probe=("EVALSHA", "0" * 40, "0")),
    Right(name="+get", probe=("GET", PROBE_KEY)),
    Right(name="+mget", probe=("MGET", PROBE_KEY)),
    Right(name="+set", probe=WRITE_PROBE),
    Right(name="+del", probe=("DEL", PROBE_KEY)),
    Right(name="+pttl", probe=("PTTL", PROBE_KEY)),
    Right(name="+pexpire", probe=("PEXPIRE", PROBE_KEY, "1")),
    Right(name="+hget", probe=("HGET", PROBE_KEY, "f")),
    Right(name="+hgetall", probe=("HGETALL", PROBE_KEY)),
    Right(name="+hset", probe=("HSET", PROBE_KEY, "f", "v", "without a value")),
    Right(name="+hdel", probe=("HDEL", PROBE_KEY, "f")),
    Right(name="+zadd", probe=("ZADD", PROBE_KEY, "XX", "0", "m"), only_wakes=True),
    Right(name="+zrem", probe=("ZREM", PROBE_KEY, "m"), only_wakes=True),
    Right(name="+zscore", probe=("ZSCORE", PROBE_KEY, "m"), only_wakes=True),
    Right(name="+zrange", probe=("ZRANGE", PROBE_KEY, "0", "0"), only_wakes=True),
    Right(name="+zrangebyscore", probe=("ZRANGEBYSCORE", PROBE_KEY, "0", "0"), only_wakes=True),
    Right(name="+zremrangebyrank", probe=("ZREMRANGEBYRANK", PROBE_KEY, "0", "0"), only_wakes=True),
    Right(name="+zrank", probe=("ZRANK", PROBE_KEY, "m"), only_wakes=True),
    Right(name="+zcard", probe=("ZCARD", PROBE_KEY), only_wakes=True),
    Right(name="+publish", probe=("PUBLISH", PROBE_CHANNEL, ""), place=_CHANNELS, only_wakes=True),
    Right(name="+subscribe", probe=("SUBSCRIBE", PROBE_CHANNEL), place=_CHANNELS, only_wakes=True),
)

#: Without these rights locks work, but waiters are not woken.
WAKE_RIGHTS = frozenset({_CHANNELS, *(right.name for right in _RIGHTS if right.only_wakes)})


def rights(key_prefix: str) -> tuple[Right, ...]:
    """Return all rights of a user whose lock keys have this prefix."""
    return (
        Right(name="+get", probe=("GET", f"{key_prefix}doctor"), place=f"~{key_prefix}*"),
        *_RIGHTS,
    )


def missing_rights(replies: Iterable[tuple[Right, object]]) -> tuple[str, ...]:
    """Return the rights that a user lacks according to the replies to the probes, each once."""
    return tuple(dict.fromkeys(_refused(replies)))


def _refused(replies: Iterable[tuple[Right, object]]) -> Iterator[str]:
    for right, reply in replies:
        if isinstance(reply, NoPermissionError):
            yield right.name if _refuses_command(str(reply)) else right.place
