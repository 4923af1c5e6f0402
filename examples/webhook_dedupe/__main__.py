"""
One webhook, delivered five times at once and once more later: `python -m examples.webhook_dedupe`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from examples.stage import TIMEOUT, Stage, expect, until

AT_ONCE, WHILE_IT_RUNS = 3, 2
EVENT = {"id": "evt_1", "amount": 100}
CALL = {"event": EVENT["id"], "amount": EVENT["amount"]}


def main() -> None:
    """Start servers and a worker, and play the example."""
    with Stage() as stage, socket.create_server(("127.0.0.1", 0)) as mail_server:
        os.environ["MAIL_SERVER"] = "{}:{}".format(*mail_server.getsockname())
        os.environ["PAYMENTS_DATABASE"] = str(stage.directory / "payments.sqlite")
        stage.start_worker("examples.webhook_dedupe.service")
        with serving() as url:
            task = five_times(url, mail_server)
            once_more(url, task)


def five_times(url: str, mail_server: socket.socket) -> str:
    """Deliver an event three times at once, and twice while its task runs; return its id."""
    from examples.webhook_dedupe.service import handle_payment

    with ThreadPoolExecutor(AT_ONCE) as senders:
        answers = list(senders.map(deliver, [url] * AT_ONCE))
    mail_server.settimeout(TIMEOUT)
    body, _ = mail_server.accept()
    print("A body runs, and waits for the mail server.")
    with body:
        answers += [deliver(url) for _ in range(WHILE_IT_RUNS)]
        body.sendall(b"!")
    tasks = {answer["task"] for answer in answers}
    sent = [answer for answer in answers if not answer["duplicate"]]
    expect("five deliveries were answered with one and the same task", len(tasks) == 1)
    expect("it was sent by one of them", len(sent) == 1)
    result = handle_payment.AsyncResult(sent[0]["task"])
    until(result.ready, "the payment to be handled")
    print(f"The task ended: {result.get()}.")
    expect("one body began", count("bodies") == 1)
    return str(result.id)


def once_more(url: str, before: str) -> None:
    """Deliver the event again, when the task has ended and its lock with it."""
    from examples.webhook_dedupe.service import handle_payment

    # Released right after the result is stored, so that nobody can come in between.
    until(lambda: handle_payment.lock_holder(**CALL) is None, "the lock to be released")
    answer = deliver(url)
    result = handle_payment.AsyncResult(answer["task"])
    until(result.ready, "the late delivery to be handled")
    print(f"The task ended: {result.get()}.")
    expect("the late delivery is another task", answer["task"] != before)
    expect("the books show it that there is nothing to do", result.get() == "booked before")
    expect("the payment is in the books once", count("payments") == 1)


def deliver(url: str) -> Any:
    """Send the event as its sender would, and return the service's answer."""
    headers = {"Content-Type": "application/json"}
    post = urllib.request.Request(url, json.dumps(EVENT).encode(), headers)  # noqa: S310 - our own
    with urllib.request.urlopen(post) as response:  # noqa: S310 - our own
        answer = json.load(response)
    done = "there already, not sent" if answer["duplicate"] else "sent"
    print(f"Delivery of {EVENT['id']}: task {answer['task'][:8]}, {done}")
    return answer


def count(table: str) -> int:
    """Return how many rows of a table are about the event."""
    from examples.webhook_dedupe.service import database

    counting = f"SELECT count(*) FROM {table} WHERE event = ?"  # noqa: S608 - a name from here
    with closing(database()) as books:
        (rows,) = books.execute(counting, (EVENT["id"],)).fetchone()
        return int(rows)


@contextmanager
def serving() -> Iterator[str]:
    """Run the web service in this process, with a thread for each request."""
    from werkzeug.serving import make_server

    from examples.webhook_dedupe.service import web_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, web_app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/webhooks/payments"
    finally:
        server.shutdown()
        thread.join()


if __name__ == "__main__":
    main()
