"""
`celery-redlock web`: the page, served on this machine.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import click

from celery_redlock.cli.target import Target
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_redlock.web.access import TokenAccess


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
        server = PageServer(client, target.task_names(), access)
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
