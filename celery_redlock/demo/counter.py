"""
Where payments are handed in: the demo's own process as a Celery client.
"""

from __future__ import annotations

from celery import Celery

from celery_redlock.demo.bank import DEPOSIT
from celery_redlock.demo.scene import Scene

__all__ = ["Counter"]


class Counter:
    """
    Sends payments by the task's name, and asks the result store what became of them.

    These are two apps: one that sends to a Redis broker and also has a Redis result store keeps a
    subscription for each task, and reconnects for those once the demo's servers are gone.
    """

    def __init__(self, scene: Scene) -> None:
        self._sender = Celery("demo-sender", broker=scene.broker, set_as_current=False)
        self._asker = Celery("demo-asker", backend=scene.results, set_as_current=False)
        self._sent: list[str] = []

    def hand_in(self, payment: int, account: str) -> None:
        """Send one payment."""
        self._sent.append(self._sender.send_task(DEPOSIT, args=(payment, account)).id)

    def succeeded(self) -> bool:
        """Tell whether Celery calls every task that was sent a success."""
        return all(self._asker.backend.get_state(task) == "SUCCESS" for task in self._sent)

    def close(self) -> None:
        """Close the connections."""
        self._sender.close()
        self._asker.close()
