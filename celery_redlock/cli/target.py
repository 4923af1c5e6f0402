"""
The target of a command: nodes that URLs name, or those of an app.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Target", "targeted"]

_GIVEN = "celery_redlock.target"

_OPTIONS = (
    click.option(
        "-A", "--app", metavar="APP", help="The app with these nodes, as `celery -A` takes it."
    ),
    click.option(
        "--nodes",
        multiple=True,
        metavar="URL[,URL...]",
        help="The whole set of nodes, as in redlock_nodes: redis://, rediss:// or unix:// URLs.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    The nodes or the app that a command line names.

    Attributes:
        urls: of `--nodes`, with commas; None if it was not given.
        app_name: of `-A`; empty if it was not given.
        umbrella_app: the app of `celery -A`, where that command runs this one.
    """

    urls: str | None = None
    app_name: str = ""
    umbrella_app: Celery | None = None

    def app(self) -> Celery:
        """
        Return the app.

        Raises:
            ConfigurationError: there is no such app.
            click.UsageError: none is named.
        """
        from celery_redlock.cli.apps import load_app

        if self.app_name:
            return load_app(self.app_name)
        if self.umbrella_app is None:
            raise click.UsageError("this needs an app: give -A APP, as for celery.")
        return self.umbrella_app

    def nodes(self) -> str | Sequence[str]:
        """
        Return the URLs of the nodes; errors as `app`.

        Raises:
            ConfigurationError: the app's settings cannot be used.
        """
        if self.urls is not None:
            return self.urls
        if not self.app_name and self.umbrella_app is None:
            raise click.UsageError("this needs lock nodes: give --nodes URL[,URL...], or -A APP.")
        from celery_redlock.tasks.config.settings import read_settings

        return read_settings(self.app()).nodes


def targeted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name its target, and pass it as the first argument."""

    def run(
        ctx: click.Context, *args: Any, nodes: tuple[str, ...], app: str | None, **options: Any
    ) -> Any:
        return function(_target(ctx, nodes, app), *args, **options)

    command: Any = functools.update_wrapper(run, function)
    for option in _OPTIONS:
        command = option(command)
    return click.pass_context(command)


def _target(ctx: click.Context, nodes: tuple[str, ...], app: str | None) -> Target:
    """Return what this command's options name, or those before it, or Celery's."""
    if nodes and app:
        raise click.UsageError("--nodes and -A both name nodes: give one of them.")
    if nodes or app:
        ctx.meta[_GIVEN] = Target(urls=",".join(nodes) if nodes else None, app_name=app or "")
    umbrella_app = getattr(ctx.find_root().obj, "app", None)
    target: Target = ctx.meta.get(_GIVEN) or Target(umbrella_app=umbrella_app)
    return target
