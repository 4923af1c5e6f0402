"""
The connections of one channel: made off the caller's path, replaced when they break or stay silent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from celery_redlock.protocol import Command, Kind
from celery_redlock.transport.bell import Bell
from celery_redlock.transport.clock import now as clock
from celery_redlock.transport.dial import describe_failure
from celery_redlock.transport.link import Link, LinkBrokenError
from celery_redlock.transport.native import refuse_at_end, start_native_thread
from celery_redlock.transport.poller import READ, WRITE, as_milliseconds, new_poller
from celery_redlock.transport.primitives import close_greenlet_hub, native_lock

if TYPE_CHECKING:
    from celery_redlock.transport.redis import DialAttempts, RedisTransport

#: A connection attempt that was made a moment ago is waited for although a quorum is there: a lease
#: on all nodes bears more than one on a bare quorum.
_GRACE = 0.05

#: A node that has been silent for so long may be gone for good behind a dead connection.
_SILENT = 2.0


class Connections:
    """
    One link for each node, or None.

    Links are made in short-lived threads (greenlets where threads are patched) which hand them over
    through `_arrived` and ring the bell that the poll listens to.

    Attributes:
        links: by node.
        complete: whether every node has a link that answers; if so, `ensure` has nothing to do.
    """

    def __init__(
        self, transport: RedisTransport, greet: Callable[[int, Link], None], *, native: bool
    ) -> None:
        self.links: list[Link | None] = [None] * len(transport.dialers)
        self.complete = False
        self._transport = transport
        self._native = native
        self._poller = new_poller(native=native)
        self._index_of: dict[int, int] = {}
        self._arrived: deque[tuple[int, Link | None, str]] = deque()
        self._greet = greet
        self._dialing: dict[int, float] = {}
        self._retired: list[tuple[float, Link]] = []
        self._closed = False
        self._handing_over = native_lock()
        self._bell = Bell()
        self._poller.register(self._bell.fd, READ)
        # A poll of its own: unread answers on the links must not turn the wait into a spin.
        self._arrivals = new_poller(native=native)
        self._arrivals.register(self._bell.fd, READ)

    def ensure(self, now: float, limit: float) -> list[int]:
        """
        Start whatever connections are due, and wait until a quorum is there, within bounds.

        Args:
            now: the time.
            limit: seconds to wait at most.

        Returns:
            The nodes whose connections are new.
        """
        fresh = self.take_arrivals()
        health = self._transport.health
        patience = self._transport.node_timeout
        complete = True
        for index, link in enumerate(self.links):
            if link is None or link.overdue(now, _SILENT):
                complete = False
                if not health[index].paused(now):
                    self._dial(index)
            elif link.overdue(now, patience):
                complete = False
        self.complete = complete
        if self._usable(now) < self._transport.quorum:
            # A quorum needs them: nodes in their pause as well.
            for index, link in enumerate(self.links):
                if link is None:
                    self._dial(index)
        while (left := min(self._awaited_until(now), now + limit) - clock()) > 0:
            self._arrivals.poll(as_milliseconds(left))
            fresh += self.take_arrivals()
        while self._retired and self._retired[0][0] < now:
            self._retired.pop(0)[1].close()
        return fresh

    def ready(self, left: float) -> Iterator[tuple[int, Link]]:
        """Wait at most so long, and yield the links that have something to read."""
        for fd, events in self._poller.poll(as_milliseconds(left)):
            index = self._index_of.get(fd)
            if index is None:
                self._bell.hush()
                continue
            link = self.links[index]
            if link is None:
                continue
            if events & WRITE:
                # What is wrong with the connection shows when it is read.
                with contextlib.suppress(LinkBrokenError):
                    link.flush()
                if not link.clogged:
                    self._poller.modify(fd, READ)
            if events & ~WRITE:
                yield index, link

    def await_writable(self, link: Link) -> None:
        """Let `ready` pass on what the node's buffer did not take."""
        self._poller.modify(link.fd, READ | WRITE)

    def drop(self, index: int, reason: str) -> None:
        """Close a broken link; what it still owed to the node is kept for the next one."""
        link = self.links[index]
        if link is None:
            return
        now = clock()
        self._transport.health[index].failed(reason, now)
        self._detach(index, link)
        self._owe_again(index, link)
        link.close()

    def close(self) -> None:
        """Close all links, also those that are still being made."""
        self._closed = True
        for index, link in enumerate(self.links):
            if link is not None:
                self._detach(index, link)
                link.close()
        for _, link in self._retired:
            link.close()
        self._retired.clear()
        self._discard_arrivals()
        self._bell.close()

    def abandon(self) -> None:
        """Drop everything without a word on the wire."""
        self.links[:] = [None] * len(self.links)
        self._bell.close_in_child()

    def owe(self, index: int, command: Command) -> None:
        """
        Keep a command for when there is a connection to the node.

        The thread that makes one says it; if it has just handed one over, `take_arrivals` shows it.
        """
        with self._handing_over:
            self._transport.health[index].owe(command)

    def _awaited_until(self, now: float) -> float:
        """Return until when the connection attempts that are under way are worth a wait."""
        health = self._transport.health
        lacking = [index for index in self._dialing if self.links[index] is None]
        if lacking and self._usable(now) < self._transport.quorum:
            return now + self._patience()
        begun = [self._dialing[index] for index in lacking if health[index].reason is None]
        return max(begun, default=0.0) + _GRACE

    def _usable(self, now: float) -> int:
        return sum(
            link is not None and (health.reason is None or not health.paused(now))
            for link, health in zip(self.links, self._transport.health, strict=True)
        )

    def _patience(self) -> float:
        # A first connection may need a name look-up and a TLS handshake; later ones must not hold
        # up an attempt for longer than a node's answer may.
        first = any(not self._transport.health[index].ever for index in self._dialing)
        return self._transport.connect_timeout if first else self._transport.node_timeout

    def _dial(self, index: int) -> None:
        if index in self._dialing:
            return
        self._dialing[index] = clock()
        attempts = self._transport.dialing
        attempt = object()
        run = partial(self._dial_and_hand_over, index, attempts, attempt)
        try:
            attempts.begin(attempt)
            if self._native:
                start_native_thread(run, "redlock-dial")
            else:
                refuse_at_end()
                threading.Thread(target=run, daemon=True, name="redlock-dial").start()
        except RuntimeError as exc:
            # The process may have no more threads; that is one node less, not the caller's end.
            attempts.end(attempt)
            self._arrived.append((index, None, str(exc)))
            self._bell.ring()
        except BaseException as exc:
            # From a signal's handler; the thread may be there or not.
            attempts.end(attempt)
            if isinstance(exc, KeyError) and exc.__context__ is not None:
                # Thread.start stumbles over its own cleaning up and hides what has struck it.
                raise exc.__context__ from None
            raise

    def _dial_and_hand_over(self, index: int, attempts: DialAttempts, attempt: object) -> None:
        link: Link | None = None
        reason = "the connection attempt was broken off"
        try:
            link, run_id = self._transport.dialers[index].dial(native=self._native)
            reason = self._transport.same_server(index, run_id)
            if reason:
                link.close()
                link = None
        except Exception as exc:
            reason = describe_failure(exc)
        finally:
            try:
                self._hand_over(index, link, reason)
                if self._closed:
                    self._discard_arrivals()
                else:
                    self._bell.ring()
                if self._native:
                    close_greenlet_hub()
            finally:
                attempts.end(attempt)

    def _hand_over(self, index: int, link: Link | None, reason: str) -> None:
        with self._handing_over:
            # Here and not where the link is taken over: that may be never, if nobody wants a lock.
            if link is not None:
                try:
                    self._greet(index, link)
                except LinkBrokenError as exc:
                    link.close()
                    link, reason = None, str(exc)
            self._arrived.append((index, link, reason))

    def take_arrivals(self) -> list[int]:
        """Take over the connections that have been made; return their nodes."""
        if not self._arrived:
            return []
        self._bell.hush()
        fresh = []
        now = clock()
        while self._arrived:
            index, link, reason = self._arrived.popleft()
            self._dialing.pop(index, None)
            health = self._transport.health[index]
            if link is None:
                health.failed(reason, now)
                continue
            health.ever = True
            health.works()
            self._attach(index, link, now)
            fresh.append(index)
        return fresh

    def _attach(self, index: int, link: Link, now: float) -> None:
        old = self.links[index]
        if old is not None and not old.overdue(now, self._transport.node_timeout):
            link.close()
            return
        if old is not None:
            # The old connection may lead to nowhere, or to a server that will wake and run what is
            # in its buffer, the release included. So it is kept open for one longest lease.
            self._detach(index, old)
            self._owe_again(index, old)
            self._retired.append((now + self._transport.max_ttl, old))
        self.links[index] = link
        self._index_of[link.fd] = index
        self._poller.register(link.fd, READ)

    def _detach(self, index: int, link: Link) -> None:
        self.links[index] = None
        self.complete = False
        del self._index_of[link.fd]
        self._poller.unregister(link.fd)

    def _owe_again(self, index: int, link: Link) -> None:
        health = self._transport.health[index]
        for entry in link.pending:
            if entry.command.kind is Kind.RELEASE:
                health.owe(entry.command)

    def _discard_arrivals(self) -> None:
        # By the closing thread and the dialing one, at the same time.
        with contextlib.suppress(IndexError):
            while True:
                link = self._arrived.popleft()[1]
                if link is not None:
                    link.close()
