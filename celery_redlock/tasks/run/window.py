"""
The window of a message (`until_expired`), counted on this host's clock.

A window is counted by the clocks of the nodes. The clocks of publisher and worker may differ by
minutes, so this module compares no moment of a message with this host's time where it can avoid
that: the nodes know how long the reservation has left, and the message knows how much longer than
that the window lasts, because the publisher read both moments from one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from celery_redlock.core import Client, Reservation
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.tasks.border import RequestLike
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.tasks.message import expiry
from celery_redlock.tasks.message.envelope import Envelope
from celery_redlock.tasks.message.expiry import is_continuation, lifetime
from celery_redlock.tasks.message.owner_label import parse_owner
from celery_redlock.tasks.rules.facts import Role

#: First pause in seconds before a worker reads a reservation again: it may have received the
#: message before the publisher extended the reservation.
FIRST_RECHECK = 0.002


def on_own_clock(
    client: Client, options: LockOptions, request: RequestLike, envelope: Envelope
) -> tuple[Envelope, float | None]:
    """
    Return the envelope with its moments on this host's clock, and when the window ends.

    The end is on the client's monotonic clock; None without a window.

    Guarantee: the window lasts no longer than `lock_window` from now. It does not depend on the
    publisher's clock if the reservation is still stored, or an earlier part of the task is about to
    hand it over. Limit: otherwise (the worker was lost, or no quorum replies) the publisher's clock
    is compared with this host's.

    Args:
        client: the app's client.
        options: the options of the message's task.
        request: the message's request.
        envelope: the message's header.
    """
    window, until, reservation = options.window, envelope.window_until, envelope.reservation
    if window is None:
        return envelope, None
    if until is None or (reservation is None and not is_continuation(request)):
        # The key has not been held for this message before.
        return envelope, client.transport.now() + window
    now = time.time()
    least, most = 0.0, window
    if reservation is not None:
        beyond = until - reservation.expires_at
        read = partial(_read_remaining, client, options, request, reservation)
        life, surely = _remaining(client, read, window - beyond)
        now = time.time()
        if life is not None:
            # If unsure, it is unextended or nearly expired: the publisher's clock decides.
            least = life + beyond
            most = least if surely else window - (expiry.PUBLISH_GRACE - life)
            # From here on the reservation's moments are those of this host's clock.
            reservation = replace(reservation, expires_at=now + life)
    left = max(0.0, min(max(until - now, least), most, window))
    envelope = replace(envelope, reservation=reservation, window_until=now + left)
    return envelope, client.transport.now() + left


def _remaining(
    client: Client, read: Callable[[], float | None], whole: float
) -> tuple[float | None, bool]:
    """
    Return how long a reservation has left, and whether that is sure.

    It is not sure while the publisher may not have extended the reservation yet.

    Args:
        client: the app's client.
        read: returns how long the reservation has left on the nodes.
        whole: how long the reservation lasts once the message is due, or longer.
    """
    transport, grace = client.transport, expiry.PUBLISH_GRACE
    give_up_at = transport.now() + client.settings.node_timeout
    pause = FIRST_RECHECK
    while True:
        life = read()
        if life is None or life > grace or whole <= grace:
            return life, True
        if transport.now() + pause > give_up_at:
            return life, False
        transport.sleep(pause)
        pause *= 2


def _read_remaining(
    client: Client, options: LockOptions, request: RequestLike, reservation: Reservation
) -> float | None:
    """Return how long a reservation still lasts on the nodes; None where it is not stored."""
    if not reservation.node_keys:
        return None
    try:
        held = client.inspect(reservation.node_keys)
    except QuorumUnavailable:
        return None
    lives = [it.expires_in for it in held if it is not None and it.owner == reservation.owner]
    if lives:
        return max(0.0, *lives)
    holders = [parse_owner(it.owner) for it in held if it is not None]
    if is_continuation(request) and any(
        holder is not None and holder.role is Role.RUNNING and holder.is_of(request.id)
        for holder in holders
    ):
        # The reservation is handed over in a moment, and its time begins then.
        return lifetime(options, continuation=True)
    return None
