"""Real lock nodes on this machine, which tests can break."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing.proxy import GARBAGE, TcpProxy
from celery_redlock.testing.resources import ClusterResources, ResourceOwner
from celery_redlock.testing.server import (
    LOOPBACK,
    ConfigValue,
    LocalClusterError,
    Server,
    ServerState,
    arm_servers,
    find_binary,
)

if TYPE_CHECKING:
    import redis

Binary = str | os.PathLike[str] | None


def _could_empty(server: Server) -> bool:
    """Make a running server an empty master; return whether that was possible."""
    import redis

    if server.state != "running":
        return False
    try:
        client = server.client()
        if client.info("replication")["role"] != "master":
            client.replicaof("NO", "ONE")
        client.flushall()
    except (LocalClusterError, redis.RedisError):
        return False
    return True


class LocalCluster(ResourceOwner):
    """
    `n` real servers on loopback ports, each with its own process, directory and log.

    They vote at once: the restart quarantine does not apply to fresh nodes here. They end with the
    process that started them, however it ends. Limit: all nodes share one clock, one kernel and one
    disk, so tests can show neither drifting clocks nor a lost machine.

    A paused node keeps its connections open and its port accepting, as a frozen host does; a killed
    one refuses connections. With `proxy=True` clients reach the nodes through a proxy that can also
    cut them off, delay, refuse or corrupt, while `client` and `server_urls` bypass it.

    A forked child may use the addresses and clients, but it can neither break nor end the servers.
    Control a cluster from one thread at a time.

    Args:
        n: the number of nodes.
        binary: a redis-server or valkey-server to run, or several for the nodes in turn; None is
            the embedded one.
        proxy: put a TCP proxy in front, and its addresses into `urls`.
        armed: let fresh nodes vote at once. Otherwise they are quarantined for one `max_ttl`.
        requirepass: a password; it is part of the URLs.
        unix_socket: let every node listen on a unix socket too, see `unix_urls`.
        config: further lines of the servers' configuration, unquoted; a sequence is several lines
            with one name.
        start_timeout: seconds that a server may take until it answers.

    Example:
        >>> with LocalCluster(3) as cluster:
        ...     redlock = Redlock(cluster.urls)
        ...     cluster.pause(0)
    """

    def __init__(
        self,
        n: int = 5,
        *,
        binary: Binary | Sequence[Binary] = None,
        proxy: bool = False,
        armed: bool = True,
        requirepass: str | None = None,
        unix_socket: bool = False,
        config: Mapping[str, ConfigValue] | None = None,
        start_timeout: float = 20.0,
    ) -> None:
        super().__init__(start_timeout)
        if n < 1:
            raise ConfigurationError(f"a cluster of {n} nodes: give at least 1")
        binaries = [binary] if binary is None or isinstance(binary, str | os.PathLike) else binary
        if not binaries:
            raise ConfigurationError("binary is empty: name a server, or omit it")
        paths = [find_binary(each) for each in binaries]
        self._binaries = [paths[index % len(paths)] for index in range(n)]
        self._with_proxy = proxy
        self._armed = armed
        self._requirepass = requirepass
        self._unix_socket = unix_socket
        self._config = dict(config or {})

    def __repr__(self) -> str:
        state = (
            f"on ports {[s.port.number for s in self._resources.servers]}"
            if self._resources
            else "not started"
        )
        return f"<LocalCluster of {len(self)} {state}>"

    def __len__(self) -> int:
        return len(self._binaries)

    def _start(self, resources: ClusterResources) -> None:
        resources.servers += [
            Server(
                binary=binary,
                directory=resources.directory / f"node-{index}",
                group=resources.guardian.group,
                requirepass=self._requirepass,
                unix_socket=self._unix_socket,
                config=self._config,
            )
            for index, binary in enumerate(self._binaries)
        ]
        self._launch(resources.servers)
        if self._with_proxy:
            resources.proxy = TcpProxy([(LOOPBACK, s.port.number) for s in resources.servers])
        if self._armed:
            self.arm()

    @property
    def urls(self) -> list[str]:
        """The nodes' URLs for clients: through the proxy if there is one."""
        resources = self._get_resources()
        if resources.proxy is None:
            return self.server_urls
        return [
            server.url_at(host, port)
            for server, (host, port) in zip(
                resources.servers, resources.proxy.addresses, strict=True
            )
        ]

    @property
    def server_urls(self) -> list[str]:
        """The servers' own URLs, which bypass a proxy."""
        return [server.url for server in self._get_resources().servers]

    @property
    def unix_urls(self) -> list[str]:
        """The servers' unix sockets; empty without `unix_socket=True`."""
        return [server.unix_url for server in self._get_resources().servers if server.unix_url]

    def client(self, index: int) -> redis.Redis:
        """Return a redis-py client of a server, without proxy or retries, with short timeouts."""
        return self._get_resources().servers[index].client()

    def state(self, index: int) -> ServerState:
        """Return `running`, `paused` or `dead`."""
        return self._get_own_resources().servers[index].state

    def log(self, index: int) -> str:
        """Return the log of a server since its last start."""
        return self._get_resources().servers[index].log()

    def pause(self, index: int) -> None:
        """Stop a server (SIGSTOP): connections stay open, commands wait and run on `resume`."""
        self._get_own_resources().servers[index].pause()

    def resume(self, index: int) -> None:
        """Let a paused server run again."""
        self._get_own_resources().servers[index].resume()

    def kill(self, index: int) -> None:
        """Kill a server (SIGKILL). Its port stays reserved for `restart`."""
        self._get_own_resources().servers[index].kill()

    def restart(self, index: int, *, keep_data: bool = False) -> None:
        """
        Start a server again on the same port; a running one is killed first.

        The node is quarantined for one `max_ttl`, like any node that may have lost its locks.

        Args:
            index: the node.
            keep_data: load the present data of a running server, or the last snapshot of a killed
                one. Otherwise the server comes back empty.
        """
        server = self._get_own_resources().servers[index]
        server.restart(self._start_timeout, keep_data=keep_data)

    def flush(self, index: int) -> None:
        """Remove all data of a node, the record of its quarantine included."""
        self.client(index).flushall()

    def arm(self) -> None:
        """
        Let every node vote at once, restarted and flushed ones too; only while no lock is held.

        Raises:
            LocalClusterError: a node could not be armed.
        """
        arm_servers(self.server_urls)

    def reset(self) -> None:
        """
        Make every node as good as new: running, reachable, a master, empty and voting.

        Connections through a proxy are reset, and a node that is paused is started again, so no
        command that waits for it is executed later, unless a client that is still open sends it
        again. Settings that were changed with CONFIG SET stay on the other nodes.
        """
        self.start()
        resources = self._get_own_resources()
        for index, server in enumerate(resources.servers):
            if resources.proxy is not None:
                resources.proxy.refuse(index)  # a heal would deliver what it holds
                resources.proxy.heal(index)
            if not _could_empty(server):
                self.restart(index)
        if self._armed:
            self.arm()

    def partition(self, index: int) -> None:
        """
        Cut a node off: the proxy holds bytes in both directions, and connections stay open.

        The bytes arrive on `heal`, even if the sender is gone by then.
        """
        self._proxy().partition(index)

    def refuse(self, index: int) -> None:
        """Reset a node's connections and refuse new ones."""
        self._proxy().refuse(index)

    def forget(self, index: int, *, resets: bool = False) -> None:
        """
        Lose all bytes of a node's open connections; new ones work, and `heal` changes nothing.

        That is what a firewall or a load balancer does to connections that were idle for too long.

        Args:
            index: the node.
            resets: whether the next bytes are answered with a reset instead of silence.
        """
        self._proxy().forget(index, resets=resets)

    def garbage(self, index: int, answer: bytes = GARBAGE) -> None:
        """Answer everything with these bytes; `heal` resets the connections."""
        self._proxy().garbage(index, answer)

    def delay(
        self, index: int, seconds: float, *, only: Literal["requests", "replies"] | None = None
    ) -> None:
        """Delay every byte from and to a node, or in only one direction."""
        self._proxy().delay(index, seconds, only=only)

    def heal(self, index: int) -> None:
        """Undo `partition`, `refuse`, `garbage` and `delay`; held bytes arrive at once."""
        self._proxy().heal(index)
