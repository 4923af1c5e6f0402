"""
Node addresses: URLs as users write them, checked and made printable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from celery_redlock.errors import ConfigurationError

_EXAMPLE = "redis://[user:password@]host:6379/0, rediss://host:6379/0, unix:///path/to.sock?db=0"
_SENTINEL_EXAMPLE = "redis+sentinel://[user:password@]sentinel-1:26379,sentinel-2,sentinel-3/group"

#: The options of a Sentinel group's URL that are about its Sentinels.
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password", "sentinel_tls")

#: Where a node ends and the next begins: the Sentinels of one node have commas between them too.
_between_nodes = re.compile(r",(?=\s*(?:[a-z+]+://|,|$))").split


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """
    One lock node.

    Attributes:
        url: of the server, with any password; never printed. Of a Sentinel group without a host.
        name: as written, without user, password and query.
        identity: equal for two addresses of the same server.
        sentinels: of a Sentinel group, the URLs of the Sentinels that watch it.
        group: its name among the Sentinels.
    """

    url: str
    name: str
    identity: str
    sentinels: tuple[str, ...] = ()
    group: str = ""

    @property
    def scheme(self) -> str:
        """The scheme of the URL, which names the kind of node."""
        return self.name.partition(":")[0]

    @property
    def fails_over(self) -> bool:
        """Whether another server may take the place of the node's server."""
        return bool(self.sentinels)

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
        is_group = parts.scheme in ("redis+sentinel", "rediss+sentinel")
        port = None if is_group else parts.port
    except ValueError as exc:
        raise ConfigurationError(
            f"A lock node's URL cannot be read ({_without_value(exc)}). Write one of: {_EXAMPLE}; "
            "characters such as @ : / in a password are percent-encoded."
        ) from None
    if is_group:
        return _sentinel_group(parts)
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
        f"A lock node's URL starts with redis://, rediss://, unix://, redis+sentinel:// or "
        f"memory://, not with {shown}. Write one of: {_EXAMPLE}, {_SENTINEL_EXAMPLE}."
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


def _sentinel_group(parts: SplitResult) -> NodeAddress:
    """Return the node that Sentinels watch under a name."""
    scheme = parts.scheme.partition("+")[0]
    user, at, hosts = parts.netloc.rpartition("@")
    group, _, database = unquote(parts.path.strip("/")).partition("/")
    if parts.fragment or "@" in parts.path or not group or (database and not database.isdigit()):
        raise ConfigurationError(
            f"A {parts.scheme}:// lock node's URL ends with the name that its Sentinels have for "
            f"its master, and perhaps a database number. Write: {_SENTINEL_EXAMPLE}; characters "
            "such as @ : / in a password are percent-encoded."
        )
    query = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in query if name.startswith("sentinel_")}
    if unknown := sorted(own.keys() - _SENTINEL_OPTIONS):
        raise ConfigurationError(
            f"A {parts.scheme}:// lock node's URL has the option {unknown[0]}. The options of its "
            f"Sentinels are {', '.join(_SENTINEL_OPTIONS)}."
        )
    tls = own.get("sentinel_tls", str(scheme == "rediss")).lower() in ("true", "yes", "1")
    shared = [(name, value) for name, value in query if name not in own]
    secret = f":{quote(own['sentinel_password'], safe='')}" if "sentinel_password" in own else ""
    login = quote(own.get("sentinel_username", ""), safe="") + secret
    files = urlencode([pair for pair in shared if tls and pair[0].startswith("ssl_")])
    if tls and scheme == "redis":  # they are about the Sentinels alone
        shared = [pair for pair in shared if not pair[0].startswith("ssl_")]
    sentinels = tuple(
        f"{'rediss' if tls else 'redis'}://{login}{'@' * bool(login)}{host}?{files}".rstrip("?")
        for host in map(_with_port, hosts.split(","))
    )
    names = [parse_node(one).identity for one in sentinels]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"A {parts.scheme}:// lock node's URL names one Sentinel twice, which would count as "
            "two. Name each once."
        )
    where = f"{group}/{database}" if int(database or 0) else group
    return NodeAddress(
        # The Sentinels name the host.
        url=f"{scheme}://{user}{at}localhost/{database or 0}?{urlencode(shared)}".rstrip("?"),
        name=f"{parts.scheme}://{','.join(names)}/{where}",
        identity=f"{group}@{','.join(sorted(names))}",
        sentinels=sentinels,
        group=group,
    )


def _with_port(host: str) -> str:
    """Return a Sentinel's host with its port, which is another one than a server's."""
    return host if re.search(r":\d+$", host) else f"{host}:26379"


def _without_value(exc: ValueError) -> str:
    # urllib's messages quote the part after the last colon, which is where a password can be.
    text = str(exc).lower()
    return "the port is not a number from 0 to 65535" if "port" in text else "it is malformed"


def split_nodes(text: str) -> list[str]:
    """Split the URLs of several nodes at the commas between them."""
    return _between_nodes(text)


def parse_nodes(urls: str | Iterable[str]) -> tuple[NodeAddress, ...]:
    """
    Check a set of independent nodes.

    One server named twice is an error: it would have two votes.
    """
    if isinstance(urls, str):
        urls = [url for url in split_nodes(urls) if url.strip()]
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
    """Return advice about an unwise number of nodes; empty if it is wise."""
    count = len(nodes)
    if count % 2:
        return ""
    failures = (count - 1) // 2
    return (
        f"{count} lock nodes tolerate {failures or 'no'} failure{'s' * (failures != 1)}, the same "
        f"as {count - 1}. Use an odd number."
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
