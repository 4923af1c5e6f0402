"""
A message that a busy worker keeps returns to its queue, for a worker that has a process free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery.worker import state as worker_state
from kombu.exceptions import ChannelError

from celery_redlock._log import event_logger
from celery_redlock.tasks.border import context_of, is_revoked
from celery_redlock.tasks.message.envelope import Envelope, send_again

logger = event_logger(__name__)

#: How often a message returns in a row. Brokers deliver to their consumers in turn.
MOST_RETURNS = 3

#: Seconds until the ETA of a message that has returned. The worker that gets it does not wait.
KEPT_FOR = 2.0


def is_busy(consumer: Any) -> bool:
    """Return whether a message that a worker starts now has to wait for a process."""
    processes: int = consumer.pool.num_processes
    return len(worker_state.reserved_requests) >= processes


def return_to_queue(consumer: Any, request: Any) -> bool:
    """
    Send a message that a worker keeps to its queue again; return whether that was done.

    It is done if all processes are busy, and no more messages wait in the queue than are before it
    in this worker. Another worker that gets it starts it; one that is busy, perhaps this one again,
    returns it once more, up to `MOST_RETURNS` in a row. After that it has no ETA, and is a message
    as any other.

    It is sent before it is acknowledged, like a requeued message. If the worker is lost in between,
    it comes twice, under the same id.
    """
    if not is_busy(consumer) or is_revoked(request) or request.delivery_info["redelivered"]:
        return False
    try:
        queue = _queue_of(consumer, request.delivery_info)
        if queue is None or _length(consumer, queue) > len(worker_state.reserved_requests):
            return False
        envelope = Envelope.read(request.request_dict)
        envelope = replace(envelope, returns=envelope.returns + 1)
        countdown = KEPT_FOR if envelope.returns < MOST_RETURNS else None
        send_again(request.task, context_of(request), envelope, countdown=countdown)
    except Exception as error:  # whatever the broker cannot do, the message is here
        logger.debug(
            "return-to-queue-failed",
            "Task %(task)s[%(task_id)s] stays in this worker, whose processes are busy: it could "
            "not be sent to its queue again: %(error)r",
            task=request.name,
            task_id=request.id,
            error=error,
        )
        return False
    request.acknowledge()
    worker_state.task_ready(request)
    consumer.qos.decrement_eventually()
    if envelope.returns == 1:
        logger.info(
            "task-returned-to-queue",
            "Task %(task)s[%(task_id)s] may start, and all processes of this worker are busy: it "
            "returns to its queue",
            task=request.name,
            task_id=request.id,
        )
    return True


def _queue_of(consumer: Any, delivery_info: Any) -> str | None:
    """Return the queue that a message came from; None if this worker has stopped reading it."""
    exchange, routing_key = delivery_info["exchange"], delivery_info["routing_key"]
    for queue in consumer.task_consumer.queues:
        if (exchange, routing_key) in {("", queue.name), (queue.exchange.name, queue.routing_key)}:
            return str(queue.name)
    return None


def _length(consumer: Any, queue: str) -> int:
    """Return how many messages wait in a queue."""
    with consumer.app.connection_or_acquire() as connection:
        # Or kombu would try without end, in the worker's event loop.
        connection.ensure_connection(max_retries=1, interval_start=0)
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except ChannelError:  # on Redis, an empty queue is none
            return 0
