"""A RabbitMQ node of the tests' own, from the distribution's package."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kombu import Connection

from celery_redlock.testing.resources import ChildGuardian
from celery_redlock.testing.server import LOOPBACK, ReservedPort
from tests.support.waiting import TIMEOUT, wait_until

# Debian's `rabbitmq-server` in PATH changes to a user of its own; this is what it then runs.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

#: Seconds; an Erlang node that shares two cores with twenty other processes took over a minute.
START_TIMEOUT = 6 * TIMEOUT

CONFIG = """
listeners.tcp.1 = {loopback}:{port}
log.console = true
log.console.level = warning
log.file = false
# A machine that runs tests may be short of space that they do not need.
disk_free_limit.absolute = 1MB
"""


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[str]:
    """
    Start an empty node on free loopback ports; yield its URL.

    It shares nothing with a node that the machine may have: not the data, the cookie, the plugins,
    and not the port mapper daemon (epmd) by which Erlang nodes find each other.
    """
    if not SCRIPT.exists():
        raise RuntimeError("no RabbitMQ: apt-get install rabbitmq-server")
    directory = Path(tempfile.mkdtemp(prefix="acceptance-rabbitmq-"))
    log = directory / "log"
    amqp, mapper, distribution = ports = [ReservedPort() for _ in range(3)]
    config = directory / "rabbitmq.conf"
    config.write_text(CONFIG.format(loopback=LOOPBACK, port=amqp.number))
    environment = {
        **os.environ,
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(mapper.number),
        "RABBITMQ_NODENAME": "acceptance@localhost",
        "RABBITMQ_DIST_PORT": str(distribution.number),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-environment"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "no-plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "logs"),
    }
    guardian = ChildGuardian(directory)
    url = f"amqp://guest:guest@{LOOPBACK}:{amqp.number}//"

    def start(*command: str | Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=guardian.group,
            )

    try:
        # Otherwise Erlang starts one as a daemon, which would stay.
        start("epmd", "-port", str(mapper.number), "-address", LOOPBACK)
        wait_until(lambda: _accepts(mapper.number), message="epmd to accept")
        node = start(SCRIPT)

        def serves() -> bool:
            if node.poll() is not None:
                raise AssertionError(f"RabbitMQ ended: {log.read_text()}")
            with contextlib.suppress(OSError), Connection(url, connect_timeout=2) as connection:
                connection.connect()
                return True
            return False

        wait_until(serves, START_TIMEOUT, message=lambda: f"RabbitMQ to serve: {log.read_text()}")
        yield url
    finally:
        guardian.kill()
        for port in ports:
            port.release()
        shutil.rmtree(directory, ignore_errors=True)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
