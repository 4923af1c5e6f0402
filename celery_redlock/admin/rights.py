"""
The rights that a user needs on a node, each with a command by which it can be tried.

`docker/redis/lock.acl` and the page about users grant these; the tests hold them against this
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from redis.exceptions import NoPermissionError

from celery_redlock.protocol.keys import META_PREFIX, WAKE_PREFIX

#: Named by the commands below. No client has it, and none of the commands creates it.
PROBE_KEY = META_PREFIX + "doctor"

PROBE_CHANNEL = WAKE_PREFIX + "doctor"

INFO_RIGHT = "+info"

_RECORDS = f"~{META_PREFIX}*"
_CHANNELS = f"&{WAKE_PREFIX}*"

#: A script that cannot be compiled, so that a node keeps nothing of it.
_NO_SCRIPT = "("

#: A refusal of the command itself; others are of its keys or channels.
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
        only_wakes: without it locks work, and a waiter is not woken but tries again after a delay.
    """

    name: str
    probe: tuple[str, ...]
    place: str = _RECORDS
    only_wakes: bool = False


#: By which a node's general refusal of writes shows, too. `XX`: only where the key exists.
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

#: Without these locks work, and nobody is woken.
WAKE_RIGHTS = frozenset({_CHANNELS, *(right.name for right in _RIGHTS if right.only_wakes)})


def rights(key_prefix: str) -> tuple[Right, ...]:
    """Return all rights of a user whose lock keys have this prefix."""
    return (
        Right(name="+get", probe=("GET", f"{key_prefix}doctor"), place=f"~{key_prefix}*"),
        *_RIGHTS,
    )


def missing_rights(replies: Iterable[tuple[Right, object]]) -> tuple[str, ...]:
    """Return the rights that a user lacks, by the replies to the probes, each of them once."""
    return tuple(dict.fromkeys(_refused(replies)))


def _refused(replies: Iterable[tuple[Right, object]]) -> Iterator[str]:
    for right, reply in replies:
        if isinstance(reply, NoPermissionError):
            yield right.name if _refuses_command(str(reply)) else right.place
