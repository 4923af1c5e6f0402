"""
Making a connection: redis-py does TCP, TLS, unix sockets, AUTH and HELLO, then we check the node.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from redis import Connection, SSLConnection
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.exceptions import InvalidResponse, RedisError, ResponseError
from redis.retry import Retry

from celery_redlock._greenlets.threads import call_in_app
from celery_redlock._greenlets.unpatched import on_native_thread, unpatched
from celery_redlock._log import event_logger
from celery_redlock.protocol.commands import SOURCE
from celery_redlock.protocol.keys import GUARD_KEY
from celery_redlock.protocol.mastership import Master
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.redis.connect_error import (
    OF_SERVER,
    ConnectError,
    Spelling,
    answer_within,
    check_identity,
    check_mode,
    check_role,
    explained,
    hides_ids,
)
from celery_redlock.transport.redis.connection import NodeConnection
from celery_redlock.transport.redis.framing import Framing, GarbageError
from celery_redlock.transport.redis.url_options import (
    NamedCredentials,
    check_options,
    missing_files,
    read_options,
)

_logger = event_logger(__name__)


class _CheckedReader:
    """A parser's reader that is fed only bytes that `Framing` accepts."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._framing = Framing()

    def feed(self, data: bytearray, begin: int, length: int) -> None:
        """Check received bytes and pass them on."""
        try:
            self._framing.check(bytes(data[begin : begin + length]))
        except GarbageError as exc:
            raise InvalidResponse(f"answered garbage: {exc}") from exc
        self._reader.feed(data, begin, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class CheckingParser(DefaultParser):  # type: ignore[misc, valid-type]
    """Reads a node's replies for redis-py with the checks of `NodeConnection`."""

    def on_connect(self, connection: Any, **options: Any) -> None:
        """Begin with a new connection."""
        super().on_connect(connection, **options)
        self._reader: Any = _CheckedReader(self._reader)


#: Node timeouts that a TLS handshake may take: TLS 1.2 needs two round trips, and some work.
_TLS_HANDSHAKE = 3


@cache
def _driver_info() -> Any:
    """
    Return redis-py's option that names the library to servers, or None if it has none.

    Without it redis-py reads its version from its installed files, again for every connection.
    """
    return getattr(Connection(), "driver_info", None)  # type: ignore[no-untyped-call]


def _name_library(options: dict[str, Any]) -> None:
    """Name the library to servers, by the option that this version of redis-py has for it."""
    if (info := _driver_info()) is None:
        return
    own = {"name": "lib_name", "lib_version": "lib_version"}
    given = {field: options.pop(name) for field, name in own.items() if name in options}
    options["driver_info"] = replace(info, **given)


class Connector:
    """
    Opens connections to one node.

    Args:
        address: the node.
        timeout: seconds for each step.
        spelling: what errors name as the right URL.

    Attributes:
        address: the node.
        warned: whether warnings about this node's configuration have been logged.
    """

    def __init__(
        self, address: NodeAddress, timeout: float, spelling: Spelling = OF_SERVER
    ) -> None:
        self.address = address
        self._spelling = spelling
        self.warned = False
        options = read_options(address)
        options.update(
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # A retry of a SET NX whose reply was lost would fail although we hold the key.
            retry=Retry(NoBackoff(), 0),
            retry_on_timeout=False,
            health_check_interval=0,
            parser_class=CheckingParser,
            # Replies are bytes.
            decode_responses=False,
            encoding="utf-8",
            encoding_errors="strict",
        )
        _name_library(options)
        self._type = options.pop("connection_class", Connection)
        if issubclass(self._type, SSLConnection):
            options["socket_timeout"] = _TLS_HANDSHAKE * timeout  # redis-py has none of its own
        self._options = options
        check_options(address, self._type, options)

    def connect(self, *, awaited: bool = False) -> tuple[NodeConnection, str | None]:
        """
        Connect, authenticate and load the scripts; blocks up to the timeout for each step.

        Args:
            awaited: somebody waits for it, so the look-up of the host is such a step, and so are
                credentials that code gives. A thread of its own waits as long as these take.

        Returns:
            The connection, and the server's run id where this user may see it.

        Raises:
            ConnectError: the node cannot be used; the text gives the reason.
        """
        master = self.master()
        connection, info = self.open(master, awaited=awaited)
        try:
            if not self.warned:
                self.warned = True
                for warning in warnings_about(info):
                    call_in_app(
                        _logger.warning,
                        "node-setup-unwise",
                        "Lock node %(node)s %(reason)s",
                        node=self.address.name,
                        reason=warning,
                    )
            sock = _unpatched_socket(connection) if on_native_thread() else connection._sock
            return NodeConnection(connection, sock, master), info.get("run_id") if info else None
        except BaseException:
            connection.disconnect()
            raise

    def master(self) -> Master | None:
        """
        Return the server to connect to, for a node that can fail over; None: that of the URL.

        Raises:
            ConnectError: nobody names one now.
        """
        return None

    def open_unchecked(self, master: Master | None) -> tuple[Any, Any]:
        """
        Connect in a native thread, but leave it to other connections to check and load scripts.

        Args:
            master: what `master` returned.

        Returns:
            The connection as redis-py has it, and its socket.

        Raises:
            ConnectError: as `connect`.
        """
        # With RESP2, published messages are lists; the node's URL may name another protocol.
        connection = self._connection(master, awaited=False, protocol=2)
        with self._explained(connection):
            connection.connect()
        return connection, _unpatched_socket(connection)

    @contextlib.contextmanager
    def visit(self) -> Iterator[Any]:
        """
        Connect and authenticate for a block, without checking the node.

        Gives the connection as redis-py has it, and closes it at the end.

        Raises:
            ConnectError: the node cannot be used, or failed within the block.
        """
        connection = self._connection(self.master(), awaited=True, protocol=2)
        with self._explained(connection):
            connection.connect()
            yield connection
        connection.disconnect()

    def open(
        self, master: Master | None, *, awaited: bool = True
    ) -> tuple[Any, dict[str, str] | None]:
        """
        Connect as `connect` does.

        Args:
            master: what `master` returned.
            awaited: as for `connect`.

        Returns:
            The connection as redis-py has it, and the server's reply to INFO, if it gave one.

        Raises:
            ConnectError: the node cannot be used; the text gives the reason.
        """
        connection = self._connection(master, awaited=awaited)
        with self._explained(connection):
            connection.connect()
            info = self._handshake(connection)
            if master is not None:
                check_role(info)
                self._admit(connection, info, master)
            return connection, info

    def _connection(self, master: Master | None, *, awaited: bool, **more: Any) -> Any:
        kind = _looking_up(self._type, awaited=awaited)
        place = dict(zip(("host", "port"), master.address, strict=True)) if master else {}
        if awaited and (asked := self._options.get("credential_provider")):
            limit = self._options["socket_connect_timeout"]
            more["credential_provider"] = NamedCredentials(asked.name, limit)
        return kind(**{**self._options, **place, **more})

    @contextlib.contextmanager
    def _explained(self, connection: Any) -> Iterator[None]:
        """Close a connection after an error, and raise one that explains it."""
        try:
            yield
        except (RedisError, OSError) as exc:
            connection.disconnect()
            if missing := missing_files(self._options):
                reason = f"its URL names files that this machine lacks: {', '.join(missing)}"
                raise ConnectError(reason, lasting=True) from exc
            raise explained(
                exc,
                tls=issubclass(self._type, SSLConnection),
                has_password=bool(self._options.get("password")),
                asks_for_password="credential_provider" in self._options,
                timeout=self._options["socket_timeout"],
                spelling=self._spelling,
            ) from exc
        except BaseException:
            connection.disconnect()
            raise

    def _admit(self, connection: Any, info: dict[str, str] | None, master: Master) -> None:
        """Prepare a server that was named as the master for its votes."""

    @staticmethod
    def _handshake(connection: Any) -> dict[str, str] | None:
        connection.send_command("INFO")
        connection.send_command("GET", GUARD_KEY)
        for source in SOURCE.values():
            connection.send_command("SCRIPT", "LOAD", source)
        reply = _response_or_error(connection)
        info = None if isinstance(reply, ResponseError) else read_info(reply)
        check_mode(info)
        record = _response_or_error(connection)
        check_identity(info, record.decode() if isinstance(record, bytes) else "")
        for _ in SOURCE:
            loaded = _response_or_error(connection)
            if isinstance(loaded, ResponseError):
                raise loaded
        return info


def _response_or_error(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def read_info(text: str | bytes) -> dict[str, str]:
    """Parse the reply to INFO."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def warnings_about(info: Mapping[str, str] | None) -> list[str]:
    """Return each way in which a node's configuration weakens locks on it, with its remedy."""
    if info is None or hides_ids(info):
        return [
            "hides INFO from this user, so a restart that loads an old snapshot cannot be noticed "
            "and two holders are possible after it. Grant +info."
        ]
    found = []
    if info.get("role") != "master":
        found.append(
            f"is a {info.get('role')}, not a master, and takes no locks. Name independent masters."
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.append(
            f"has maxmemory-policy {policy}, which may evict a lock that is held. "
            "Set maxmemory-policy noeviction."
        )
    return found


class _LookupConnection(Connection):
    """
    Gives the look-up of its host as long as the server has to accept the connection.

    The operating system sets no limit: where a name server is silent, a look-up takes many seconds.

    In a native thread the look-up has no limit and goes through the operating system: the look-ups
    of greenlets share a cache, whose lock belongs to their event loop.
    """

    def _connect(self) -> Any:
        name = self.host
        addresses = [found[4][0] for found in self._find(name)]
        try:
            for address in addresses[:-1]:
                self.host = address
                with contextlib.suppress(OSError):
                    return super()._connect()  # type: ignore[no-untyped-call]
            self.host = addresses[-1]
            return super()._connect()  # type: ignore[no-untyped-call]
        finally:
            # TLS and error messages want the name.
            self.host = name

    def _find(self, name: str) -> Any:
        if on_native_thread():
            return unpatched("socket", "getaddrinfo")(name, self.port, type=socket.SOCK_STREAM)
        find = partial(socket.getaddrinfo, name, self.port, type=socket.SOCK_STREAM)
        limit: Any = self.socket_connect_timeout  # `Connector` has set it
        return answer_within(limit, find, "the look-up of its host name")


def _looking_up(kind: type[Any], *, awaited: bool) -> type[Any]:
    """Return a type of connections that looks hosts up as its caller needs it."""
    is_patched = unpatched("socket", "getaddrinfo") is not socket.getaddrinfo
    if not issubclass(kind, Connection) or not (awaited or (on_native_thread() and is_patched)):
        return kind
    if kind is Connection:
        return _LookupConnection
    return type(kind.__name__, (kind, _LookupConnection), {})


def _unpatched_socket(connection: Any) -> Any:
    """
    Return the socket in a form that no greenlet hub is attached to.

    Under gevent a patched socket belongs to the event loop of the thread that made it. A native
    channel only polls and never waits in the socket, so a plain one on the same descriptor serves;
    a TLS socket has state of its own and stays, detached from the event loop.
    """
    sock = connection._sock
    if "gevent.monkey" not in sys.modules and "eventlet.patcher" not in sys.modules:
        return sock
    plain_type = unpatched("socket", "socket")
    if hasattr(sock, "pending"):
        if hasattr(sock, "_read_event"):
            _detach_from_hub(sock)
        return sock
    if type(sock) is plain_type:
        return sock
    plain = plain_type(sock.family, sock.type, sock.proto, fileno=sock.detach())
    connection._sock = plain
    return plain


class _NoLoop:
    """The event loop calls that a gevent socket makes when it is closed and no greenlet waits."""

    loop: _NoLoop

    def __init__(self) -> None:
        self.loop = self

    def cancel_waits_close_and_then(
        self, _events: Any, _kind: Any, then: Callable[..., object], *args: Any
    ) -> None:
        then(*args)

    def cancel_wait(self, *_: Any) -> None:
        """Do nothing: no greenlet waits."""

    def closing_fd(self, _fd: int) -> bool:
        return False


def _detach_from_hub(sock: Any) -> None:
    """Detach a gevent socket from the event loop of this thread, which ends before the socket."""
    for event in (sock._read_event, sock._write_event):
        if event is not None:
            event.close()
    sock._read_event = sock._write_event = None
    sock.hub = _NoLoop()
