"""The client of an app in a process."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from celery_redlock.core import Redlock
from celery_redlock.tasks.config.client import client_for, close_clients, log_nodes_once
from celery_redlock.tasks.config.settings import read_settings


def test_nodes_of_this_process_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Celery(set_as_current=False)
    app.conf.redlock_nodes = ["memory://alone"]
    client_for(app)
    close_clients()
    Redlock("memory://alone-too").close()
    assert not caplog.messages


def test_a_log_handler_may_use_the_client_whose_nodes_are_logged() -> None:
    app = Celery(set_as_current=False)
    app.conf.redlock_nodes = ["redis://used-by-a-handler"]
    found: list[Redlock] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(client_for(app))

    handler, logger = Handler(), logging.getLogger("celery_redlock")
    logger.addHandler(handler)
    try:
        assert client_for(app) is found[0]
    finally:
        logger.removeHandler(handler)
        close_clients()


def warned(caplog: pytest.LogCaptureFixture, **conf: Any) -> str:
    """Return the warning about the nodes of an app."""
    app = Celery(broker="redis://broker", set_as_current=False)
    app.conf.update(conf)
    log_nodes_once(read_settings(app))
    (message,) = caplog.messages
    return message


FORGETS = "promote a replica that lacks the newest locks; with redlock_guard = True"


def test_a_single_group_is_warned_about_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    message = warned(caplog, redlock_nodes="redis+sentinel://s1,s2,s3/warned")
    assert message.startswith("Locks live on the single node redis+sentinel://s1:26379,")
    assert FORGETS in message


def test_a_broker_behind_sentinels_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    message = warned(
        caplog, broker_url="sentinel://b1", broker_transport_options={"master_name": "warned"}
    )
    assert message.startswith("redlock_nodes is not set, so the broker redis+sentinel://b1:26379")
    assert FORGETS in message


def test_a_single_group_with_the_guard_forgets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    nodes = "redis+sentinel://s1,s2,s3/guarded"
    assert FORGETS not in warned(caplog, redlock_nodes=nodes, redlock_guard=True)


def test_a_single_server_does_not_fail_over_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    assert FORGETS not in warned(caplog, redlock_nodes="redis://does-not-fail-over")


def test_a_client_of_a_single_group_names_the_failover(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Redlock("redis+sentinel://s1,s2,s3/named").close()
    assert "its restart or failover may allow two holders" in caplog.text
