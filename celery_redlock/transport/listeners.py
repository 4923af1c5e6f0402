"""
Listeners, through which nodes wake the waiters that may try again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from celery_redlock._greenlets.polling import WakeupPipe
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock.protocol.keys import wake_channel


class WakeUps(Protocol):
    """The wake-ups that nodes publish."""

    def add(self, listener: Listener, channels: Iterable[str]) -> None:
        """Begin to call a listener for some channels. Idempotent."""

    def remove(self, listener: Listener, channels: Iterable[str]) -> None:
        """Stop calling a listener for some channels. Idempotent."""

    def are_live(self, channels: frozenset[str]) -> bool:
        """Return whether a quorum of nodes publishes to all of these channels."""


class Listeners:
    """
    Listeners by their channels. Thread-safe.

    Attributes:
        lock: for very short sections.
    """

    def __init__(self) -> None:
        self.lock = native_lock()
        self._by_channel: dict[str, set[Listener]] = {}

    @property
    def channels(self) -> frozenset[str]:
        """The channels that have listeners."""
        with self.lock:
            return frozenset(self._by_channel)

    def add(self, listener: Listener, channels: Iterable[str]) -> None:
        """Begin to call a listener for some channels. Idempotent."""
        with self.lock:
            for channel in channels:
                self._by_channel.setdefault(channel, set()).add(listener)

    def remove(self, listener: Listener, channels: Iterable[str]) -> None:
        """Stop calling a listener for some channels. Idempotent."""
        with self.lock:
            for channel in channels:
                there = self._by_channel.get(channel)
                if there is not None:
                    there.discard(listener)
                    if not there:
                        del self._by_channel[channel]

    def of(self, channel: str) -> tuple[Listener, ...]:
        """Return the listeners of a channel."""
        with self.lock:
            return tuple(self._by_channel.get(channel, ()))


class Listener:
    """
    Callbacks for the wake-ups on some channels.

    Attributes:
        channels: the channels.
        on_wake: called with the name of each waiter that is woken on them, and the channel, once
            for each node, in a native thread; it must not block.
        on_live: called in a native thread, too, when a quorum of nodes has begun to publish to the
            listener, which has missed everything that they published before.
        on_close: called when the transport is about to be closed, and then `on_live`.
    """

    def __init__(
        self,
        wake_ups: WakeUps,
        channels: Iterable[str],
        on_wake: Callable[[str, str], None],
        on_live: Callable[[], None],
    ) -> None:
        self.channels = frozenset(channels)
        self.on_wake = on_wake
        self.on_live = on_live
        self.on_close: Callable[[], None] = lambda: None
        self._wake_ups = wake_ups
        wake_ups.add(self, self.channels)

    @property
    def is_live(self) -> bool:
        """Whether a quorum of nodes publishes to it."""
        return self._wake_ups.are_live(self.channels)

    def move(self, channels: Iterable[str]) -> None:
        """Listen to other channels from now on."""
        before, self.channels = self.channels, frozenset(channels)
        self._wake_ups.add(self, self.channels)
        self._wake_ups.remove(self, before - self.channels)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        self._wake_ups.remove(self, self.channels)


class WaitingCall(Listener):
    """
    A call that waits for keys in its thread or greenlet.

    Args:
        wake_ups: the nodes' wake-ups.
        node_keys: the keys.
        name: the call's name as a waiter.
    """

    def __init__(self, wake_ups: WakeUps, node_keys: Sequence[str], name: str) -> None:
        self._pipe = WakeupPipe()
        self._name = name
        super().__init__(wake_ups, map(wake_channel, node_keys), self._woken, self._pipe.wake)

    def _woken(self, name: str, channel: str) -> None:
        if name == self._name:
            self._pipe.wake()

    def sleep(self, seconds: float) -> bool:
        """Sleep for this time, or until the call is woken; return whether it was."""
        return self._pipe.wait(seconds)

    def close(self) -> None:
        """Listen no more. Idempotent."""
        super().close()
        self._pipe.close()
