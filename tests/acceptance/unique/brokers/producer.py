"""A producer that shares no code with Celery: it writes messages by hand."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any
from urllib.parse import urlsplit

import amqp
import redis

JSON = "application/json"
PERSISTENT = 2


class Producer:
    """
    What a program in another language does to send a task: protocol 2, JSON, nothing else.

    The header of a lock is not among what it knows.
    """

    def __init__(self, *, url: str, queue: str) -> None:
        self._url = url
        self._queue = queue

    def send(self, task: str, *args: Any) -> str:
        """Write a message, and return the id of its task."""
        task_id = str(uuid.uuid4())
        headers = {
            "lang": "js",
            "task": task,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "retries": 0,
            "timelimit": [None, None],
        }
        body = json.dumps([args, {}, {}])
        if self._url.startswith("redis://"):
            self._push(task_id, headers, body)
        else:
            self._publish(task_id, headers, body)
        return task_id

    def _push(self, task_id: str, headers: dict[str, Any], body: str) -> None:
        message = {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": JSON,
            "headers": headers,
            "properties": {
                "correlation_id": task_id,
                "delivery_info": {"exchange": "", "routing_key": self._queue},
                "delivery_mode": PERSISTENT,
                "delivery_tag": str(uuid.uuid4()),
                "body_encoding": "base64",
                "priority": 0,
            },
        }
        with redis.Redis.from_url(self._url) as broker:
            broker.lpush(self._queue, json.dumps(message))

    def _publish(self, task_id: str, headers: dict[str, Any], body: str) -> None:
        message = amqp.Message(
            body,
            content_type=JSON,
            content_encoding="utf-8",
            correlation_id=task_id,
            delivery_mode=PERSISTENT,
            application_headers=headers,
        )
        where = urlsplit(self._url)
        with amqp.Connection(
            host=f"{where.hostname}:{where.port}", userid=where.username, password=where.password
        ) as connection:
            connection.channel().basic_publish(message, routing_key=self._queue)
