"""Real Sentinel groups on this machine, which tests can break."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from celery_redlock.errors import ConfigurationError
from celery_redlock.testing.proxy import TcpProxy
from celery_redlock.testing.resources import ClusterResources, ResourceOwner
from celery_redlock.testing.server import (
    LOOPBACK,
    ConfigValue,
    LocalClusterError,
    Server,
    ServerState,
    arm_servers,
    find_binary,
    quoted,
)

if TYPE_CHECKING:
    import os

    import redis

T = TypeVar("T")

#: Milliseconds between two messages by which Sentinels find each other: at first, and then.
_HELLO_AT_START, _HELLO = 100, 2000

#: Seconds. The second attempt at a failover, after a split vote, comes ten seconds after the first.
_FAILOVER_TIMEOUT = 60.0


class LocalSentinel(ResourceOwner):
    """
    Groups of real servers on loopback ports, and the Sentinels that watch all of them.

    A group is a master, server 0 at first, with its replicas. The groups are named `locks-0`,
    `locks-1` and so on, and each is one lock node. When `start` returns, all replicas are online
    and every Sentinel knows them and the other Sentinels. The servers and Sentinels end with the
    process that started them, however it ends.

    Sentinels take their time. A former master that comes back accepts writes for about ten seconds,
    until the Sentinels make it a replica. After a failover that did not succeed they wait for twice
    `failover_timeout` before they begin another one. A Sentinel that was paused for two seconds
    takes part in no failover for half a minute after it resumes.

    With `proxy=True` the Sentinels name only addresses of a proxy, so `cut` separates a
    server from clients, Sentinels and the other servers alike, while `client` and `server_urls`
    bypass the proxy. Limit: a client that asks Sentinels for the master cannot stay on the side of
    a server that is cut off.

    A forked child may use the addresses and clients, but it can neither break nor end the servers.
    Control it from one thread at a time.

    Args:
        groups: the number of groups.
        sentinels: the number of Sentinels; a majority of them decides about a failover.
        replicas: the number of replicas of each group.
        binary: a redis-server or valkey-server to run; None is the embedded one.
        proxy: put a TCP proxy in front of each server, between it and all others.
        armed: let the masters vote at once. Otherwise they are quarantined.
        requirepass: a password of all servers; it is part of `urls`. With a space or a quote in it,
            no Sentinel of Redis 7.0 can be restarted.
        sentinel_password: the password of the Sentinels; in `urls` it is a query parameter of that
            name.
        down_after: seconds without an answer after which a Sentinel considers a server down.
        failover_timeout: seconds, see above.
        config: further lines of the servers' configuration, unquoted; a sequence is several lines
            with one name.
        start_timeout: seconds that a server may take until it answers, and the Sentinels until they
            know everything.

    Example:
        >>> with LocalSentinel(3) as groups:
        ...     former = groups.master(0)
        ...     groups.kill(0, former)
        ...     groups.wait_for_failover(0, since=former)
    """

    def __init__(
        self,
        groups: int = 1,
        *,
        sentinels: int = 3,
        replicas: int = 1,
        binary: str | os.PathLike[str] | None = None,
        proxy: bool = False,
        armed: bool = True,
        requirepass: str | None = None,
        sentinel_password: str | None = None,
        down_after: float = 1.0,
        failover_timeout: float = 5.0,
        config: Mapping[str, ConfigValue] | None = None,
        start_timeout: float = 20.0,
    ) -> None:
        super().__init__(start_timeout)
        for name, number in (("groups", groups), ("sentinels", sentinels), ("replicas", replicas)):
            if number < 1:
                raise ConfigurationError(f"{name}={number}: give at least 1")
        self._groups = groups
        self._sentinels = sentinels
        self._size = 1 + replicas
        self._binary = find_binary(binary)
        self._with_proxy = proxy
        self._armed = armed
        self._requirepass = requirepass
        self._sentinel_password = sentinel_password
        self._down_after = down_after
        self._failover_timeout = failover_timeout
        self._config = dict(config or {})

    def __repr__(self) -> str:
        state = (
            f"with Sentinels on ports {[s.port.number for s in self._all_sentinels()]}"
            if self._resources
            else "not started"
        )
        return f"<LocalSentinel of {len(self)} {state}>"

    def __len__(self) -> int:
        return self._groups

    @property
    def urls(self) -> list[str]:
        """The groups' URLs for lock clients, with all Sentinels and the passwords."""
        hosts = ",".join(f"{LOOPBACK}:{s.port.number}" for s in self._all_sentinels())
        user = f":{quote(self._requirepass, safe='')}@" if self._requirepass else ""
        query = (
            f"?sentinel_password={quote(self._sentinel_password, safe='')}"
            if self._sentinel_password
            else ""
        )
        return [
            f"redis+sentinel://{user}{hosts}/{self.name(group)}{query}"
            for group in range(len(self))
        ]

    @property
    def sentinel_urls(self) -> list[str]:
        """The Sentinels' own URLs, of the form `redis://`."""
        return [sentinel.url for sentinel in self._all_sentinels()]

    def server_urls(self, group: int = 0) -> list[str]:
        """Return the URLs of a group's servers, which bypass Sentinels and a proxy."""
        return [server.url for server in self._servers(group)]

    def name(self, group: int) -> str:
        """Return the name that the Sentinels have for a group."""
        return f"locks-{group}"

    def master(self, group: int = 0) -> int:
        """
        Return the server of a group that has the role of a master, as the servers report it.

        If several have that role, because a former master is back, return the one that most
        Sentinels name.

        Raises:
            LocalClusterError: no running server has the role.
        """
        masters = [
            index
            for index, server in enumerate(self._servers(group))
            if server.state == "running" and _replication(server)["role"] == "master"
        ]
        if not masters:
            raise LocalClusterError(
                f"{self.name(group)} has no master: wait_for_failover() waits for one"
            )
        named = Counter(self._named(group))
        return max(masters, key=lambda index: named[index])

    def client(self, group: int, server: int) -> redis.Redis:
        """
        Return a redis-py client of a server, without proxy or retries, with short timeouts.

        The Sentinels end its connections when they change the server's role.
        """
        return self._servers(group)[server].client()

    def sentinel_client(self, index: int) -> redis.Redis:
        """Return a redis-py client of a Sentinel, like `client`."""
        return self._all_sentinels()[index].client()

    def state(self, group: int, server: int) -> ServerState:
        """Return `running`, `paused` or `dead`."""
        return self._own(group, server).state

    def pause(self, group: int, server: int) -> None:
        """Stop a server (SIGSTOP): connections stay open, commands wait and run on `resume`."""
        self._own(group, server).pause()

    def resume(self, group: int, server: int) -> None:
        """Let a paused server run again."""
        self._own(group, server).resume()

    def kill(self, group: int, server: int) -> None:
        """Kill a server (SIGKILL). Its port stays reserved for `restart`."""
        self._own(group, server).kill()

    def restart(self, group: int, server: int, *, keep_data: bool = False) -> None:
        """
        Start a server again on the same port; a running one is killed first.

        It comes back in the role that it had last: a killed master as a master, for some ten
        seconds even if another one was promoted meanwhile.

        Args:
            group: the group.
            server: the server of the group.
            keep_data: load the present data of a running server, or the last snapshot of a killed
                one. Otherwise a master comes back empty.
        """
        self._own(group, server).restart(self._start_timeout, keep_data=keep_data)

    def pause_sentinel(self, index: int) -> None:
        """Stop a Sentinel (SIGSTOP)."""
        self._own_sentinel(index).pause()

    def resume_sentinel(self, index: int) -> None:
        """Let a paused Sentinel run again."""
        self._own_sentinel(index).resume()

    def kill_sentinel(self, index: int) -> None:
        """Kill a Sentinel (SIGKILL)."""
        self._own_sentinel(index).kill()

    def restart_sentinel(self, index: int) -> None:
        """Start a Sentinel again on the same port, with its state; a running one is killed."""
        self._own_sentinel(index).restart(self._start_timeout, keep_data=False)

    def cut(self, group: int, server: int) -> None:
        """
        Cut a server off: the proxy holds bytes in both directions, and connections stay open.

        The bytes arrive on `heal`, even if the sender is gone by then.
        """
        self._proxy().partition(group * self._size + server)

    def heal(self, group: int, server: int) -> None:
        """Undo `cut`; held bytes arrive at once."""
        self._proxy().heal(group * self._size + server)

    def fail_over(self, group: int = 0, *, timeout: float = _FAILOVER_TIMEOUT) -> int:
        """
        Have a Sentinel promote a replica, and return its index once all Sentinels name it.

        The former master is healthy, and accepts writes for some ten seconds more.

        Raises:
            LocalClusterError: not within `timeout` seconds.
        """
        import redis

        self._get_own_resources()
        former = self.master(group)

        def accepted() -> bool:
            for sentinel in self._running_sentinels():
                client: Any = sentinel.client()
                # Refused while another failover ends, or the replicas are too little known.
                with contextlib.suppress(redis.ResponseError):
                    client.execute_command("SENTINEL FAILOVER", self.name(group))
                    return True
            return False

        self._wait(
            accepted, timeout, f"the Sentinels did not begin a failover of {self.name(group)}"
        )
        return self.wait_for_failover(group, since=former, timeout=timeout)

    def wait_for_failover(
        self, group: int = 0, *, since: int, timeout: float = _FAILOVER_TIMEOUT
    ) -> int:
        """
        Wait until all running Sentinels name one master other than `since`; return it.

        Raises:
            LocalClusterError: not within `timeout` seconds.
        """

        def agreed() -> set[int]:
            named = set(self._named(group))
            return named if len(named) == 1 and since not in named else set()

        problem = (
            f"the Sentinels did not agree on another master of {self.name(group)} than {since}"
        )
        return self._wait(agreed, timeout, problem).pop()

    def arm(self) -> None:
        """
        Let every master vote at once, promoted ones too; only while no lock is held.

        Raises:
            LocalClusterError: a master could not be armed.
        """
        arm_servers(self.urls)

    def reset(self) -> None:
        """
        Make all groups as good as new: running, reachable, server 0 the master, empty and voting.

        If any group is broken or has failed over, all are started again on other ports.
        Otherwise the servers stay, with settings that were changed with CONFIG SET.
        """
        if self._resources is not None and not self._is_as_started():
            self.close()
        self.start()
        for group in range(len(self)):
            self.client(group, 0).flushall()
        self._make_as_new()

    def _start(self, resources: ClusterResources) -> None:
        servers = resources.servers
        servers += [
            self._make(resources, f"server-{number}", self._requirepass)
            for number in range(self._groups * self._size)
        ]
        if self._with_proxy:
            resources.proxy = TcpProxy([(LOOPBACK, server.port.number) for server in servers])
        for server, port in zip(servers, self._ports(), strict=True):
            server.config |= self._server_config(port) | self._config
        masters = servers[:: self._size]
        self._launch(masters)
        for group in range(self._groups):
            master_port = self._ports()[group * self._size]
            for replica in self._servers(group)[1:]:
                replica.config["replicaof"] = f"{LOOPBACK} {master_port}"
        self._launch([server for server in servers if server not in masters])
        for group, master in enumerate(masters):
            self._wait(
                partial(self._has_all_replicas, master),
                self._start_timeout,
                f"the replicas of {self.name(group)} were not online",
            )
        self._start_sentinels(resources)
        self._make_as_new()

    def _start_sentinels(self, resources: ClusterResources) -> None:
        sentinels = [
            self._make(resources, f"sentinel-{index}", self._sentinel_password, ["--sentinel"])
            for index in range(self._sentinels)
        ]
        for sentinel in sentinels:
            sentinel.config["sentinel"] = self._sentinel_config()
        resources.servers += sentinels
        self._launch(sentinels)
        self._set_hello_period(_HELLO_AT_START)
        for group in range(self._groups):
            self._wait(
                partial(self._is_known, group),
                self._start_timeout,
                f"the Sentinels did not know all about {self.name(group)}",
            )
        self._set_hello_period(_HELLO)

    def _make(
        self,
        resources: ClusterResources,
        name: str,
        password: str | None,
        arguments: Sequence[str] = (),
    ) -> Server:
        return Server(
            binary=self._binary,
            directory=resources.directory / name,
            group=resources.guardian.group,
            requirepass=password,
            config={},
            arguments=arguments,
        )

    def _server_config(self, port: int) -> dict[str, ConfigValue]:
        """Return what makes a server, known by this port, replicate soon."""
        config: dict[str, ConfigValue] = {
            "replica-announce-ip": LOOPBACK,
            "replica-announce-port": port,
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        if self._requirepass is not None:
            config["masterauth"] = quoted(self._requirepass)
        return config

    def _sentinel_config(self) -> list[str]:
        lines = []
        if self._sentinel_password is not None:
            lines.append(f"sentinel-pass {quoted(self._sentinel_password)}")
        for group in range(self._groups):
            name, port = self.name(group), self._ports()[group * self._size]
            lines += [
                f"monitor {name} {LOOPBACK} {port} {self._sentinels // 2 + 1}",
                f"down-after-milliseconds {name} {round(self._down_after * 1000)}",
                f"failover-timeout {name} {round(self._failover_timeout * 1000)}",
            ]
            if self._requirepass is not None:
                lines.append(f"auth-pass {name} {quoted(self._requirepass)}")
        return lines

    def _set_hello_period(self, milliseconds: int) -> None:
        import redis

        for sentinel in self._all_sentinels():
            client: Any = sentinel.client()
            # Older Sentinels have no such command, and take two seconds longer to know each other.
            with contextlib.suppress(redis.ResponseError):
                client.execute_command("SENTINEL", "DEBUG", "publish-period", milliseconds)

    def _make_as_new(self) -> None:
        """Arm the masters if they shall be, and wait until a failover would lose nothing."""
        if self._armed:
            self.arm()
        for group in range(self._groups):
            self._wait(
                partial(self._is_in_step, group),
                self._start_timeout,
                f"the replicas of {self.name(group)} were behind their master",
            )

    def _is_in_step(self, group: int) -> bool:
        master, *replicas = map(_replication, self._servers(group))
        offset = master["master_repl_offset"]
        return all(replica["slave_repl_offset"] >= offset for replica in replicas)

    def _has_all_replicas(self, master: Server) -> bool:
        found = _replication(master)
        states = [found.get(f"slave{index}", {}).get("state") for index in range(self._size - 1)]
        return states == ["online"] * (self._size - 1)

    def _is_known(self, group: int) -> bool:
        """Return whether all Sentinels see the group as it was started, and each other."""
        name, port = self.name(group), self._ports()[group * self._size]
        for sentinel in self._all_sentinels():
            client: Any = sentinel.client()
            master = client.sentinel_master(name)
            replicas, others = client.sentinel_slaves(name), client.sentinel_sentinels(name)
            if not (
                (master["port"], master["flags"]) == (port, "master")
                and master["num-slaves"] == len(replicas) == self._size - 1
                and master["num-other-sentinels"] == len(others) == self._sentinels - 1
                and all(one["flags"] == "slave" for one in replicas)
                and all(one["master-link-status"] == "ok" for one in replicas)
                and all(one["flags"] == "sentinel" for one in others)
            ):
                return False
        return True

    def _is_as_started(self) -> bool:
        import redis

        resources = self._get_own_resources()
        if any(server.state != "running" for server in resources.servers):
            return False
        if resources.proxy is not None:
            for index in range(self._groups * self._size):
                resources.proxy.heal(index)
        with contextlib.suppress(redis.RedisError):
            return all(
                self._is_known(group) and self._has_all_replicas(self._servers(group)[0])
                for group in range(self._groups)
            )
        return False

    def _named(self, group: int) -> list[int]:
        """Return which server each running Sentinel names as the master of a group."""
        ports = self._ports()[group * self._size : (group + 1) * self._size]
        found = []
        for sentinel in self._running_sentinels():
            client: Any = sentinel.client()
            found.append(ports.index(client.sentinel_master(self.name(group))["port"]))
        return found

    def _ports(self) -> list[int]:
        """Return by which port each server is known to the others."""
        resources = self._get_resources()
        if resources.proxy is not None:
            return [port for _, port in resources.proxy.addresses]
        return [server.port.number for server in resources.servers[: self._groups * self._size]]

    def _servers(self, group: int) -> list[Server]:
        return self._get_resources().servers[group * self._size : (group + 1) * self._size]

    def _all_sentinels(self) -> list[Server]:
        return self._get_resources().servers[self._groups * self._size :]

    def _running_sentinels(self) -> list[Server]:
        return [sentinel for sentinel in self._all_sentinels() if sentinel.state == "running"]

    def _own(self, group: int, server: int) -> Server:
        self._get_own_resources()
        return self._servers(group)[server]

    def _own_sentinel(self, index: int) -> Server:
        self._get_own_resources()
        return self._all_sentinels()[index]

    @staticmethod
    def _wait(condition: Callable[[], T], timeout: float, problem: str) -> T:
        """Return the first truthy value of the condition; an error of a server is none."""
        import redis

        deadline = time.monotonic() + timeout
        while True:
            late = time.monotonic() > deadline
            with contextlib.suppress(redis.RedisError):
                if value := condition():
                    return value
            if late:
                raise LocalClusterError(f"{problem} within {timeout:g} s")
            time.sleep(0.02)


def _replication(server: Server) -> dict[str, Any]:
    import redis

    client: Any = server.client()
    # Sentinels end all connections to a server whose role they change.
    with contextlib.suppress(redis.ConnectionError):
        return dict(client.info("replication"))
    return dict(client.info("replication"))
