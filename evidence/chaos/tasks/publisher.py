"""A publisher process: plays scenes in several threads until its stdin ends or SIGTERM comes."""

from __future__ import annotations

import faulthandler
import logging
import random
import signal
import sys
import threading

import redis

from evidence.chaos.tasks.app import app, notes, orders
from evidence.chaos.tasks.scenes import Scenes

_THREADS = 3
#: Messages that may wait in the broker before publishers pause.
_MOST_WAITING = 30


def main() -> None:
    """Run until told to end."""
    logging.disable(logging.WARNING)
    faulthandler.enable()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_await_end, args=(stopping,), daemon=True).start()
    notes.watch_for_stalls()
    app.finalize()
    threads = [threading.Thread(target=_play, args=(n, stopping)) for n in range(_THREADS)]
    for thread in threads:
        thread.start()
    notes.note("ready")
    for thread in threads:
        thread.join()
    notes.note("ended process")


def _play(number: int, stopping: threading.Event) -> None:
    name = f"{orders['name']}.{number}"
    rng = random.Random(f"{orders['seed']} {name}")
    scenes = Scenes(app, notes, name, rng.getrandbits(48), stopping.is_set)
    broker = redis.Redis.from_url(orders["broker"])
    while not stopping.is_set():
        if broker.llen("celery") > _MOST_WAITING:
            stopping.wait(0.1)
            continue
        try:
            scenes.play()
        except Exception as error:
            notes.note("violation", rule="a publisher's calls raise nothing", what=repr(error))
            raise
        stopping.wait(rng.expovariate(1 / 0.25))


def _await_end(stopping: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopping.set()


if __name__ == "__main__":
    main()
