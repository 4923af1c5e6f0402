"""
A web service that receives webhooks, and the task that handles them.

Senders of webhooks repeat them until they get an answer, and sometimes after it.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from typing import Any

from celery import Celery
from flask import Flask, request

from celery_redlock import RedlockTask, is_duplicate

# The broker and the result store are those of CELERY_BROKER_URL and CELERY_RESULT_BACKEND.
celery_app = Celery("payments")
celery_app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(","),
    # Where too few nodes answer in time a task is sent without its lock, and the worker takes it.
    # Five nodes on a busy laptop may take their time.
    redlock_node_timeout=1.0,
    task_default_queue="examples.webhook_dedupe",
    broker_connection_retry_on_startup=True,
)
web_app = Flask(__name__)


@web_app.post("/webhooks/payments")
def payment_webhook() -> tuple[dict[str, Any], int]:
    """Take a delivery, and answer at once: what the event asks for is done by a worker."""
    event = request.get_json()
    result = handle_payment.delay(event["id"], event["amount"])
    # A duplicate was not sent: the result is that of the task which is there already.
    return {"task": result.id, "duplicate": is_duplicate(result)}, 202


@celery_app.task(base=RedlockTask, lock_key="payment:{event}", lock_mode="until_executed")
def handle_payment(event: str, amount: int) -> str:
    """Book a payment once, and send the receipt."""
    with closing(database()) as books, books:
        books.execute("INSERT INTO bodies (event) VALUES (?)", (event,))
        # The lock excludes queued and running tasks only; finished ones are in the database.
        if books.execute("SELECT 1 FROM payments WHERE event = ?", (event,)).fetchone():
            return "booked before"
    send_receipt()
    with closing(database()) as books, books:
        books.execute("INSERT INTO payments (event, amount) VALUES (?, ?)", (event, amount))
    return "booked"


def send_receipt() -> None:
    """Wait until the mail server has accepted it; a second receipt would be a second mail."""
    host, port = os.environ["MAIL_SERVER"].split(":")
    with socket.create_connection((host, int(port))) as mail:
        mail.recv(1)


def database() -> sqlite3.Connection:
    """Return a connection to the books."""
    books = sqlite3.connect(os.environ["PAYMENTS_DATABASE"], timeout=30)
    books.execute("CREATE TABLE IF NOT EXISTS payments (event TEXT PRIMARY KEY, amount INTEGER)")
    # The bodies that have begun, which the example counts.
    books.execute("CREATE TABLE IF NOT EXISTS bodies (event TEXT)")
    return books


# Celery creates its tasks on first use. In a service with threads several requests would do that at
# once, for which Celery is not made.
celery_app.finalize()
