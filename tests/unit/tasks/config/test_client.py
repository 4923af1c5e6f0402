"""The client of an app in a process."""

from __future__ import annotations

import logging

import pytest
from celery import Celery

from celery_redlock.core import Redlock
from celery_redlock.tasks.config.client import close_clients, redlock_for


def test_nodes_of_this_process_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Celery(set_as_current=False)
    app.conf.redlock_nodes = ["memory://alone"]
    redlock_for(app)
    close_clients()
    Redlock("memory://alone-too").close()
    assert not caplog.messages


def test_a_log_handler_may_use_the_client_whose_nodes_are_logged() -> None:
    app = Celery(set_as_current=False)
    app.conf.redlock_nodes = ["redis://used-by-a-handler"]
    found: list[Redlock] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(redlock_for(app))

    handler, logger = Handler(), logging.getLogger("celery_redlock")
    logger.addHandler(handler)
    try:
        assert redlock_for(app) is found[0]
    finally:
        logger.removeHandler(handler)
        close_clients()
