"""A PostgreSQL server of the test's own, from the distribution's package."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from celery_redlock.testing.resources import ChildGuardian
from celery_redlock.testing.server import LOOPBACK, ReservedPort
from tests.support.waiting import TIMEOUT, wait_until

# Debian keeps the server's programs out of PATH, one directory for each version.
DEBIAN = Path("/usr/lib/postgresql")
ROLE = "fencing"
# The server refuses to run as root; Debian's package brings this user.
SERVER_USER = "postgres"


def postgres_programs() -> Path | None:
    """Return the directory with `initdb` and `postgres`, or None if there is no such package."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return None if on_path is None else Path(on_path).resolve().parent


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Start an empty server on a free port; yield its address, `user@host:port/database`."""
    programs = postgres_programs()
    if programs is None:
        raise RuntimeError("no PostgreSQL server: apt-get install postgresql")
    user = SERVER_USER if os.geteuid() == 0 else None
    # Not below pytest's directory: the server's user may not enter that.
    directory = Path(tempfile.mkdtemp(prefix="fencing-postgres-"))
    if user is not None:
        owner = pwd.getpwnam(user)
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    data, log = directory / "data", directory / "log"
    port = ReservedPort()
    guardian = ChildGuardian(directory)
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", ROLE, "-A", "trust", "--no-sync", "-E", "UTF8"],
            user=user,
            cwd="/",
            check=True,
            capture_output=True,
        )
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port.number),
            "unix_socket_directories": "",
            # The machine is not expected to lose power in the middle of a test.
            "fsync": "off",
        }
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    *(programs / "postgres", "-D", data),
                    *(f"--{name}={value}" for name, value in settings.items()),
                ],
                user=user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=guardian.group,
            )
        address = f"{ROLE}@{LOOPBACK}:{port.number}/postgres"

        def accepts() -> bool:
            if server.poll() is not None:
                raise AssertionError(f"PostgreSQL ended: {log.read_text()}")
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(f"postgresql://{address}", connect_timeout=2).close()
                return True
            return False

        wait_until(accepts, message=lambda: f"PostgreSQL to accept: {log.read_text()}")
        try:
            yield address
        finally:
            # Its "fast" shutdown, which also takes its shared memory away.
            server.send_signal(signal.SIGINT)
            server.wait(TIMEOUT)
    finally:
        guardian.kill()
        port.release()
        shutil.rmtree(directory, ignore_errors=True)
