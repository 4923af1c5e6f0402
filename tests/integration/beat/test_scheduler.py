"""What Celery's service asks of a scheduler: construction, banner, schedule, file."""

from __future__ import annotations

from typing import Any

from celery import Celery

NODES = [f"redis://:hunter2@10.255.255.{n}:6379/0" for n in (1, 2, 3)]


def app_with(**conf: Any) -> Celery:
    app = Celery("shop", broker="redis://:hunter2@10.255.255.9/0", set_as_current=False)
    app.conf.update(redlock_nodes=NODES, **conf)
    return app


def test_the_report_shows_no_password() -> None:
    report = app_with(redlock_beat_ttl=12).bugreport()
    assert "hunter2" not in report
    assert "redlock_beat_ttl: 12" in report
