"""What is looked at where a broker delivers one message more than once."""

from __future__ import annotations

from celery.result import AsyncResult

from celery_redlock.testing import LocalCluster
from tests.acceptance.scene import Journal
from tests.acceptance.unique.publisher import Publisher
from tests.acceptance.worker import Worker
from tests.support.waiting import wait_until

# A message is put back and looked at again at least this often while its first copy runs.
DELIVERIES = 4


def was_redelivered(journal: Journal, result: AsyncResult) -> bool:
    """Whether the broker has delivered a message a second time by itself."""
    return any(
        entry["id"] == result.id and entry["redelivered"] for entry in journal.of("delivered")
    )


def wait_until_redelivered(journal: Journal, result: AsyncResult) -> None:
    wait_until(
        lambda: was_redelivered(journal, result),
        message=lambda: f"{result.id} to be redelivered: {journal.entries}",
    )


def wait_until_settled(worker: Worker) -> None:
    """Wait until no copy is left, neither waiting nor in some worker's hands."""
    wait_until(lambda: worker.queue_is_empty, message="no message to be left")


def messages_in(publisher: Publisher, queue: str) -> int:
    """
    Count what waits in a queue that nobody reads.

    Where a process is stopped that reads a queue, the broker may have given it a message that is
    lost with it, and so would say nothing about how many were sent.
    """
    with publisher.app.connection_for_read() as connection:
        return int(connection.default_channel.client.llen(queue))


def wait_until_marked_finished(cluster: LocalCluster, result: AsyncResult) -> None:
    """Wait until a quorum of nodes knows that a task's message has been worked off."""

    def is_marked(index: int) -> bool:
        node = cluster.client(index)
        marks = node.mget(list(node.scan_iter("redlock-meta:message:*", count=1000)) or ["none"])
        return any(f" finished {result.id} ".encode() in (mark or b"") for mark in marks)

    quorum = len(cluster) // 2 + 1
    wait_until(
        lambda: sum(is_marked(index) for index in range(len(cluster))) >= quorum,
        message=f"{result.id} to be marked as finished",
    )
