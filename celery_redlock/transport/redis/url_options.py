"""
The options of a node's URL: how redis-py reads them, and which one it refuses.

One of them gives credentials as the name of code, which is asked at each new connection.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis import CredentialProvider
from redis.connection import parse_url

from celery_redlock._greenlets.threads import answer_from_app
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport.addresses import NodeAddress
from celery_redlock.transport.redis.connect_error import ConnectError, answer_within

#: Celery's spelling of `ssl_cert_reqs`, which is that of the ssl module, and redis-py's.
_CERT_REQS = {f"CERT_{name.upper()}": name for name in ("none", "optional", "required")}

_REMEDIES = {
    "ssl_cert_reqs": "write none, optional or required, or CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED",
    "protocol": "write 2 or 3",
    "credential_provider": "let the provider alone supply the user and the password",
}

#: Options that take an object, which no URL can give, or that name another server than the URL.
_NOT_IN_A_URL = frozenset(
    {
        *("command_packer", "connection_class", "driver_info", "event_dispatcher"),
        *("parser_class", "redis_connect_func", "retry", "retry_on_error"),
        *("socket_keepalive_options", "socket_type", "host", "port", "path"),
    }
)

#: The option in an error of redis-py; never a value, which may be a password.
_invalid_name = re.compile(r"Invalid value for ['`](\w+)['`]").search

#: The code to ask, by its name.
_sources: dict[str, Callable[[], Any]] = {}


def read_options(address: NodeAddress) -> dict[str, Any]:
    """
    Return the options that redis-py reads in a URL, and `connection_class` unless it is plain TCP.

    Raises:
        ConfigurationError: redis-py does not take an option of the URL, or its value, or nothing
            gives credentials by the name in it.
    """
    try:
        options: dict[str, Any] = dict(parse_url(address.url))  # type: ignore[no-untyped-call]
    except ValueError as exc:
        named = _invalid_name(str(exc))
        raise _refusal(address, named[1] if named else None) from None
    for name in _given(address):
        if name in _NOT_IN_A_URL:
            raise _refusal(address, name)
    if provider := options.get("credential_provider"):
        try:
            options["credential_provider"] = NamedCredentials(provider)
        except ValueError as exc:
            raise ConfigurationError(
                f"Lock node {address.name}: credential_provider={provider} in its URL is not the "
                f"dotted name of a function or of a redis-py CredentialProvider ({exc})."
            ) from exc.__cause__
    options.pop("max_connections", None)
    if (cert_reqs := options.get("ssl_cert_reqs")) in _CERT_REQS:
        options["ssl_cert_reqs"] = _CERT_REQS[cert_reqs]
    return options


def check_options(address: NodeAddress, kind: Any, options: Mapping[str, Any]) -> None:
    """
    Check that a connection can be made with a URL's options and ours.

    Raises:
        ConfigurationError: redis-py refuses an option of the URL.
    """
    if _takes(kind, options):
        return
    given = _given(address)
    ours = {name: value for name, value in options.items() if name not in given}
    for name in given:
        if name in options and not _takes(kind, {**ours, name: options[name]}):
            raise _refusal(address, name)
    raise _refusal(address, None)


def missing_files(options: Mapping[str, Any]) -> list[str]:
    """Return the options that name a file that is not there."""
    return [
        f"{name}={options[name]}"
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        if name in options and not os.path.exists(options[name])
    ]


def _given(address: NodeAddress) -> list[str]:
    return list(parse_qs(urlsplit(address.url).query))


def _takes(kind: Any, options: Mapping[str, Any]) -> bool:
    try:
        kind(**options)
    except Exception:
        # It raises many types: its own, built-in ones, and those of code that reads a value.
        return False
    return True


def _refusal(address: NodeAddress, name: str | None) -> ConfigurationError:
    which = f"the option {name}" if name else "an option"
    remedy = _REMEDIES.get(name or "", "remove or correct the part after its ?")
    return ConfigurationError(
        f"Lock node {address.name}: its URL has {which} with a name or value that redis-py does "
        f"not take from a URL; {remedy}."
    )


class NamedCredentials(CredentialProvider):
    """
    Gives redis-py what the code with a dotted name returns.

    Args:
        name: of a function, or of a `CredentialProvider` of redis-py, its class or a function that
            returns one.
        limit: seconds to wait for an answer; None: as long as it takes.

    Raises:
        ValueError: this is the name of nothing of the kind.
    """

    def __init__(self, name: str, limit: float | None = None) -> None:
        self.name, self.limit = name, limit
        if name not in _sources:
            _sources[name] = _named(name)

    def get_credentials(self) -> Any:
        """
        Return a tuple of the password, or of user and password.

        Raises:
            ConnectError: the code has failed, takes too long or has returned something else.
        """
        if self.limit is None:
            return answer_from_app(self._ask)
        return answer_within(self.limit, self._ask, self._what)

    def _ask(self) -> Any:
        try:
            given = _sources[self.name]()
            if hasattr(given, "get_credentials"):
                _sources[self.name] = given.get_credentials
                given = given.get_credentials()
        except BaseException as exc:  # time limits of greenlets are no `Exception`
            reason = f"{type(exc).__name__}: {shortened(str(exc))}"
            raise self._failure(f"has failed: {reason}") from exc
        if isinstance(given, tuple | list) and len(given) in (1, 2):
            return given
        kind = type(given).__name__
        raise self._failure(f"has returned {kind}, not (password,) or (user, password)")

    @property
    def _what(self) -> str:
        return f"its credential provider {self.name}"

    def _failure(self, reason: str) -> ConnectError:
        return ConnectError(f"{self._what} {reason}", lasting=False)


def _named(name: str) -> Callable[[], Any]:
    try:
        found = _imported(name)
        asked = found() if isinstance(found, type) else found
    except Exception as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    ask: Callable[[], Any] = getattr(asked, "get_credentials", asked)
    if callable(ask):
        return ask
    raise ValueError(f"it is a {type(asked).__name__}")


def _imported(name: str) -> Any:
    """Import from the current folder as well, as Celery imports an app."""
    folder = os.getcwd()
    is_new = folder not in sys.path
    if is_new:
        sys.path.append(folder)
    try:
        return pkgutil.resolve_name(name)
    finally:
        if is_new:
            sys.path.remove(folder)
