"""
Node addresses: URLs as users write them, checked and made printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from celery_redlock.errors import ConfigurationError

_EXAMPLE = "redis://[user:password@]host:6379/0, rediss://host:6379/0, unix:///path/to.sock?db=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """
    One lock node.

    Attributes:
        url: as written, with any password; never printed.
        name: the same without user, password and query.
        identity: what makes two addresses the same server.
    """

    url: str
    name: str
    identity: str

    def __repr__(self) -> str:
        return f"<NodeAddress {self.name}>"


def parse_node(url: str) -> NodeAddress:
    """Check one node URL; `ConfigurationError` explains the error without quoting a password."""
    if not isinstance(url, str):
        raise ConfigurationError(
            f"A lock node is a URL string, not {type(url).__name__}. Write one of: {_EXAMPLE}."
        )
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as exc:
        raise ConfigurationError(
            f"A lock node's URL cannot be read ({_without_value(exc)}). Write one of: {_EXAMPLE}; "
            "characters such as @ : / in a password are percent-encoded."
        ) from None
    if parts.scheme in ("redis", "rediss"):
        return _tcp_node(url.strip(), parts, port)
    if parts.scheme == "unix":
        if not parts.path:
            raise ConfigurationError(f"unix:// lock nodes need a path. Write one of: {_EXAMPLE}.")
        return NodeAddress(url=url.strip(), name=f"unix://{parts.path}", identity=parts.path)
    if parts.scheme == "memory":
        name = f"memory://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return NodeAddress(url=url.strip(), name=name, identity=name)
    shown = f"{parts.scheme}://" if parts.scheme and "://" in url else "no scheme at all"
    raise ConfigurationError(
        f"A lock node's URL starts with redis://, rediss://, unix:// or memory://, not with "
        f"{shown}. Write one of: {_EXAMPLE}."
    )


def _tcp_node(url: str, parts: SplitResult, port: int | None) -> NodeAddress:
    if not parts.hostname:
        raise ConfigurationError(
            f"A {parts.scheme}:// lock node's URL names no host. Write one of: {_EXAMPLE}."
        )
    if parts.fragment or "@" in parts.path or ("@" in parts.query and "@" not in parts.netloc):
        # The apparent host is a part of the user info then, so it is not shown.
        raise ConfigurationError(
            f"A {parts.scheme}:// lock node's URL has a / ? or # before its @. Percent-encode such "
            f"characters in a user name or password. Write one of: {_EXAMPLE}."
        )
    database = parts.path.strip("/")
    if database and not database.isdigit():
        raise ConfigurationError(
            f"Lock node {parts.scheme}://{parts.hostname}: the part after the last slash is a "
            f"database number, not {database!r}. Write one of: {_EXAMPLE}."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = f"{host}:{port or 6379}"
    name = f"{parts.scheme}://{where}/{database or 0}"
    return NodeAddress(url=url, name=name, identity=where)


def _without_value(exc: ValueError) -> str:
    # urllib's messages quote the part after the last colon, which is where a password can be.
    text = str(exc).lower()
    return "the port is not a number from 0 to 65535" if "port" in text else "it is malformed"


def parse_nodes(urls: str | Iterable[str]) -> tuple[NodeAddress, ...]:
    """
    Check a set of independent nodes.

    One server named twice is an error: it would have two votes.
    """
    if isinstance(urls, str):
        urls = [url for url in urls.split(",") if url.strip()]
    if not isinstance(urls, Iterable):  # a redis.Redis can be iterated over, and asks its server
        raise ConfigurationError(
            f"Lock nodes are a list of URLs, not {type(urls).__name__}. Write one of: {_EXAMPLE}."
        )
    entries = tuple(urls)
    nodes = tuple(_parse_entry(entries, place) for place in range(len(entries)))
    if not nodes:
        raise ConfigurationError(f"No lock node is given. Write one or more of: {_EXAMPLE}.")
    _refuse_duplicates(nodes)
    return nodes


def _parse_entry(entries: Sequence[str], place: int) -> NodeAddress:
    try:
        return parse_node(entries[place])
    except ConfigurationError as exc:
        if len(entries) == 1:
            raise
        raise ConfigurationError(f"Node {place + 1} of {len(entries)}: {exc}") from None


def advice_about(nodes: Sized) -> str:
    """Return what is not wise about a set of nodes; empty if nothing is."""
    count = len(nodes)
    if count % 2:
        return ""
    return (
        f"{count} lock nodes survive the loss of {(count - 1) // 2}, no more than {count - 1} do. "
        "Use an odd number."
    )


def _refuse_duplicates(nodes: Sequence[NodeAddress]) -> None:
    seen: dict[str, NodeAddress] = {}
    for node in nodes:
        earlier = seen.setdefault(node.identity, node)
        if earlier is not node:
            raise ConfigurationError(
                f"Lock nodes {earlier.name} and {node.name} are one server, which would have two "
                "votes. Name independent servers; databases of one server are not independent."
            )
