"""
A process that publishes one task from many threads at once, each time that the test says so.

Run as `python -m tests.acceptance.apps.unique_crowd TASK KEY THREADS`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import redis
from celery import Celery

from celery_redlock import is_duplicate
from tests.acceptance.apps.unique_tasks import declare
from tests.acceptance.apps.visible import stage


def main(name: str, key: str, threads: int) -> None:
    urls, conf = stage()["urls"], stage()["conf"]
    app = Celery("crowd", broker=urls["broker"], backend=urls["backend"])
    app.conf.update({option: value for option, value in conf.items() if option != "include"})
    declare(app)
    task = app.tasks[name]
    store = redis.Redis.from_url(urls["journal"])
    log = logging.Handler(logging.WARNING)
    log.emit = lambda record: store.rpush(f"log:{key}", record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(log)
    barrier = threading.Barrier(threads)

    def publish(turn: str) -> None:
        barrier.wait()
        try:
            result = task.apply_async((key,), {"gate": turn})
            told = {"id": result.id, "duplicate": is_duplicate(result)}
        except Exception as error:  # the test shows it
            told = {"error": repr(error)}
        store.rpush(f"published:{key}:{turn}", json.dumps(told))

    with store.pubsub(ignore_subscribe_messages=True) as turns, ThreadPoolExecutor(threads) as pool:
        turns.subscribe(f"turns:{key}")
        for message in turns.listen():
            turn = message["data"].decode()
            if turn == "end":
                return
            list(pool.map(publish, [turn] * threads))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
