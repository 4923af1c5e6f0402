"""
Credentials that a node's URL gives as the name of code, which is asked at each new connection.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable
from concurrent.futures import wait
from functools import cache
from typing import Any

from redis import CredentialProvider

from celery_redlock._greenlets.threads import answer_from_app, in_thread_of_its_own
from celery_redlock.protocol.texts import shortened
from celery_redlock.transport.redis.connect_error import ConnectError


class NamedCredentials(CredentialProvider):
    """
    Gives redis-py what the code with a dotted name returns.

    Args:
        name: of a function, or of a `CredentialProvider` of redis-py or its class.
        limit: seconds to wait for an answer; None: as long as it takes.

    Raises:
        ValueError: this is the name of nothing of the kind.
    """

    def __init__(self, name: str, limit: float | None = None) -> None:
        self.name, self.limit = name, limit
        self._ask = _named(name)

    def get_credentials(self) -> Any:
        """
        Return a tuple of the password, or of user and password.

        Raises:
            ConnectError: the code has failed, takes too long or has returned something else.
        """
        try:
            given = self._answer()
        except ConnectError:
            raise
        except Exception as exc:
            raise self._failure(f"has failed: {type(exc).__name__}: {shortened(str(exc))}") from exc
        if not isinstance(given, tuple | list) or len(given) not in (1, 2):
            raise self._failure(
                f"has returned {type(given).__name__}, not (password,) or (user, password)"
            )
        return given

    def _answer(self) -> Any:
        if self.limit is None:
            return answer_from_app(self._ask)
        asked = in_thread_of_its_own(self._ask, "redlock-credentials")
        if wait([asked], self.limit).not_done:
            raise self._failure(f"took longer than {self.limit:g} s")
        return asked.result()

    def _failure(self, reason: str) -> ConnectError:
        return ConnectError(f"its credential provider {self.name} {reason}", lasting=False)


@cache
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
