"""
The header `redlock` of a message: its identity, its reservation and its waiting time.

Any process with access to the queue can write headers, and clocks may be wrong. A moment that
decides how long a key stays on the nodes is therefore limited by the task's own options.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from kombu.serialization import registry

from celery_redlock._log import event_logger
from celery_redlock.core import Reservation
from celery_redlock.protocol.commands import MAX_RANK, Waiter
from celery_redlock.protocol.keys import can_hold_lock
from celery_redlock.protocol.timing import milliseconds
from celery_redlock.tasks.border import (
    AppLike,
    ReceivedRequest,
    RequestLike,
    TaskLike,
    app_itself,
    ignores_result,
)
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message.expiry import NEXT_RUN_TTLS, is_continuation, lifetime
from celery_redlock.tasks.message.header_values import read_count, read_moment, read_text
from celery_redlock.tasks.message.owner_label import LONGEST_ID, label_id, parse_owner
from celery_redlock.tasks.message.tick import LONGEST_INTERVAL, Tick
from celery_redlock.tasks.rules.facts import Role

logger = event_logger(__name__)

HEADER = "redlock"

DIGEST = re.compile("[0-9a-f]{32}")

#: Longest nonce in characters; `fresh_nonce` makes 16.
LONGEST_NONCE = 64
#: Limits of a reservation: its number of keys and their total length, as all go to each node.
MAX_KEYS = 1000
LONGEST_KEYS = 1_000_000
#: Longest owner value in characters. It may be written to the nodes unchanged.
LONGEST_OWNER = 4000
#: Longest total of a header's `waits_for`, in characters. Without these no release wakes a message.
LONGEST_WAITS_FOR = 20_000
#: Largest believable difference between the clocks of two hosts, in seconds.
MAX_CLOCK_SKEW = 86_400.0

#: Seconds for which nodes keep a wait queue after its latest waiter: a delay, and time in a queue.
REMEMBERED_FOR = 900.0

#: For each app, 1 or -1, by which a priority becomes a rank: to ask kombu takes 0.1 ms.
_signs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def waiter_name(task_id: str) -> str:
    """Return the name of a message as a waiter; all of its deliveries share it."""
    short = len(task_id) <= LONGEST_ID
    return task_id if short else hashlib.sha256(task_id.encode()).hexdigest()


def rank_of(app: AppLike, delivery_info: Mapping[str, Any] | None) -> int:
    """
    Return the rank of a message, from what came with its delivery; see `Waiter.rank`.

    Celery hands a message's `priority` to the broker, and brokers disagree on its meaning: with
    Redis, 0 is the most urgent; with RabbitMQ and all others that order messages, the largest
    number is. A message that names none has 0 with each of them.
    """
    priority = (delivery_info or {}).get("priority")
    if not isinstance(priority, int) or priority <= 0:  # any program may have sent it
        return 0
    return min(priority, MAX_RANK) * _sign_of(app_itself(app))


def _sign_of(app: AppLike) -> int:
    sign = _signs.get(app)
    if sign is None:
        driver = app.connection_for_read().get_transport_cls().driver_type
        sign = _signs[app] = 1 if driver == "redis" else -1  # Sentinel's is "redis" too
    return sign


def fresh_nonce() -> str:
    """Return a value that identifies one publish; all deliveries of its message share it."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitHistory:
    """
    The time that one message has waited for its lock.

    Attributes:
        first_seen: when a worker first failed to acquire the lock, in seconds since the epoch.
        requeues: how often workers have requeued the message since.
        retries: the task's own retry count meanwhile; a retry begins a new history.
    """

    first_seen: float
    requeues: int
    retries: int

    def waited(self, now: float) -> float:
        """Return the seconds since the first attempt; clocks of different hosts may disagree."""
        return max(0.0, now - self.first_seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """
    The call of which a message is a duplicate: it held the lock when the message was sent.

    Attributes:
        task_id: its id, as in an owner value (`label_id`).
        marker: digest of its message's dedupe key.
    """

    task_id: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """
    The content of the header `redlock`.

    Attributes:
        nonce: distinguishes two publishes of one task id; "" if the publisher set none.
        reservation: the lock that the publisher acquired, if any.
        handovers: how often the lock was handed over to a retry or a replacement.
        sent: when the call was sent, in seconds since the epoch, where the newest call of a task
            wins its lock, or the newest of a burst runs; a retry and a replacement have the time
            of their call.
        wait_history: how long the message has waited for its lock, if it has.
        window_until: when the window of the key ends (`until_expired`), in seconds since the epoch;
            a retry does not begin another window.
        begun: whether a body may have begun for this message, or for another of its tick.
        tick: the tick that a schedule sent the message for, if any.
        duplicate_of: the call of which the message is a duplicate that had to be sent, if any.
        after: id, as in an owner value, of a task that had ended when the message was sent. That
            task may still hold the lock for a moment; the message waits for its release.
        waits_for: node keys that were held when the message was requeued.
        returns: how often busy workers have returned it to its queue since.
    """

    nonce: str = ""
    reservation: Reservation | None = None
    handovers: int = 0
    sent: float | None = None
    wait_history: WaitHistory | None = None
    window_until: float | None = None
    begun: bool = False
    tick: Tick | None = None
    duplicate_of: Original | None = None
    after: str | None = None
    waits_for: tuple[str, ...] = ()
    returns: int = 0

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None) -> Self:
        """Read a message's headers; values that make no sense count as absent."""
        header = (headers or {}).get(HEADER)
        if not isinstance(header, Mapping):
            return cls()
        return cls(
            nonce=read_text(header.get("nonce"), LONGEST_NONCE) or "",
            reservation=_reservation(header.get("lock")),
            handovers=read_count(header.get("handovers")) or 0,
            sent=read_moment(header.get("sent")),
            wait_history=_wait_history(header),
            window_until=read_moment(header.get("window_until")),
            begun=header.get("begun") is True,
            tick=Tick.read(header.get("tick")),
            duplicate_of=_original(header.get("duplicate_of")),
            after=read_text(header.get("after"), LONGEST_ID),
            waits_for=bounded_waits_for(header.get("waits_for")),
            returns=read_count(header.get("returns")) or 0,
        )

    def write(self) -> dict[str, Any]:
        """Return the header's value."""
        header: dict[str, Any] = {"nonce": self.nonce}
        if self.handovers:
            header["handovers"] = self.handovers
        if self.sent is not None:
            header["sent"] = self.sent
        if self.reservation is not None:
            lock = self.reservation
            header["lock"] = {
                "keys": list(lock.node_keys),
                "owner": lock.owner,
                "expires_at": lock.expires_at,
            }
        if self.window_until is not None:
            header["window_until"] = self.window_until
        if self.begun:
            header["begun"] = True
        if self.tick is not None:
            header["tick"] = self.tick.write()
        if self.duplicate_of is not None:
            header["duplicate_of"] = {
                "id": self.duplicate_of.task_id,
                "marker": self.duplicate_of.marker,
            }
        if self.after is not None:
            header["after"] = self.after
        if self.wait_history is not None:
            header["first_seen"] = self.wait_history.first_seen
            header["requeues"] = self.wait_history.requeues
            header["retries"] = self.wait_history.retries
        if self.waits_for:
            header["waits_for"] = list(self.waits_for)
        if self.returns:
            header["returns"] = self.returns
        return header

    def waiter(self, app: AppLike, request: RequestLike | ReceivedRequest) -> Waiter:
        """
        Return as which nodes know the message that was requeued with this header.

        Args:
            app: the app of its task.
            request: its request, in the worker's main process or in that of its body.
        """
        since = 0.0 if self.wait_history is None else self.wait_history.first_seen
        keep_ms = milliseconds(REMEMBERED_FOR)
        rank = rank_of(app, request.delivery_info)
        return Waiter(waiter_name(request.id), milliseconds(since), keep_ms, rank=rank)

    def waiting(
        self, wait_history: WaitHistory, *, begun: bool, waits_for: Sequence[str] = ()
    ) -> Self:
        """Return the envelope of the same message after a requeue."""
        return replace(
            self,
            wait_history=wait_history,
            begun=begun,
            waits_for=bounded_waits_for(waits_for),
            returns=0,
        )


def send_again(
    task: TaskLike,
    request: RequestLike,
    envelope: Envelope,
    *,
    queue: str | None = None,
    countdown: float | None = None,
    **how: Any,
) -> None:
    """
    Send the same message again, with this envelope, and without an ETA unless one is given.

    Its arguments are encoded as they were, which the serializer of its task may not be able to.

    Args:
        task: the message's task.
        request: the message's context.
        envelope: its new header.
        queue: where it goes; by default, where it came from.
        countdown: seconds until its ETA.
        how: options of `apply_async` for this one call.
    """
    headers = {**(request.as_execution_options()["headers"] or {}), HEADER: envelope.write()}
    encoding = {
        "serializer": registry.type_to_name.get((request.properties or {}).get("content_type")),
        "compression": getattr(request, "compression", None),
    }
    how = {**{name: value for name, value in encoding.items() if value}, **how}
    ignored = ignores_result(task, request)
    again = task.signature_from_request(
        request, queue=queue, headers=headers, ignore_result=ignored, countdown=countdown
    )
    again.apply_async(**how)


def within_bounds(
    envelope: Envelope, task: TaskLike, request: RequestLike, options: LockOptions
) -> Envelope:
    """
    Return the envelope without values that are out of bounds, and log a warning about these.

    Args:
        envelope: read from the request's header.
        task: the task.
        request: its request, which is due.
        options: the task's lock options.
    """
    dropped, now = [], time.time()
    for field, moment, latest, changes in _limits(envelope, request, options, now):
        if moment is not None and moment > latest:
            dropped.append(f"{field}, {moment - now:.0f} s from now (at most {latest - now:.0f} s)")
            envelope = replace(envelope, **changes)
    if dropped:
        logger.warning(
            "header-values-ignored",
            "Task %(task)s[%(task_id)s] has header values that are out of bounds and are ignored: "
            "%(reason)s. Its publisher runs other code or has a wrong clock, or another program "
            "writes into its queue.",
            task=task.name,
            task_id=label_id(str(request.id)),
            reason="; ".join(dropped),
        )
    wait_history = envelope.wait_history
    if wait_history is None or wait_history.first_seen <= now:
        return envelope
    return replace(envelope, wait_history=replace(wait_history, first_seen=now))


def with_bounded_lifetime(
    envelope: Envelope, request: RequestLike, options: LockOptions
) -> Envelope:
    """Return the envelope with a reservation that lasts no longer than the options allow."""
    lock = envelope.reservation
    latest = time.time() + _longest_lifetime(request, options)
    if lock is None or lock.expires_at <= latest:
        return envelope
    return replace(envelope, reservation=replace(lock, expires_at=latest))


def _reservation(lock: Any) -> Reservation | None:
    if not isinstance(lock, Mapping) or not isinstance(lock.get("keys"), list | tuple):
        return None
    keys = tuple(lock["keys"])
    # There are no keys if the publisher took only rates, which have counted the call for good.
    if len(keys) > MAX_KEYS:
        return None
    if any(read_text(key, LONGEST_KEYS) is None or not can_hold_lock(key) for key in keys):
        return None
    if sum(map(len, keys)) > LONGEST_KEYS:
        return None
    value = read_text(lock.get("owner"), LONGEST_OWNER)
    expires_at = read_moment(lock.get("expires_at"))
    owner = parse_owner(value)
    # A process that has read the owner value of a running task must not take its lock over.
    if value is None or owner is None or owner.role is not Role.QUEUED or expires_at is None:
        return None
    return Reservation(node_keys=keys, owner=value, expires_at=expires_at)


def bounded_waits_for(keys: Any) -> tuple[str, ...]:
    """Return the keys that a message waits for; none if they are too many for a header."""
    if not isinstance(keys, list | tuple) or len(keys) > MAX_KEYS:
        return ()
    texts = (key for key in keys if read_text(key, LONGEST_WAITS_FOR) is not None)
    found = tuple(key for key in texts if can_hold_lock(key))
    return found if sum(map(len, found)) <= LONGEST_WAITS_FOR else ()


def _original(value: Any) -> Original | None:
    if not isinstance(value, Mapping):
        return None
    task_id = read_text(value.get("id"), LONGEST_ID)
    marker = read_text(value.get("marker"), LONGEST_ID)
    if task_id is None or marker is None or not DIGEST.fullmatch(marker):
        return None
    return Original(task_id=task_id, marker=marker)


def _wait_history(header: Mapping[str, Any]) -> WaitHistory | None:
    first_seen = read_moment(header.get("first_seen"))
    requeues, retries = read_count(header.get("requeues")), read_count(header.get("retries"))
    if first_seen is None or requeues is None or retries is None:
        return None
    return WaitHistory(first_seen=first_seen, requeues=requeues, retries=retries)


def _longest_lifetime(request: RequestLike, options: LockOptions) -> float:
    """Return for how many seconds a due message may keep its reservation."""
    life = lifetime(options, continuation=is_continuation(request))
    return max(life, NEXT_RUN_TTLS * options.ttl) if options.stops else life


def _limits(
    envelope: Envelope, request: RequestLike, options: LockOptions, now: float
) -> Iterator[tuple[str, float | None, float, dict[str, Any]]]:
    """Yield each moment with its upper limit and the changes to make beyond it."""
    latest, lock, tick = now + MAX_CLOCK_SKEW, envelope.reservation, envelope.tick
    if lock is not None:
        life = _longest_lifetime(request, options)
        shorter = replace(lock, expires_at=now + life)
        yield "lock.expires_at", lock.expires_at, latest + life, {"reservation": shorter}
    if envelope.window_until is not None:
        window = math.inf if options.window is None else options.window
        yield "window_until", envelope.window_until, latest + window, {"window_until": None}
    yield "sent", envelope.sent, latest, {"sent": None}
    if envelope.wait_history is not None:
        yield "first_seen", envelope.wait_history.first_seen, latest, {"wait_history": None}
    if tick is not None:
        endless = replace(tick, until=None)
        yield "tick.until", tick.until, tick.due + LONGEST_INTERVAL, {"tick": endless}
        yield "tick.due", tick.due, latest, {"tick": None}
