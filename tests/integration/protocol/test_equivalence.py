"""
The scripts and their meaning in Python agree, vote by vote and key by key.

Time is compared where both can be held still: the same random commands go to a server and to
`ModelNode`, whose clock follows the server's, and lifetimes are compared with a margin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from celery_redlock.protocol.commands import (
    SOURCE,
    Command,
    ReleaseAction,
    Waiter,
    enqueue,
    extend_together,
    inspect,
    pause,
    read_register,
    read_reply,
    resume,
    write_register,
)
from celery_redlock.protocol.keys import (
    ANY_PAUSE,
    FENCE_PREFIX,
    GUARD_KEY,
    REGISTER_PREFIX,
    TURNS_PREFIX,
    WAIT_QUEUE_PREFIX,
    WOKEN_PREFIX,
    Key,
    fence_key,
    turns_key,
    wait_queue_key,
)
from celery_redlock.protocol.node_model import GuardRecord, Identity, ModelNode, StoredKey
from celery_redlock.protocol.timing import MAX_TOKEN
from celery_redlock.protocol.votes import Failed, KeyStates, NotHeld, Quarantined, Refused, Vote
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.server import ConfigValue
from tests.integration.protocol.conftest import binary_of
from tests.support.commands import acquire, extend, forget_waiter, heal, move, raise_fence, release
from tests.support.nodes import PREFIX, ServerNodes

IDENTITY = Identity("x", "x")

LONG = 100_000
LONGER = 300_000

names = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True)
keys = names.map(lambda chosen: tuple(PREFIX + name for name in chosen))
owners = st.sampled_from(["us", "them", "others"])
lifetimes = st.sampled_from([LONG, LONGER])
tokens = st.sampled_from([1, 7, 2**50, MAX_TOKEN - 1])

# The clamp follows the clock to the microsecond, which no two looks share; it has its own test.
NO_CANDIDATE = st.just(0)

actions = st.dictionaries(
    st.sampled_from([PREFIX + name for name in "abc"]),
    st.builds(
        ReleaseAction, st.sampled_from([0, LONG, LONGER]), st.sampled_from(["", "them", "left"])
    ),
)

# Few of each, so that commands meet; and seldom the largest, after which nothing is let in.
registers = st.sampled_from([REGISTER_PREFIX + "r"] * 3 + [REGISTER_PREFIX + "s"])
writers = st.sampled_from([2**50] * 6 + [2**50 + 1] * 3 + [MAX_TOKEN])
versions = st.sampled_from([9, 9, 9, 10, 10, 0, MAX_TOKEN])
texts = st.one_of(st.sampled_from(["", "9 9 9", "x", "y"]), st.text(max_size=5))
fields = st.sampled_from(["a", "a", "token", "f:a", " é\r\n\0"])
written = st.dictionaries(
    fields,
    st.one_of(st.none(), st.tuples(versions, texts), st.tuples(versions, texts)),
    max_size=3,
)
asked = st.lists(fields, min_size=1, max_size=4, unique=True)
readers = st.one_of(st.just(0), writers)

waiter_names = st.sampled_from(["w1", "w2", "w3"])
since = st.integers(1, 5)
ranks = st.sampled_from([0, 0, 1, 9])
waiters = st.builds(
    Waiter,
    waiter_names | st.just(""),
    since,
    st.sampled_from([0, LONG, LONG, LONGER]),
    st.sampled_from([0, LONGER]),
    rank=ranks,
)
#: As nodes may remember them.
waiters_once = st.builds(Waiter, waiter_names, since, st.just(LONG), rank=ranks)

put_back = st.builds(
    lambda key, waiter: enqueue([(key, waiter)]),
    st.sampled_from([PREFIX + "a", PREFIX + "b"]),
    waiters_once,
)


def attempts(
    keys: st.SearchStrategy[Any], quarantine_ms: int = 0, **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[Command]:
    """Return commands that acquire keys."""
    return st.builds(acquire, keys, owners, lifetimes, NO_CANDIDATE, st.just(quarantine_ms), **more)


paused = names.map(lambda chosen: Key.of(PREFIX, chosen[0]))
pauses = st.one_of(
    st.builds(pause, paused, owners, lifetimes),
    st.builds(pause, paused, owners, lifetimes),
    st.builds(resume, paused),
)

extensions = st.builds(extend, keys, owners, lifetimes, tokens)

commands = st.one_of(
    attempts(keys),
    attempts(keys, LONG),
    attempts(keys, previous=owners),
    attempts(keys, LONG, previous=owners),
    attempts(keys, passes_pauses=st.just(True)),
    attempts(keys, waiter=waiters),
    attempts(keys, waiter=waiters),
    put_back,
    st.builds(forget_waiter, keys, waiters_once),
    pauses,
    st.builds(raise_fence, keys, owners, tokens),
    extensions,
    st.builds(extend_together, st.lists(extensions, min_size=2, max_size=4)),
    st.builds(heal, keys, owners, lifetimes, tokens),
    st.builds(release, keys, owners, st.one_of(st.just(0), tokens)),
    st.builds(release, keys, owners, tokens, lifetimes),
    st.builds(release, keys, owners, st.one_of(st.just(0), tokens), st.just(0), actions),
    st.builds(inspect, keys),
)
events = st.sampled_from(["flush", "arm", "role", "backlog", "expire"])
steps = st.lists(st.one_of(commands, commands, commands, events), min_size=1, max_size=25)

# Keys with limits, of which two disagree on their slots, and a rate; beside an ordinary one.
LIMITED = [
    Key.of(PREFIX, "a", 3),
    Key.of(PREFIX, "a", 2),
    Key.of(PREFIX, "b", 2, LONG),
    Key.of(PREFIX, "c"),
]
limited = st.lists(st.sampled_from(LIMITED), min_size=1, max_size=3, unique=True).map(tuple)
slots = st.lists(st.integers(0, 1), min_size=3, max_size=3).map(tuple)
# Of some slots it is known how many there are, of others it is not.
SLOTS = [slot for key in LIMITED for slot in map(Key.read, key.places)]
KNOWN = [LIMITED[0].at(0), LIMITED[2].at(0)]
held = st.lists(
    st.sampled_from([*KNOWN, *(slot for slot in SLOTS if slot not in KNOWN)]),
    min_size=1,
    max_size=3,
    unique=True,
).map(tuple)
limited_waiting = attempts(limited, previous=st.sampled_from(["", "us"]), waiter=waiters)
limited_commands = st.one_of(
    attempts(limited),
    attempts(limited),
    attempts(limited, LONG, previous=owners),
    limited_waiting,
    limited_waiting,
    st.builds(forget_waiter, limited, waiters_once),
    pauses,
    st.builds(move, limited, owners, tokens, slots, lifetimes, st.sampled_from([0, 0, LONG])),
    st.builds(extend, held, owners, lifetimes, tokens),
    st.builds(heal, held, owners, lifetimes, tokens),
    st.builds(release, held, owners, tokens),
    st.builds(release, limited, owners, st.just(0)),
    st.builds(inspect, held.map(lambda keys: tuple(key.stored for key in keys))),
)
limited_steps = st.lists(
    st.one_of(limited_commands, limited_commands, limited_commands, events), min_size=5, max_size=30
)

#: After these the counter cannot count on.
AT_THE_LIMIT = (
    release((PREFIX + "a",), "them", MAX_TOKEN - 1),
    acquire((PREFIX + "a",), "us", LONG, 0, 0),
)

register_commands = st.one_of(
    st.builds(write_register, registers, writers, written),
    st.builds(read_register, registers, readers),
    # Which fields make an answer too long depends on their order; a server keeps only that asked.
    st.builds(read_register, registers, readers, asked, max_bytes=st.integers(0, 30)),
)
register_steps = st.lists(st.one_of(register_commands, events), min_size=10, max_size=30)


def roughly(milliseconds: float) -> int:
    """Tell LONG from LONGER, however slow the machine is between two looks."""
    return round(milliseconds / LONG)


class Pair:
    """A server and its meaning."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.server = ServerNodes(cluster)
        self._redis: Any = cluster.client(0)
        self._redis.flushall()
        self.meaning = ModelNode(self.identity())

    def identity(self) -> Identity:
        info = self._redis.info("everything")
        followed = str(info["master_replid2"] or "")  # forty zeros are 0
        return Identity(info["run_id"], info["master_replid"], followed)

    def run(self, command: Command) -> tuple[Vote, Vote]:
        # In one transaction: no time passes between the reading of the clock and the command.
        both = self._redis.pipeline()
        both.time()
        both.eval(SOURCE[command.script], len(command.keys), *command.keys, "nonce", *command.args)
        (seconds, micros), reply = both.execute()
        return read_reply(reply[1:]), self.meaning.run(command, seconds * 1_000_000 + micros)

    def happen(self, event: str) -> None:
        if event == "flush":
            self._redis.flushall()
            self.meaning.lose_data()
        elif event == "arm":
            self._redis.set(
                GUARD_KEY, f"{self.meaning.identity.run}{self.meaning.identity.replication} 0"
            )
            self.meaning.arm()
        elif event == "role":
            self.server.flip_role(0)
            self.meaning.identity = self.identity()
        elif event == "backlog":
            # What creating the backlog does, or freeing it, without the time that this takes.
            self._redis.execute_command("DEBUG", "CHANGE-REPL-ID")
            self.meaning.identity = self.identity()
        else:
            # The server's keys end at once, so do those of the meaning.
            for key in list(self.meaning.keys):
                self._redis.pexpire(key, -1)
            self.meaning.keys.clear()

    def data(self) -> tuple[dict[str, Any], dict[str, Any]]:
        stored: dict[str, Any] = {}
        for raw in self._redis.keys("*"):
            key = raw.decode()
            if key.startswith(REGISTER_PREFIX):
                fields = self._redis.hgetall(key).items()
                stored[key] = {name.decode(): text.decode() for name, text in fields}
            elif key.startswith(WAIT_QUEUE_PREFIX):
                stored[key] = (self._scores(key), roughly(self._redis.pttl(key)))
            elif key.startswith(WOKEN_PREFIX):
                stored[key] = set(self._scores(key))
            elif key.startswith(TURNS_PREFIX):
                queue = self._scores(WAIT_QUEUE_PREFIX + key.removeprefix(TURNS_PREFIX))
                turns = self._turns(self._scores(key), queue)
                stored |= {key: turns} if turns else {}
            elif key == GUARD_KEY:
                identity, _, not_before = self._redis.get(key).decode().rpartition(" ")
                stored[key] = (identity[:40], identity[40:], int(not_before) > 0)
            elif key.startswith(FENCE_PREFIX):
                stored[key] = int(self._redis.get(key))
            else:
                value = value_of(key, self._redis.get(key).decode())
                stored[key] = (value, roughly(self._redis.pttl(key)))
        return stored, self._meant()

    def _scores(self, key: str) -> dict[str, int]:
        there = self._redis.zrange(key, 0, -1, withscores=True)
        return {name.decode(): int(score) for name, score in there}

    def _turns(self, turns: dict[str, int], names: Collection[str]) -> dict[str, int]:
        """Return when it is the turn of those that wait; of others, nodes may have it left."""
        now_ms = self.server.now_us(0) // 1000
        return {name: roughly(turn - now_ms) for name, turn in turns.items() if name in names}

    def _meant(self) -> dict[str, Any]:
        now_ms = self.server.now_us(0) // 1000
        meant: dict[str, Any] = {
            key: (value_of(key, held.owner), roughly(held.expires_at - now_ms))
            for key, held in self.meaning.keys.items()
        }
        meant |= self.meaning.fences
        meant |= {
            key: {"token": str(register.token)}
            | {f"f:{name}": str(field) for name, field in register.fields.items()}
            for key, register in self.meaning.registers.items()
            if register.token
        }
        meant |= {
            wait_queue_key(key): (queue.scores, roughly(queue.expires_at - now_ms))
            for key, queue in self.meaning.waiting.items()
            if queue.scores
        }
        meant |= {
            f"{WOKEN_PREFIX}{key}": set(queue.woken)
            for key, queue in self.meaning.waiting.items()
            if queue.woken
        }
        meant |= {
            turns_key(key): turns
            for key, queue in self.meaning.waiting.items()
            if (turns := self._turns(queue.turns, queue.scores))
        }
        if self.meaning.guard is not None:
            record = self.meaning.guard
            meant[GUARD_KEY] = (record.run, record.replication, record.not_before > 0)
        return meant


def comparable(vote: Vote) -> Vote:
    """Take out what depends on the instant, and the words."""
    if isinstance(vote, Quarantined):
        return Quarantined(roughly(vote.remaining * 1000))
    if isinstance(vote, Refused):
        return replace(
            vote,
            holders=tuple(
                replace(held, expires_in=roughly(held.expires_in * 1000)) for held in vote.holders
            ),
            turn_in=roughly(vote.turn_in * 1000),
        )
    if isinstance(vote, NotHeld):
        return replace(vote, turn_in=roughly(vote.turn_in * 1000))
    if isinstance(vote, KeyStates):
        return KeyStates(
            tuple(
                replace(state, expires_in=roughly(state.expires_in * 1000)) for state in vote.states
            )
        )
    return Failed("") if isinstance(vote, Failed) else vote


@pytest.fixture(scope="module", params=["servers", "redis-6.2"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A server of which some commands for debugging are used, which the oldest one always has."""
    config: dict[str, ConfigValue] = {"enable-debug-command": "local"}
    if request.param == "redis-6.2":
        config = {}
    binary = binary_of(request.param)
    with LocalCluster(1, binary=binary, armed=False, config=config) as started:
        yield started


def value_of(key: str, value: str) -> str:
    """Return a key's value; not which of several pauses is longest, if perhaps by a millisecond."""
    return "" if key == ANY_PAUSE else value


def random_histories(count: int) -> settings:
    """Try so many, or as much fewer as the profile tries of each property."""
    return settings(
        max_examples=count * settings().max_examples // 100,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    )


@random_histories(150)
@given(steps)
@example([*AT_THE_LIMIT, "expire", AT_THE_LIMIT[1], "expire", AT_THE_LIMIT[1]])
def test_scripts_and_their_meaning_agree(
    cluster: LocalCluster, sequence: list[Command | str]
) -> None:
    check(cluster, sequence)


@random_histories(150)
@given(limited_steps)
def test_scripts_and_their_meaning_agree_on_limits(
    cluster: LocalCluster, sequence: list[Command | str]
) -> None:
    check(cluster, sequence)


@random_histories(200)
@given(register_steps)
def test_scripts_and_their_meaning_agree_on_registers(
    cluster: LocalCluster, sequence: list[Command | str]
) -> None:
    check(cluster, sequence)


def check(cluster: LocalCluster, sequence: list[Command | str]) -> None:
    pair = Pair(cluster)
    for step in sequence:
        if isinstance(step, str):
            pair.happen(step)
            continue
        said, meant = pair.run(step)
        assert comparable(meant) == comparable(said)
    stored, meant_data = pair.data()
    assert meant_data == stored


@given(counter=st.integers(0, 2**51), candidate=st.integers(1, 2**53 - 1))
@random_histories(60)
def test_scripts_and_their_meaning_agree_on_counters_and_the_clamp(
    cluster: LocalCluster, counter: int, candidate: int
) -> None:
    pair = Pair(cluster)
    pair.server.set_fence(0, "a", counter)
    before = pair.server.now_us(0)
    pair.server.run(0, acquire((PREFIX + "a",), "us", LONG, candidate, 0))
    after = pair.server.now_us(0)
    meant = []
    for now in (before, after):
        state = ModelNode(IDENTITY, fences={fence_key(PREFIX + "a"): counter})
        state.run(acquire((PREFIX + "a",), "us", LONG, candidate, 0), now)
        meant.append(state.fences[fence_key(PREFIX + "a")])
    assert meant[0] <= pair.server.fence(0, "a") <= meant[1]


def test_meaning_a_key_lives_up_to_and_including_its_last_millisecond() -> None:
    state = ModelNode(IDENTITY, keys={"key": StoredKey("us", 1000)})
    assert state.owner("key", 1_000_999) == "us"
    assert state.owner("key", 1_001_000) is None


def test_meaning_a_clock_that_was_ahead_lengthens_no_quarantine() -> None:
    state = ModelNode(IDENTITY, guard=GuardRecord("x", "x", 603_000_001))
    command = acquire(("key",), "us", 1000, 1, 1000)
    assert state.run(command, 2_000_000) == Quarantined(1.0)
    assert not isinstance(state.run(command, 3_000_000), Quarantined)


def test_meaning_a_quarantine_of_a_client_with_a_longer_max_ttl_stays() -> None:
    state = ModelNode(IDENTITY, guard=GuardRecord("x", "x", 60_000_000))
    command = acquire(("key",), "us", 1000, 1, 1000)
    assert state.run(command, 2_000_000) == Quarantined(58.0)


def test_meaning_quarantine_ends_at_its_instant() -> None:
    state = ModelNode(IDENTITY, guard=GuardRecord("x", "x", 5_000_000))
    command = acquire(("key",), "us", 1000, 1, 1000)
    assert isinstance(state.run(command, 4_999_999), Quarantined)
    assert not isinstance(state.run(command, 5_000_000), Quarantined)
