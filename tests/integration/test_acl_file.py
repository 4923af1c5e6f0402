"""A lock node with the files of docker/redis keeps its counters over a restart, and others out."""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock import Redlock
from celery_redlock.core import arm_nodes
from celery_redlock.protocol.keys import fence_key
from celery_redlock.testing.server import LOOPBACK, ReservedPort, find_binary
from tests.support.nodes import CALM
from tests.support.waiting import TIMEOUT, wait_until

FILES = Path(__file__).parents[2] / "docker/redis"
PASSWORD = "hunter2"
END_PATIENCE = TIMEOUT
LOCKS = 3


class Node:
    """A server started as `docker/redis/start` does it, with other places of files and a port."""

    def __init__(self, binary: str | None, directory: Path) -> None:
        self._held = ReservedPort()
        self._log = directory / "log"
        acl = directory / "users.acl"
        digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
        users = re.sub(r"^#.*\n", "", (FILES / "lock.acl").read_text(), flags=re.MULTILINE)
        acl.write_text(users.replace("@PASSWORD_SHA256@", digest))
        configuration = directory / "lock-node.conf"
        told = (FILES / "lock-node.conf").read_text()
        configuration.write_text(told.replace("dir /data", f"dir {directory}"))
        self._command = [
            *(find_binary(binary), str(configuration), "--aclfile", str(acl)),
            *("--bind", LOOPBACK, "--port", str(self._held.number)),
        ]
        self.url = f"redis://redlock:{PASSWORD}@{LOOPBACK}:{self._held.number}"

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, message=self._log.read_text)

    def stop(self) -> None:
        """End it as `docker stop` does."""
        self._process.terminate()
        self._process.wait(END_PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._held.release()

    def client(self, **login: str) -> redis.Redis:
        return redis.Redis(
            host=LOOPBACK,
            port=self._held.number,
            decode_responses=True,
            # Redis-py would try again after a refusal.
            retry=Retry(NoBackoff(), 0),
            **login,
        )

    def counters(self) -> dict[str, str | None]:
        """The newest fencing token of each lock, as the node has it."""
        with self.client(username="redlock", password=PASSWORD) as client:
            return {name: client.get(fence_key(f"redlock:{name}")) for name in names()}

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with (
            contextlib.suppress(redis.ConnectionError),
            self.client(username="redlock", password=PASSWORD) as client,
        ):
            client.get("redlock-meta:guard")
            return True
        return False


def names() -> list[str]:
    return [f"lock-{number}" for number in range(LOCKS)]


# Not every server asks at EXEC what the default user may do: of these, Debian's does.
@pytest.fixture(params=["embedded", pytest.param("debian", marks=pytest.mark.system)])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(None if request.param == "embedded" else "/usr/bin/redis-server", tmp_path)
    try:
        node.start()
        yield node
    finally:
        node.kill()


def test_the_counters_behind_fencing_tokens_outlive_a_restart(node: Node) -> None:
    arm_nodes([node.url])
    with Redlock([node.url], node_timeout=CALM) as redlock:
        for name in names():
            redlock.acquire(name, ttl=10.0).release()
    before = node.counters()
    assert all(before.values())

    node.stop()
    node.start()

    assert node.counters() == before


def test_nobody_gets_in_without_the_password(node: Node) -> None:
    with node.client() as client, pytest.raises(redis.AuthenticationError):
        client.ping()


@pytest.mark.parametrize("password", ["", "nopass", "default"])
def test_nobody_gets_in_as_the_default_user(node: Node, password: str) -> None:
    for command in (["AUTH", password], ["AUTH", "default", password]):
        with node.client() as client, pytest.raises(redis.AuthenticationError):
            client.execute_command(*command)
