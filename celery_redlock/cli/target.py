"""
The target of a command: nodes that URLs name, or those of an app.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

    from celery_redlock.core import Client
    from celery_redlock.tasks.config.settings import RedlockSettings

_GIVEN = "celery_redlock.target"

_OPTIONS = (
    click.option(
        "-A", "--app", metavar="APP", help="The app that uses the nodes, as for `celery -A`."
    ),
    click.option(
        "--nodes",
        multiple=True,
        metavar="URL[,URL...]",
        help="URLs of the whole set of nodes, as in redlock_nodes.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    The nodes or the app that a command line names.

    Attributes:
        urls: the URLs of `--nodes`, with commas; None if it was not given.
        app_name: the name given with `-A`; empty if it was not given.
        umbrella_app: the app of `celery -A`, if that command runs this one.
        key_prefix: the prefix of the keys, if no app sets it.
    """

    urls: str | None = None
    app_name: str = ""
    umbrella_app: Celery | None = None
    key_prefix: str | None = None

    def app(self) -> Celery:
        """
        Return the app.

        Raises:
            ConfigurationError: there is no such app.
            click.UsageError: none is named.
        """
        if self.app_name:
            return _load_app(self.app_name)
        if self.umbrella_app is None:
            raise click.UsageError("this needs an app: give -A APP, as for celery.")
        return self.umbrella_app

    def settings(self) -> RedlockSettings:
        """
        Return the app's settings, or default settings if nodes are named.

        Raises:
            ConfigurationError: there is no such app, or its settings cannot be used.
            click.UsageError: neither nodes nor an app is named.
        """
        from celery_redlock.tasks.config.settings import RedlockSettings, read_settings

        self._check()
        return RedlockSettings() if self.urls is not None else read_settings(self.app())

    def nodes(self) -> str | Sequence[str]:
        """Return the URLs of the nodes; errors as for `settings`."""
        return self.urls if self.urls is not None else self.settings().nodes

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client with the app's key prefix or the named one; errors as for `settings`."""
        from celery_redlock.core import Redlock, client_of
        from celery_redlock.tasks.config.client import client_for

        self._check()
        if self.urls is None:
            if self.key_prefix is not None:
                raise click.UsageError("--key-prefix is for --nodes: an app has its own prefix.")
            yield client_for(self.app())
            return
        options = {} if self.key_prefix is None else {"key_prefix": self.key_prefix}
        with Redlock(self.urls, **options) as redlock:  # type: ignore[arg-type]
            yield client_of(redlock)

    def task_names(self) -> dict[str, str]:
        """Return the names of the app's tasks by their digests; none without an app."""
        from celery_redlock.admin.lock_list import task_names

        return task_names(self.app().tasks) if self.urls is None else {}

    def _check(self) -> None:
        if self.urls is None and not self.app_name and self.umbrella_app is None:
            raise click.UsageError("this needs lock nodes: give --nodes URL[,URL...], or -A APP.")


def targeted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name its target, and pass it as the first argument."""

    def run(
        ctx: click.Context,
        *args: Any,
        nodes: tuple[str, ...],
        app: str | None,
        key_prefix: str | None = None,
        **options: Any,
    ) -> Any:
        target = replace(_target(ctx, nodes, app), key_prefix=key_prefix)
        return function(target, *args, **options)

    command: Any = functools.update_wrapper(run, function)
    for option in _OPTIONS:
        command = option(command)
    return click.pass_context(command)


def _target(ctx: click.Context, nodes: tuple[str, ...], app: str | None) -> Target:
    """Return the target that options of this command, of the group or of Celery name."""
    if nodes and app:
        raise click.UsageError("--nodes and -A both name nodes: give one of them.")
    if nodes or app:
        ctx.meta[_GIVEN] = Target(urls=",".join(nodes) if nodes else None, app_name=app or "")
    umbrella_app = getattr(ctx.find_root().obj, "app", None)
    target: Target = ctx.meta.get(_GIVEN) or Target(umbrella_app=umbrella_app)
    return target


def _load_app(name: str) -> Celery:
    from celery import Celery
    from celery.app.utils import find_app

    try:
        app = find_app(name)
    except Exception as exc:
        # The app's module may raise any error when it is imported.
        raise _no_app(name, f"{type(exc).__name__}: {exc}") from exc
    if not isinstance(app, Celery):
        raise _no_app(name, f"it is not a Celery app but a {type(app).__name__}")
    return app


def _no_app(name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"-A {name} cannot be loaded ({reason}). Name it as for celery: the module or package "
        "of the app, or module:attribute; run this where you run celery."
    )
