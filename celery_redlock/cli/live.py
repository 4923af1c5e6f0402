"""
`celery-redlock watch` and `web`: locks, waiters and nodes, live on a terminal or in a browser.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import socket
import sys
import time
from typing import TYPE_CHECKING

import click

from celery_redlock.admin.live_view import LiveView
from celery_redlock.cli.target import Target
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_redlock.web.access import TokenAccess


def watch_locks(target: Target, text: str, *, every: float, as_json: bool) -> int:
    """
    Show locks and nodes until `q` is pressed or the process is interrupted, and return 0.

    Args:
        target: the nodes or the app.
        text: the filter: a glob on keys, or a part of a key, task, id, host or state.
        every: seconds between two polls of the nodes.
        as_json: print one line of JSON for each poll; this needs no terminal.

    Raises:
        ConfigurationError: a package is missing, or this system has no such terminals.
        click.UsageError: there is no terminal.
    """
    with target.client() as client, contextlib.suppress(KeyboardInterrupt):
        view = LiveView(client, target.task_names())
        looks = (view.look([text])[text] for _ in itertools.count())
        if not as_json:
            _check_terminal()
            from celery_redlock.cli.screen import show

            show(looks, every)
            return 0
        for look in looks:
            print(json.dumps(look), flush=True)
            time.sleep(every)
    return 0


def _check_terminal() -> None:
    if importlib.util.find_spec("rich") is None:
        raise ConfigurationError(
            'watch needs the package rich: pip install "celery-redlock[cli]". Or give --json.'
        )
    if importlib.util.find_spec("termios") is None:
        raise ConfigurationError("watch cannot read keys on this system: give --json.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("watch needs a terminal; for programs, give --json.")


def serve(
    target: Target,
    *,
    host: str,
    port: int,
    token: str | None,
    read_only: bool,
    as_json: bool,
) -> int:
    """
    Serve the page until the process is interrupted, and return 0.

    Args:
        target: the nodes or the app.
        host: name or address to listen on.
        port: port to listen on; 0: a free port.
        token: the token that viewers need; None: no token on loopback, otherwise a new one.
        read_only: viewers cannot release locks.
        as_json: print the address as one JSON object in a line.

    Raises:
        ConfigurationError: it cannot listen there, or a package is missing.
    """
    try:
        from celery_redlock.web.server import PageServer
    except ModuleNotFoundError as exc:
        if exc.name not in ("starlette", "uvicorn"):
            raise
        raise ConfigurationError(
            f'web needs the package {exc.name}: pip install "celery-redlock[web]".'
        ) from exc
    from celery_redlock.web.access import TokenAccess

    access = TokenAccess.for_host(host, token, read_only=read_only)
    with target.client() as client, _listening(host, port) as listener:
        server = PageServer(LiveView(client, target.task_names()), access)
        url = _url(host, listener, access)
        text = f"Locks are shown at {url} until Ctrl-C."
        click.echo(json.dumps({"url": url}) if as_json else text)
        server.serve_on(listener)
    return 0


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as exc:
        raise ConfigurationError(
            f"The page cannot listen at {host}, port {port} ({exc}). Give another --host or --port."
        ) from exc


def _url(host: str, listener: socket.socket, access: TokenAccess) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104 - compared, not listened at
    place = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}/"
    return place if access.token is None else f"{place}?token={access.token}"
