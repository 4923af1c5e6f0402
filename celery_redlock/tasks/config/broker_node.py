"""
The broker as the single lock node, where no lock nodes are given.

The broker's URL is translated only where that is exact: the same server or Sentinels, database,
global prefix of keys, users and TLS settings that Celery itself uses. Anything else is refused, and
the error names the setting to write, because a lock on a guessed server protects nothing.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import quote, urlencode

from kombu.utils.url import url_to_parts

from celery_redlock.errors import ConfigurationError
from celery_redlock.tasks.border import AppLike

EXAMPLE = (
    "redlock_nodes = ['redis://lock-1:6379/0', 'redis://lock-2:6379/0', 'redis://lock-3:6379/0']"
)
#: Advice for a user who has no server.
WITHOUT_SERVER = "In tests, redlock_nodes = ['memory://'] needs no server."
VERIFY = {ssl.CERT_NONE: "none", ssl.CERT_OPTIONAL: "optional", ssl.CERT_REQUIRED: "required"}
PROVIDER = "credential_provider"
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

#: Options of connections to Sentinels that change neither whom they reach nor as which user.
_OF_NO_ACCOUNT = ("socket_", "retry_on_", "health_check_interval", "max_connections", "client_name")


def node_from_broker(app: AppLike) -> str:
    """
    Return the node URL of the app's broker.

    Raises:
        ConfigurationError: the broker is neither one plain Redis server nor one Sentinel group.
            Never shows a password.
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
    if several and transport != "sentinel":
        raise _refusal("there are several brokers")
    if transport == "memory":
        raise _refusal("the broker is in memory", WITHOUT_SERVER)
    if transport not in ("redis", "rediss", "sentinel"):
        raise _refusal(f"the broker ({_name(transport)}) is not a plain Redis server")
    if callable(broker.password):
        raise _refusal("the broker's password comes from a function")
    if transport == "sentinel":
        return _sentinel_url(broker)
    if "://" in (hostname or ""):
        return _socket_url(hostname, broker)
    tls = _tls_query(broker.ssl, "broker_use_ssl")
    login, provider = _login(broker.userid, broker.password, _provider(broker))
    return (
        f"{'redis' if tls is None else 'rediss'}://{login}"
        f"{_host(hostname, broker.port or 6379)}/{_database(broker.virtual_host)}"
        f"{_query((tls or {}) | provider)}"
    )


def prefix_from_broker(app: AppLike) -> str:
    """
    Return the prefix of all keys of the app on its broker; empty for none.

    Raises:
        ConfigurationError: the setting is no string.
    """
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix") or ""
    if not isinstance(prefix, str):
        raise _refusal("global_keyprefix in broker_transport_options is not a string")
    return prefix


def _sentinel_url(broker: Any) -> str:
    """Return the URL of the group whose master is the broker."""
    options = broker.transport_options or {}
    group = options.get("master_name")
    if not isinstance(group, str) or not group or "/" in group:
        raise _refusal(
            "broker_transport_options has no master_name, the name that Sentinels have for the "
            "broker"
        )
    user, database = (broker.userid, broker.password), _database(broker.virtual_host)
    login, provider = _login(*user, _provider(broker))
    # kombu takes these of the URL that it tries, and the first is the one that it tries first.
    urls = [url_to_parts(url) for url in broker.alt]
    if any(
        one.scheme != "sentinel"
        or (one.username, one.password) not in (user, (None, None))
        or (one.path is not None and _database(one.path) != database)
        or one.query.get(PROVIDER, provider.get(PROVIDER)) != provider.get(PROVIDER)
        for one in urls
    ):
        raise _refusal(
            "the broker's URLs are not all sentinel://, or differ in user, password, database or "
            "credential_provider"
        )
    places = [(one.hostname, one.port) for one in urls] or [(broker.hostname, broker.port)]
    hosts = ",".join(_host(hostname, port or 26379) for hostname, port in places)
    tls = _tls_query(broker.ssl, "broker_use_ssl")
    query = _sentinel_query(options.get("sentinel_kwargs"), tls)
    return (
        f"{'redis' if tls is None else 'rediss'}+sentinel://{login}{hosts}"
        f"/{quote(group, safe='')}/{database}{_query(query | provider)}"
    )


def _sentinel_query(given: Any, tls: dict[str, str] | None) -> dict[str, str]:
    """
    Return the URL's query for a Sentinel group.

    Args:
        given: the `sentinel_kwargs` of kombu, with which it connects to the Sentinels.
        tls: the TLS options of the master; None if it is reached without TLS.
    """
    name = "sentinel_kwargs of broker_transport_options"
    if given is not None and not isinstance(given, dict):
        raise _refusal(f"{name} is not a dict")
    options = {key: value for key, value in (given or {}).items() if value is not None}
    login = {key: options.pop(key) for key in ("username", "password") if key in options}
    if not all(isinstance(value, str) for value in login.values()):
        raise _refusal(f"a user or password in {name} is not a string")
    has_tls = bool(options.pop("ssl", False))
    files = {key: options.pop(key) for key in list(options) if key.startswith("ssl_")}
    if unknown := [key for key in options if not key.startswith(_OF_NO_ACCOUNT)]:
        raise _refusal(f"{name} has {unknown[0]}, which a node URL cannot express")
    # Without `ssl` redis-py connects without TLS, whatever files are named.
    own = _tls_query(files, name) or {} if has_tls else None
    if own is not None and tls is not None and own != tls:
        raise _refusal(f"{name} has TLS options that differ from broker_use_ssl")
    query = {f"sentinel_{key}": value for key, value in login.items()}
    if (own is None) != (tls is None):
        query["sentinel_tls"] = str(own is not None).lower()
    return query | (tls or own or {})


def _host(hostname: str | None, port: int) -> str:
    host = hostname or "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _socket_url(hostname: str, broker: Any) -> str:
    parts = url_to_parts(hostname)
    query = dict(parts.query)
    database = _database(query.pop("virtual_host", broker.virtual_host))
    login, provider = _login(parts.username, parts.password, query.pop(PROVIDER, None))
    if parts.scheme != "socket" or query or broker.ssl:
        raise _refusal("the broker's socket URL has parts that a node URL cannot express")
    return f"unix://{login}/{quote(parts.path or '')}{_query({'db': str(database)} | provider)}"


def _provider(broker: Any) -> str | None:
    name: str | None = getattr(broker, PROVIDER, None)  # older versions of kombu have none
    return name


def _login(
    user: str | None, password: str | None, provider: str | None
) -> tuple[str, dict[str, str]]:
    """Return what a URL has before its host, and in its query for code that kombu asks for it."""
    if provider:
        return "", {PROVIDER: provider}
    if not user and not password:
        return "", {}
    secret = f":{quote(password, safe='')}" if password else ""
    return f"{quote(user or '', safe='')}{secret}@", {}


def _database(virtual_host: Any) -> int:
    text = str(virtual_host or "").removeprefix("/") or "0"
    if not text.isdecimal():
        raise _refusal("the broker URL does not end in a database number")
    return int(text)


def _tls_query(options: Any, where: str) -> dict[str, str] | None:
    """Return the URL's query for kombu's TLS options, None for a connection without TLS."""
    if not options:
        return None
    if not isinstance(options, dict):
        # kombu ignores `True` for Redis and connects without TLS, which no user means by it.
        raise _refusal(f"{where} is not a dict of ssl_* options")
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
            raise _refusal(f"{where} has {name}, which a node URL cannot express")
    return query


def _query(options: dict[str, str]) -> str:
    return f"?{urlencode(options)}" if options else ""


def _name(transport: Any) -> str:
    is_named = isinstance(transport, str)
    return transport if is_named else f"{transport.__module__}.{transport.__qualname__}"


def _refusal(reason: str, hint: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"redlock_nodes is not set, and the broker cannot be the lock node: {reason}. "
        f"Set {EXAMPLE}. {hint}".rstrip()
    )
