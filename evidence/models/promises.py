"""
What is promised of calls with one key, held against each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_redlock.tasks.config.option_values import MODES
from celery_redlock.tasks.rules.arrival import Action
from evidence.models.calls import Caller, CallSetting
from evidence.models.explorer import Label, ViolationError
from evidence.models.scene import RUNS, UNSENT, Call, Delivery, Scene
from evidence.models.state import NAMES


def root(callers: Sequence[Caller], at: int) -> int:
    """Return the call that a call continues in the end."""
    before = callers[at].retries
    return at if before is None else root(callers, before)


def age(setting: CallSetting, scene: Scene, at: int) -> int:
    """Return the place of a call in the order of calls; a retry has that of its call."""
    tick = setting.callers[at].tick
    return tick or scene.calls[root(setting.callers, at)].sent


def has_outcome(call: Call) -> bool:
    """Return whether what follows a call is being sent."""
    return bool(call.outcomes)


def check_drop(setting: CallSetting, at: int, text: str) -> None:
    """Nobody waits for a message that was not sent."""
    if setting.callers[at].tied:
        raise ViolationError(_label(at, text), "somebody waits for it for ever")


def check_rival(setting: CallSetting, at: int, holder: int | None, text: str) -> None:
    """A call gives way only to another of its own task, and takes nothing from another task's."""
    if holder is not None and setting.callers[at].task != setting.callers[holder].task:
        raise ViolationError(_label(at, text), "it counts as a duplicate of another task's call")


def check_arrival(setting: CallSetting, scene: Scene, at: int, delivery: Delivery) -> None:
    """What is too late, or sent by a newer leader itself, does not begin."""
    call = scene.calls[at]
    if delivery.late and not call.brought:
        raise ViolationError(_label(at, "begins"), "a tick ran that a newer leader sends")
    may_have_begun = delivery.begun or delivery.again
    if delivery.missed and not may_have_begun and setting.callers[at].tick is not None:
        raise ViolationError(_label(at, "begins"), "a tick began after its deadline")


def check_body(setting: CallSetting, scene: Scene, at: int, piece: Callable[[int], int]) -> None:
    """One body for each key, each message, each tick, and each pair of duplicates."""
    label, call = _label(at, "begins"), scene.calls[at]
    mode = MODES[setting.mode]
    runs = [n for n, other in enumerate(scene.calls) if other.stands == RUNS and n != at]
    locked = [n for n in runs if not scene.calls[n].unlocked]
    if mode.in_body and locked and not call.unlocked:
        raise ViolationError(label, "two bodies ran at once")
    is_marked = mode.at_publish or setting.callers[at].tick is not None
    same = [other for n, other in enumerate(scene.calls) if piece(n) == piece(at)]
    spared = any(other.spared for other in same)
    if is_marked and not spared and not call.unlocked and sum(one.bodies for one in same) > 1:
        raise ViolationError(label, "one message or tick ran twice")
    if call.replaced_by is not None and not call.spared:
        raise ViolationError(label, "a call ran that a newer one had replaced")
    pairs = [(at, first) for first in _first_and_heirs(scene, at)]
    pairs += [(n, at) for n in range(len(scene.calls)) if at in _first_and_heirs(scene, n)]
    for later, first in pairs:
        if _both_ran(setting, scene, later, first):
            raise ViolationError(label, "a call and its duplicate both ran")


def check_skip(
    setting: CallSetting, scene: Scene, at: int, first: int | None, action: Action
) -> None:
    """A call does not end for one that will not run."""
    if first is None or action is Action.END_AS_REPLACED:
        return
    call = scene.calls[first]
    alone = root(setting.callers, first) == first and not any(
        caller.retries == first for caller in setting.callers
    )
    # A lost publisher's reservation looks like that of a message on its way.
    shown = scene.reserved is not None and scene.reserved[0] == first
    if call.spared and not (call.bodies or shown) and call.replaced_by is None and alone:
        text = f"will end: {action.name}"
        raise ViolationError(_label(at, text), "it ended for a call that never runs")


def check_outcome(setting: CallSetting, scene: Scene, at: int) -> None:
    """Nobody hears of an outcome twice."""
    call = scene.calls[at]
    marked = MODES[setting.mode].at_publish or setting.callers[at].tick is not None
    if call.outcomes > 1 and marked and not call.spared:
        raise ViolationError(_label(at, "ends"), "its outcome was stored twice")


def check_end(setting: CallSetting, scene: Scene) -> None:
    """Where nothing is left to do, no message waits and no call is lost."""
    for at, call in enumerate(scene.calls):
        label: Label = (f"nothing is left to do, and {NAMES[at]} {call.stands}", ())
        if call.deliveries:
            raise ViolationError(label, "a message waits for ever")
        if call.stands == UNSENT:
            caller = setting.callers[at]
            if caller.retries is None and caller.by is None:
                raise ViolationError(label, "a call is never sent")
            continue
        if call.owed and not call.outcomes and setting.callers[at].tick is None:
            raise ViolationError(label, "a body that was interrupted did not run again")
        if call.bodies or call.spared or call.excused:
            continue
        doer = _doer(scene, at)
        if doer is None or not _serves(setting, scene, at, doer):
            raise ViolationError(label, "a call was lost")
        if setting.callers[at].tied and not call.outcomes:
            raise ViolationError(label, "its outcome never came")
    _check_ticks(setting, scene)


def _check_ticks(setting: CallSetting, scene: Scene) -> None:
    """Each tick is run, by one of its messages, or ended for a reason."""
    for tick in {caller.tick for caller in setting.callers} - {None}:
        pairs = zip(setting.callers, scene.calls, strict=True)
        calls = [call for caller, call in pairs if caller.tick == tick]
        done = any(call.bodies or call.spared or call.outcomes for call in calls)
        referred = any(call.stands_for is not None for call in calls)
        superseded = scene.base is not None and tick is not None and tick > scene.base
        if not (done or referred or superseded):
            label: Label = (f"nothing is left to do, and tick {tick} did not run", ())
            raise ViolationError(label, "a tick was lost")


def _first_and_heirs(scene: Scene, at: int) -> list[int]:
    """
    Return the call that a call repeats, and those that do its work in its place.

    A call that takes the key of a revoked one over, before that is freed, does no work but its own:
    were the key free, it would do the same. The marker *revoked* stays, for it outlives a publisher
    that dies before it sends the newer message.
    """
    found: list[int] = []
    first = scene.calls[at].first
    while first is not None and first != at and first not in found:
        found.append(first)
        call = scene.calls[first]
        first = None if call.revoked else call.replaced_by
    return found


def _both_ran(setting: CallSetting, scene: Scene, later: int, first: int) -> bool:
    if setting.callers[later].policy == "replace":
        return False  # it replaces what waits, and follows what runs
    ran = scene.calls[first].bodies and not scene.calls[first].spared
    return bool(ran and scene.calls[later].bodies and not scene.calls[later].spared)


def _doer(scene: Scene, at: int) -> int | None:
    """Return the call that does a call's work in its place."""
    place: int | None = at
    seen: set[int] = set()
    while place is not None and place not in seen:
        seen.add(place)
        call = scene.calls[place]
        if call.bodies or call.spared or call.excused:
            return place
        place = call.stands_for if call.replaced_by is None else call.replaced_by
    return None


def _serves(setting: CallSetting, scene: Scene, at: int, doer: int) -> bool:
    call, by = scene.calls[at], scene.calls[doer]
    if call.blind:
        return True
    if MODES[setting.mode].for_window:
        return True  # who calls within the window is served by what ran in it
    if setting.callers[at].policy == "replace" and by.sent < call.sent:
        return False
    if setting.stops and age(setting, scene, doer) > age(setting, scene, at):
        return True
    # Who shares the work shares its fate.
    return by.spared or by.excused or doer in call.served


def _label(at: int, text: str) -> Label:
    return f"{NAMES[at]}: {text}", ()
