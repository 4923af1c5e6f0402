"""
The worker's log of its lock nodes: a lost quorum, nodes that do not vote, and the end of each.

One thread of the worker's main process writes it for all processes of the pool: a task that misses
a quorum writes a line into a pipe that was made before the pool forked. The thread also polls the
nodes, rarely while they vote, so it notices an outage that no task has met, and the end of each
outage. A task that gets its lock reports nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery_redlock._greenlets.polling import PIPE_BUF, READ, Pipe, as_milliseconds, new_poller
from celery_redlock._greenlets.threads import call_in_app, start_native_thread
from celery_redlock._greenlets.unpatched import native_lock
from celery_redlock._log import event_logger
from celery_redlock.core.failures import describe_problems, node_problems
from celery_redlock.core.node_admin import poll_nodes
from celery_redlock.core.outage import Change, Notice, Outage
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.protocol.texts import shortened
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.border import AppLike, TaskLike, app_itself
from celery_redlock.tasks.config.client import client_for
from celery_redlock.tasks.config.options import LockOptions
from celery_redlock.transport.clock import now as clock

logger = event_logger(__name__)

#: Seconds between two polls during an outage.
POLL_EVERY = 1.0
#: Seconds between two polls while a minority of nodes does not vote.
POLL_MINORITY = 5.0
#: Seconds between two polls otherwise, but at most this share of a quarantine, to notice each one.
POLL_AT_REST = 20.0
QUARANTINE_SHARE = 1 / 3


class NodeWatch:
    """
    The log of a worker about the lock nodes of its app.

    It is made before the pool forks and started afterwards. Children and threads of the worker only
    call `report`.

    Args:
        app: the worker's app.
    """

    def __init__(self, app: AppLike) -> None:
        # Made here and not in the thread, which must take none of the application's locks.
        self._client = client_for(app)
        self._outage = Outage()
        self._pipe = Pipe()
        self._lock = native_lock()
        #: Whether the worker has ended in this process.
        self.is_stopped = False
        self._has_thread = False
        self._rest = b""
        _watches[app] = self

    def start(self) -> None:
        """Begin to poll and to log."""
        self._has_thread = True
        start_native_thread(self._run, "redlock-node-watch")

    def stop(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
            if self._has_thread:
                with contextlib.suppress(BlockingIOError):
                    self._pipe.write(b"\n")
            else:
                self._pipe.close()

    terminate = stop

    def report(self, at: float, nodes: Mapping[str, str], met_by: str) -> None:
        """
        Note that a task has missed a quorum. Never waits: it drops the report if the pipe is full.

        Args:
            at: when, on the transport's clock, which is the same in all processes.
            nodes: the reason of each node that did not vote.
            met_by: the task, and what becomes of it.
        """
        line = _encoded(at, {name: shortened(why) for name, why in nodes.items()}, met_by)
        with self._lock, contextlib.suppress(OSError):
            if not self.is_stopped:  # then another file may have the pipe's number
                self._pipe.write(line)

    def _run(self) -> None:
        poller = new_poller()
        poller.register(self._pipe.fd, READ)
        poll_at = clock()
        while not self.is_stopped:
            try:
                poller.poll(as_milliseconds(poll_at - clock()))
                self._take_reports()
                if clock() >= poll_at and not self.is_stopped:
                    self._poll()
                    poll_at = clock() + self._rest_between_polls()
                poll_at = min(poll_at, clock() + self._rest_between_polls())
            except Exception:
                call_in_app(logger.exception, "node-poll-missed", "A poll of the lock nodes failed")
                poll_at = clock() + POLL_AT_REST
        with self._lock:
            self._pipe.close()

    def _rest_between_polls(self) -> float:
        if self._outage.is_urgent:
            return POLL_EVERY
        rest = POLL_MINORITY if self._outage.nodes else POLL_AT_REST
        return min(rest, QUARANTINE_SHARE * self._client.settings.max_ttl)

    def _take_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := self._pipe.read(65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        for at, nodes, met_by in map(json.loads, filter(None, lines)):
            for notice in self._outage.task_failed(at):
                call_in_app(self._log, notice, nodes, met_by)

    def _poll(self) -> None:
        client, at = self._client, clock()
        polled = poll_nodes(client)
        votes = dict(zip(client.node_names, polled.votes, strict=True))
        for notice in self._outage.polled(at, clock(), votes, polled.needed):
            problems = node_problems(polled, client.node_names)
            call_in_app(self._log, notice, problems, "No task has met it yet.")

    def _log(self, notice: Notice, problems: Mapping[str, str], met_by: str) -> None:
        node_count = len(self._client.node_names)
        if notice.node:
            _log_node(notice, problems, node_count)
        elif notice.change is Change.QUORUM_LOST:
            since = datetime.fromtimestamp(time.time() - (clock() - notice.seconds)).astimezone()
            logger.warning(
                "quorum-lost",
                "No quorum of lock nodes since %(since)s: %(needed)d of %(node_count)d nodes have "
                "to vote. %(reason)s. %(met_by)s The end of the outage will be logged.",
                since=f"{since:%H:%M:%S}",
                needed=quorum(node_count),
                node_count=node_count,
                reason=describe_problems(problems),
                met_by=met_by,
                nodes=", ".join(problems),
            )
        elif notice.change is Change.QUORUM_MET:
            logger.warning(
                "quorum-loss-met",
                "Still no quorum of lock nodes. %(met_by)s",
                met_by=met_by,
            )
        else:
            still = f" Still without a vote: {describe_problems(problems)}." if problems else ""
            logger.warning(
                "quorum-back",
                "A quorum of lock nodes votes again, after %(seconds).1f s.%(still)s",
                seconds=notice.seconds,
                still=still,
                nodes=", ".join(problems),
            )


_watches: weakref.WeakKeyDictionary[Any, NodeWatch] = weakref.WeakKeyDictionary()


def _log_node(notice: Notice, problems: Mapping[str, str], node_count: int) -> None:
    if notice.change is Change.NODE_SILENT:
        logger.warning(
            "node-silent",
            "Lock node %(node)s does not vote: %(reason)s. %(needed)d of %(node_count)d nodes are "
            "needed, and the others are a quorum. Its recovery will be logged.",
            node=notice.node,
            reason=problems.get(notice.node, "no answer in time").rstrip("."),
            needed=quorum(node_count),
            node_count=node_count,
        )
    elif notice.change is Change.NODE_QUARANTINED:
        logger.warning(
            "node-quarantined",
            "Lock node %(node)s is quarantined for %(seconds).3g s more after its first use, a "
            "restart, a loss of data or a change of role, and grants no lock until then; "
            "%(needed)d of %(node_count)d nodes are needed. To avoid this for brand-new nodes, "
            "run celery-redlock init before their first use.",
            node=notice.node,
            seconds=notice.seconds,
            needed=quorum(node_count),
            node_count=node_count,
        )
    elif notice.change is Change.NODE_VOTES:
        logger.warning(
            "quarantine-ended",
            "Lock node %(node)s votes again: its quarantine has ended.",
            node=notice.node,
        )
    else:
        logger.warning(
            "node-votes-again",
            "Lock node %(node)s votes again.",
            node=notice.node,
        )


_OUTCOMES = {
    "requeue": "is requeued until a quorum votes, for up to lock_give_up_after = {:g} s",
    "raise": "fails",
    "run_unlocked": "runs without its lock",
}


def is_watched(app: AppLike) -> bool:
    """Return whether a worker logs the app's nodes, for this process as well."""
    watch = _watches.get(app_itself(app))
    return watch is not None and not watch.is_stopped


def report_unavailable(
    task: TaskLike, task_id: str | None, options: LockOptions, error: QuorumUnavailable
) -> None:
    """Report to the worker's log that a task missed a quorum; do nothing outside a worker."""
    watch = _watches.get(app_itself(task.app))
    if watch is None:
        return
    outcome = _OUTCOMES[options.on_unavailable].format(options.give_up_after)
    met_by = (
        f"Task {task.name}[{task_id}] met it first and {outcome} "
        f"(lock_on_unavailable={options.on_unavailable!r})."
    )
    watch.report(clock(), error.nodes, met_by)


def _encoded(at: float, nodes: dict[str, str], met_by: str) -> bytes:
    """Return one line that a pipe takes whole: lines of several processes do not mix."""
    while True:
        line = json.dumps([at, nodes, shortened(met_by)]).encode() + b"\n"
        if len(line) <= PIPE_BUF or not nodes:
            return line
        nodes.popitem()
