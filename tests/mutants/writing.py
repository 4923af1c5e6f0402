"""
Words in which faults are written down.
"""

from __future__ import annotations

from tests.mutants.planting import Edit, Mutant

ARRIVAL = "tasks/rules/arrival.py"
ARMING = "core/node_admin.py"
ATTEMPT = "core/attempt.py"
LEASE = "core/lease.py"
NODE = "protocol/node_model.py"
FAILURES = "core/failures.py"
ENDING = "tasks/rules/ending.py"
PUBLISH = "tasks/rules/publish.py"
ROUNDS = "protocol/rounds.py"
TIMING = "protocol/timing.py"
TRUST = "core/validity.py"
CHANNEL = "transport/redis/channel.py"
CLOCK = "transport/clock.py"
LINK = "transport/redis/connection.py"
RELEASING = "core/release.py"
RESERVING = "core/reservations.py"
REQUEUE = "tasks/run/requeue.py"
RUNNING_LOCK = "tasks/run/running_lock.py"
ACQUIRE_LUA = "protocol/lua/acquire.lua"
EXTEND_LUA = "protocol/lua/extend.lua"
GUARD_LUA = "protocol/lua/guard.lua"
IDENTITY_LUA = "protocol/lua/identity.lua"
RAISE_LUA = "protocol/lua/raise.lua"
RELEASE_LUA = "protocol/lua/release.lua"
WAIT_QUEUE_LUA = "protocol/lua/wait_queue.lua"
TURNS_LUA = "protocol/lua/turns.lua"
WAITING_MESSAGES = "tasks/waiting_messages.py"


def modelled(setting: str, limit: int = 400_000) -> tuple[str, ...]:
    return ("tests.models", setting, "--limit", str(limit))


def simulated(profile: str, seeds: str) -> tuple[str, ...]:
    return ("tests.simulation", "--profile", profile, "--seeds", seeds, "--no-shrink")


def queued(test: str) -> tuple[str, ...]:
    return _pytest(f"tests/simulation/test_turns.py::{test}")


def tested(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/integration/protocol/{path}::{test}")


def attempted(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/unit/core/{path}::{test}")


def operated(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/integration/{path}::{test}")


def guarded(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/fencing/{path}::{test}")


def voted(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/unit/protocol/rounds/{path}::{test}")


def judged(path: str, test: str) -> tuple[str, ...]:
    return _pytest(f"tests/unit/tasks/{path}::{test}")


def _pytest(test: str) -> tuple[str, ...]:
    return ("pytest", "-q", "-x", "-p", "no:cacheprovider", test)


def mutant(name: str, killer: tuple[str, ...], *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name=name, killer=killer, edits=tuple(Edit(*edit) for edit in edits))
