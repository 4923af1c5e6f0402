"""Lines of the package are seen wherever an application shows any, and with no logging set up."""

from __future__ import annotations

import pytest

from tests.support import forked

PREAMBLE = """
import logging, logging.config
from celery import Celery, signals
from celery_redlock.tasks.config.client import logger
from celery_redlock.transport.redis.node_set import _logger
app = Celery()
"""
LINES = """
for one, name in ((logger, "celery_redlock.tasks."), (_logger, "celery_redlock.transport.")):
    one.warning("a-line", "a line of %(name)s", name=name)
"""
CONFIG = (
    "{'version': 1, 'disable_existing_loggers': False,"
    " 'handlers': {'console': {'class': 'logging.StreamHandler'}},"
    " 'root': {'handlers': ['console']}}"
)
SETUPS = {
    "nothing": "",
    "basicConfig": "logging.basicConfig()",
    "a worker at its default level": "app.log.setup('WARNING')",
    "a worker at INFO": "app.log.setup('INFO')",
    "a worker that leaves the root logger alone": (
        "app.conf.worker_hijack_root_logger = False; app.log.setup('INFO')"
    ),
    "a worker whose root logger has a handler that it leaves alone": (
        "logging.basicConfig(); app.conf.worker_hijack_root_logger = False; app.log.setup('INFO')"
    ),
    "dictConfig": f"logging.config.dictConfig({CONFIG})",
    "dictConfig before a worker's setup": (
        f"logging.config.dictConfig({CONFIG}); app.log.setup('INFO')"
    ),
    "dictConfig instead of a worker's setup": (
        "signals.setup_logging.connect(lambda **_: "
        f"logging.config.dictConfig({CONFIG}), weak=False); app.log.setup('INFO')"
    ),
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_a_warning_is_shown_once_however_logging_is_set_up(setup: str) -> None:
    process = forked.run("-c", "\n".join((PREAMBLE, setup, LINES)))

    assert process.stderr.count("a line of celery_redlock.tasks.") == 1
    assert process.stderr.count("a line of celery_redlock.transport.") == 1
