"""
One lock client per app and process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from celery_redlock._greenlets.forks import register_at_fork
from celery_redlock._log import event_logger
from celery_redlock.core import Redlock
from celery_redlock.core.node_admin import ProbeResult
from celery_redlock.core.redlock import logged_nodes
from celery_redlock.protocol import quorum
from celery_redlock.tasks.config.settings import (
    DEFAULT_TTL,
    RedlockSettings,
    app_itself,
    read_settings,
)
from celery_redlock.transport import parse_nodes
from celery_redlock.transport.redis.health import logged_elsewhere

__all__ = ["close_clients", "log_nodes_once", "log_problems", "redlock_for"]

logger = event_logger(__name__)

_clients: weakref.WeakKeyDictionary[Any, Redlock] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def redlock_for(app: Any) -> Redlock:
    """Return this process's client for an app, made from its settings at first use."""
    app = app_itself(app)
    client = _clients.get(app)
    if client is None:
        settings = read_settings(app)
        # Without the lock, as a logging handler may send a task; and before the client, which would
        # log a single node in its own words.
        log_nodes_once(settings)
        with _lock:
            client = _clients.get(app)
            if client is None:
                client = _clients[app] = _make_client(settings)
    return client


def _make_client(settings: RedlockSettings) -> Redlock:
    return Redlock(
        settings.nodes,
        max_ttl=settings.max_ttl,
        ttl=min(DEFAULT_TTL, settings.max_ttl),
        key_prefix=settings.prefix_on_nodes,
        drift_factor=settings.drift_factor,
        node_timeout=settings.node_timeout,
        guard=settings.guard,
    )


def close_clients() -> None:
    """Close every client of this process; `redlock_for` makes a new one when it is called again."""
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        # A thread may still have it, and ends its task under its lock.
        client.disconnect()


def _reset_after_fork() -> None:
    """Forget the parent's clients in a forked child, without closing their connections."""
    global _lock  # the parent may have held it when it forked
    _lock = threading.Lock()
    _clients.clear()


#: Nodes that are logged. Pool children inherit it.
_logged: set[tuple[str, ...]] = set()


def log_nodes_once(settings: RedlockSettings) -> None:
    """Log once which nodes hold the locks, and warn of a single one."""
    names = tuple(node.name for node in parse_nodes(settings.nodes))
    if names in _logged:
        return
    _logged.add(names)
    logged_nodes.add(names)  # the client has nothing to add
    logged_elsewhere.update(names)
    if names[0].startswith("memory://"):
        return  # for tests, where a single node of this process is as good as five
    if settings.nodes_from_broker:
        logger.warning(
            "nodes-not-set",
            "redlock_nodes is not set, so the broker %(node)s is the only lock node. That "
            "excludes tasks from each other while this one server runs, but when it restarts "
            "without its data or fails over to a replica, two bodies can run at once, and while "
            "it is down no lock can be taken. Set redlock_nodes to three or five independent "
            "servers.",
            node=names[0],
        )
    elif len(names) == 1:
        logger.warning(
            "locks-on-single-node",
            "Locks live on the single node %(node)s: they do not survive its failover or loss of "
            "data. Set redlock_nodes to three or five independent servers.",
            node=names[0],
        )
    else:
        logger.info(
            "locks-on-nodes",
            "Locks live on %(node_count)d nodes, of which %(needed)d are needed: %(nodes)s",
            node_count=len(names),
            needed=quorum(len(names)),
            nodes=", ".join(names),
        )


def log_problems(settings: RedlockSettings, problems: Sequence[ProbeResult]) -> None:
    """Warn of the nodes that a process has found without a vote at its start."""
    for probe in problems:
        logger.warning(
            "node-without-vote-at-start",
            "Lock node %(node)s %(problem)s: %(reason)s. Locks need %(needed)d of %(node_count)d "
            "nodes.",
            node=probe.name,
            problem="cannot be used" if probe.lasting else "does not answer",
            reason=str(probe.problem).rstrip("."),
            needed=quorum(len(settings.nodes)),
            node_count=len(settings.nodes),
        )


register_at_fork(after_in_child=_reset_after_fork)
