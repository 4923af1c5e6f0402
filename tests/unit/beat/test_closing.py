"""Stopping a beat in the middle of anything, as Celery's handler of SIGTERM does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.beat import Scheduler

from celery_redlock.beat import candidate, leader_scheduler, leadership, scheduler
from celery_redlock.beat.schedule_state import ScheduleState
from celery_redlock.core import Register, client, lease
from celery_redlock.signals import beat_leader_started, beat_leader_stopped
from tests.unit.beat.test_failover import due_times
from tests.unit.beat.world import Beat, World


def is_held(world: World) -> bool:
    place = f"redlock:beat:{world.name}"
    return any(place in node.state.keys for node in world.nodes)


def handle_sigterm(beat: Beat) -> None:
    """What Celery's handler does."""
    beat.scheduler.close()
    raise SystemExit


def end_of_service(world: World, beat: Beat) -> None:
    """What Celery's service does when the handler's exception has reached it."""
    world.stop(beat)


def with_signal(function: Callable[..., Any], beat: Beat, *, after: bool) -> Callable[..., Any]:
    """Let the signal come right before a function, or right after it, once."""
    left = [None]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not left:
            return function(*args, **kwargs)
        if after:
            function(*args, **kwargs)
        left.clear()
        handle_sigterm(beat)
        return None

    return interrupted


PLACES = [
    (Register, "claim"),
    (Register, "write"),
    (ScheduleState, "record_sent"),
    (leader_scheduler.LeaderScheduler, "populate_heap"),
    (leader_scheduler.LeaderScheduler, "tick"),
    (leadership.Leadership, "_start"),
    (scheduler.RedlockScheduler, "_build"),
    (scheduler.RedlockScheduler, "_close_if_requested"),
    (candidate.Candidate, "accept"),
    (client, "attempt_once"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_a_signal_in_a_pass_hands_over(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    a = world.beat("a")
    monkeypatch.setattr(owner, name, with_signal(getattr(owner, name), a, after=after))
    with pytest.raises(SystemExit):
        world.run(5)
    end_of_service(world, a)
    assert not is_held(world)
    world.beat("b")
    assert world.run(3)
    # What may have been sent is sent again, as what it was.
    assert len({message.id for message in world.sent}) == len(set(due_times(world.sent)))


@pytest.mark.parametrize("name", ["_write_state", "_close_schedule", "_release", "_announce_stop"])
def test_a_signal_while_it_closes_cuts_nothing_else_short(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    a = world.beat("a")
    step = with_signal(getattr(leadership.Leadership, name), a, after=False)
    monkeypatch.setattr(leadership.Leadership, name, step)
    world.run(5)
    with pytest.raises(SystemExit):
        world.stop(a)
    end_of_service(world, a)
    assert not is_held(world)


def test_a_release_that_a_signal_cuts_short_is_said_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.beat("a")
    unsent = with_signal(lease.send_release, a, after=False)
    monkeypatch.setattr(lease, "send_release", unsent)
    world.run(5)
    with pytest.raises(SystemExit):
        world.stop(a)
    assert not is_held(world)


def test_in_the_middle_of_a_pass_the_handler_only_leaves_word(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.beat("a")
    held: list[bool] = []

    def claim(*args: Any) -> Any:
        a.scheduler.close()
        held.append(is_held(world))
        return {}

    monkeypatch.setattr(Register, "claim", claim)
    with pytest.raises(SystemExit):
        world.pass_of(a)
    assert held == [True]
    assert not is_held(world)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["tick", "_do_sync"])
def test_a_beat_ends_though_the_handlers_exception_goes_astray(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Result:
        """As Celery's, which unsubscribes when it goes."""

        def __del__(self) -> None:
            handle_sigterm(a)

    a = world.beat("a")
    world.run(3)
    monkeypatch.setattr(Scheduler, where, lambda *_, **__: Result() and None)

    with pytest.raises(SystemExit):
        getattr(a.scheduler, where)()
    end_of_service(world, a)
    assert not is_held(world)


def test_closing_twice_is_closing_once(world: World) -> None:
    a = world.beat("a")
    world.run(3)
    world.stop(a)
    a.scheduler.close()
    assert not is_held(world)


def test_closing_a_beat_that_never_began_does_nothing(world: World) -> None:
    world.stop(world.beat("a"))
    assert not is_held(world)


def test_a_beat_that_stands_by_leaves_the_leaders_lock_when_it_closes(world: World) -> None:
    a, b = world.beat("a"), world.beat("b")
    world.run(3)
    world.stop(b)
    assert a.leads
    assert is_held(world)


def test_a_wrapped_scheduler_that_raises_ends_the_beat_and_frees_the_lead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.beat("a")

    def fail(self: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(scheduler.RedlockScheduler, "_build", fail)
        with pytest.raises(ZeroDivisionError):
            world.run(3)
    end_of_service(world, a)
    assert not is_held(world)


def test_a_wrapped_scheduler_that_cannot_be_closed_does_not_keep_the_lead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.beat("a")
    world.run(3)

    def fail(self: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Scheduler, "close", fail)
    world.stop(a)
    assert not is_held(world)


def test_who_leads_is_told_to_signals(world: World) -> None:
    told: list[tuple[str, Any, int, str]] = []

    def started(sender: Any, token: int, reason: str, **_: Any) -> None:
        told.append(("started", sender, token, reason))

    def stopped(sender: Any, token: int, reason: str, **_: Any) -> None:
        told.append(("stopped", sender, token, reason))

    beat_leader_started.connect(started)
    beat_leader_stopped.connect(stopped)
    a, b = world.beat("a"), world.beat("b")
    world.run(3)
    world.stop(a)
    world.run(3)
    kinds = [(kind, sender) for kind, sender, *_ in told]
    assert kinds == [
        ("started", a.scheduler),
        ("stopped", a.scheduler),
        ("started", b.scheduler),
    ]
    (_, _, first, why), (_, _, also_first, _), (_, _, second, after_whom) = told
    assert first == also_first < second
    assert why == "no beat led before"
    assert after_whom.startswith("it follows the beat on ")


def test_a_loss_is_told_to_signals_with_its_reason(world: World) -> None:
    told: list[str] = []

    def stopped(reason: str, **_: Any) -> None:
        told.append(reason)

    beat_leader_stopped.connect(stopped)
    a = world.beat("a")
    world.run(3)
    a.frozen = True
    world.run(20)
    a.frozen = False
    world.run(1)
    assert told == ["its lease was lost: it was not extended in time"]
