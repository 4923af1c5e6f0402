"""
The broker as the single lock node, where no lock nodes are given.

A translation is made only where it is exact: the same server, database, global prefix of keys, user
and TLS settings that Celery itself uses. Anything else is refused with the setting to write,
because a lock on a server that was guessed protects nothing.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote, urlencode

from kombu.utils.url import url_to_parts

from celery_redlock.errors import ConfigurationError

__all__ = ["node_from_broker", "prefix_from_broker"]

EXAMPLE = (
    "redlock_nodes = ['redis://lock-1:6379/0', 'redis://lock-2:6379/0', 'redis://lock-3:6379/0']"
)
VERIFY = {ssl.CERT_NONE: "none", ssl.CERT_OPTIONAL: "optional", ssl.CERT_REQUIRED: "required"}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def node_from_broker(app: Any) -> str:
    """
    Return the node URL of the app's broker.

    Raises:
        ConfigurationError: the broker is not one plain Redis server. Never shows a password.
    """
    conf = app.conf
    if conf.broker_read_url != conf.broker_write_url:
        raise _refusal("the broker has different URLs for reading and writing")
    try:
        # kombu's own reading of the URL and settings; nothing is connected here.
        broker = app.connection_for_write()
        transport, hostname, several = broker.transport_cls, broker.hostname, len(broker.alt) > 1
    except Exception:
        # The text of the error may contain the URL, and with it the password.
        raise _refusal("the broker URL cannot be read") from None
    if several:
        raise _refusal("there are several brokers")
    if transport == "memory":
        raise _refusal(
            "the broker is in memory", "In tests, redlock_nodes = ['memory://'] needs no server."
        )
    if transport not in ("redis", "rediss"):
        raise _refusal(f"the broker ({_name(transport)}) is not a plain Redis server")
    if getattr(broker, "credential_provider", None) or callable(broker.password):
        raise _refusal("the broker's password comes from a function")
    if "://" in (hostname or ""):
        return _socket_url(hostname, broker)
    host = hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    tls = _tls_query(broker.ssl)
    return (
        f"{'redis' if tls is None else 'rediss'}://{_credentials(broker.userid, broker.password)}"
        f"{host}:{broker.port or 6379}/{_database(broker.virtual_host)}{_query(tls or {})}"
    )


def prefix_from_broker(app: Any) -> str:
    """
    Return what all keys of the app begin with on its broker; empty for nothing.

    Raises:
        ConfigurationError: the setting is no string.
    """
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix") or ""
    if not isinstance(prefix, str):
        raise _refusal("global_keyprefix in broker_transport_options is not a string")
    return prefix


def _socket_url(hostname: str, broker: Any) -> str:
    parts = url_to_parts(hostname)
    query = dict(parts.query)
    database = _database(query.pop("virtual_host", broker.virtual_host))
    if parts.scheme != "socket" or query or broker.ssl:
        raise _refusal("the broker's socket URL has parts that a lock node cannot take over")
    credentials = _credentials(parts.username, parts.password)
    return f"unix://{credentials}/{quote(parts.path or '')}?db={database}"


def _credentials(user: str | None, password: str | None) -> str:
    if not user and not password:
        return ""
    secret = f":{quote(password, safe='')}" if password else ""
    return f"{quote(user or '', safe='')}{secret}@"


def _database(virtual_host: Any) -> int:
    text = str(virtual_host or "").removeprefix("/") or "0"
    if not text.isdecimal():
        raise _refusal("the broker URL does not end in a database number")
    return int(text)


def _tls_query(options: Any) -> dict[str, str] | None:
    """Return the URL's query for kombu's TLS options, None for a connection without TLS."""
    if not options:
        return None
    if not isinstance(options, dict):
        # kombu ignores `True` for Redis and talks plain text; that is not what anybody meant.
        raise _refusal("broker_use_ssl is not a dict of ssl_* options")
    query = {}
    for name, value in options.items():
        if name == "ssl_cert_reqs" and value in VERIFY:
            query[name] = VERIFY[value]
        elif name == "ssl_cert_reqs" and value in VERIFY.values():
            query[name] = value
        elif name == "ssl_check_hostname" and isinstance(value, bool):
            query[name] = str(value)
        elif name in TLS_FILES and isinstance(value, str):
            query[name] = value
        else:
            raise _refusal(f"broker_use_ssl has {name}, which a node URL cannot express")
    return query


def _query(options: dict[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _name(transport: Any) -> str:
    return transport if isinstance(transport, str) else type(transport).__name__


def _refusal(reason: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"redlock_nodes is not set and {reason}, so it cannot serve as the lock node. "
        f"Set {EXAMPLE}. {hint}".rstrip()
    )
