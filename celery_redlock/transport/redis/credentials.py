"""
Credentials that a node's URL gives as the name of code, which is asked at each new connection.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from redis import CredentialProvider

from celery_redlock._greenlets.threads import answer_from_app
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport.redis.connect_error import ConnectError, answer_within

#: The code to ask, by its name.
_sources: dict[str, Callable[[], Any]] = {}


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
