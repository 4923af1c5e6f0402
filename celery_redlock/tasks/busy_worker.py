"""
A message that a busy worker keeps returns to its queue, for a worker that has a process free.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery.worker import state as worker_state
from kombu.exceptions import ChannelError

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import ReceivedRequest, context_of, is_revoked, most_processes
from celery_redlock.tasks.message.envelope import Envelope, send_again

logger = event_logger(__name__)

#: How often a message returns in a row. Brokers deliver to their consumers in turn.
MOST_RETURNS = 3

#: Seconds until the ETA of a message that has returned. The worker that gets it does not wait.
KEPT_FOR = 2.0

#: Seconds for which messages that return share a connection: many may be due at once.
CONNECTED_FOR = 0.5

#: Seconds without a further attempt after the broker has not answered: each holds up the worker.
PAUSE_AFTER_FAILURE = 30.0


class BusyWorker:
    """
    Returns messages of a worker whose processes are busy.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._connection: Any = None
        self._disconnects_soon = False
        self._not_before = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a message that the worker starts now has to wait for a process."""
        return self._ahead >= most_processes(self._consumer)

    @property
    def _ahead(self) -> int:
        """How many messages run in the worker, or wait for a process."""
        return len(worker_state.reserved_requests)

    def returns(self, request: ReceivedRequest) -> bool:
        """
        Send a message that the worker keeps to its queue again; return whether that was done.

        It is done if all processes are busy, and no more messages wait in the queue than are before
        it in this worker. Another worker that gets it starts it; one that is busy, perhaps this one
        again, returns it once more, up to `MOST_RETURNS` in a row. After that it has no ETA, and is
        a message as any other.

        It is sent before it is acknowledged, like a requeued message. If the worker is lost in
        between, or its connection to the broker, it comes twice, under the same id.
        """
        if not self.is_busy or not _may_return(request) or time.monotonic() < self._not_before:
            return False
        envelope = Envelope.read(request.request_dict)
        envelope = replace(envelope, returns=envelope.returns + 1)
        try:
            if not self._send(request, envelope):
                return False
        except Exception as error:  # whatever the broker cannot do, the message is here
            self._not_before = time.monotonic() + PAUSE_AFTER_FAILURE
            logger.debug(
                "return-to-queue-failed",
                "Task %(task)s[%(task_id)s] stays in this worker, whose processes are busy: it "
                "could not be sent to its queue again: %(error)r",
                task=request.name,
                task_id=request.id,
                error=error,
            )
            return False
        try:
            request.acknowledge()
        finally:
            # A copy that has come already has the same id.
            if worker_state.requests.get(request.id) is request:
                worker_state.task_ready(request)
            self._consumer.qos.decrement_eventually()
        if envelope.returns == 1:
            logger.info(
                "task-returned-to-queue",
                "Task %(task)s[%(task_id)s] may start, but all processes of this worker are busy: "
                "it returns to its queue",
                task=request.name,
                task_id=request.id,
            )
        return True

    def _send(self, request: ReceivedRequest, envelope: Envelope) -> bool:
        queue = self._queue_of(request.delivery_info)
        if queue is None:
            return False
        with self._borrowed() as connection:
            if _length(connection, queue) > self._ahead:
                return False
            send_again(
                request.task,
                context_of(request),
                envelope,
                queue=queue,
                countdown=KEPT_FOR if envelope.returns < MOST_RETURNS else None,
                connection=connection,
                retry=False,
            )
        return True

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[Any]:
        """
        Yield an open connection to the broker that nothing else uses meanwhile.

        A pooled one may be half open, or in use, and the caller must not wait for long. Under
        gevent and eventlet each message that is due has a greenlet of its own.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            connection = self._consumer.app.connection_for_write()
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
            yield connection
        except BaseException:
            connection.release()
            raise
        if self._connection is not None:
            connection.release()
            return
        self._connection = connection
        if not self._disconnects_soon:
            self._disconnects_soon = True
            self._consumer.timer.call_after(CONNECTED_FOR, self.disconnect)

    def disconnect(self) -> None:
        """Close the connection that waits for further messages, if there is one. Never raises."""
        self._disconnects_soon = False
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()

    def _queue_of(self, delivery_info: Any) -> str | None:
        """Return the queue of a message; None if it is read no more, or if others may have it."""
        sent_to = delivery_info["exchange"], delivery_info["routing_key"]
        for queue in self._consumer.task_consumer.queues:
            is_direct = queue.exchange.type == "direct"
            bound_to = queue.exchange.name, queue.routing_key
            if sent_to == ("", queue.name) or (is_direct and sent_to == bound_to):
                return str(queue.name)
        return None


def _may_return(request: ReceivedRequest) -> bool:
    """
    Return whether a message may be sent again.

    Of one that the broker has delivered again, the copy would count as the first. One that expires
    would be dropped by RabbitMQ, and its task would not end as revoked.
    """
    is_first = not request.delivery_info["redelivered"]
    return is_first and request.expires is None and not is_revoked(request)


def _length(connection: Any, queue: str) -> int:
    """Return how many messages wait in a queue."""
    try:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
    except ChannelError as error:
        if str(error.reply_code) == "404":  # on Redis, an empty queue is none
            return 0
        raise
