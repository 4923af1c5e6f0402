"""
One lock client per app and process, and what a process logs of its nodes when it starts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from celery_redlock._greenlets.threads import register_at_fork
from celery_redlock._log import event_logger
from celery_redlock.core import Client
from celery_redlock.core.client import logged_nodes
from celery_redlock.core.failures import describe_problems
from celery_redlock.core.node_admin import ProbeResult
from celery_redlock.errors import ConfigurationError
from celery_redlock.protocol.keys import Key
from celery_redlock.protocol.timing import quorum
from celery_redlock.tasks.border import AppLike, TaskLike, app_itself
from celery_redlock.tasks.config.settings import DEFAULT_TTL, RedlockSettings, read_settings
from celery_redlock.transport import kind_of, parse_nodes
from celery_redlock.transport.redis.node_set import logged_elsewhere

logger = event_logger(__name__)

_clients: weakref.WeakKeyDictionary[Any, Client] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def client_for(app: AppLike) -> Client:
    """Return this process's client for an app, made from its settings at first use."""
    app = app_itself(app)
    client = _clients.get(app)
    if client is None:
        settings = read_settings(app)
        # Outside the lock, because a logging handler may send a task; and before the client exists,
        # which would log a single node in its own words.
        log_nodes_once(settings)
        with _lock:
            client = _clients.get(app)
            if client is None:
                client = _clients[app] = _make_client(settings)
    return client


def _make_client(settings: RedlockSettings) -> Client:
    return Client(
        settings.nodes,
        max_ttl=settings.max_ttl,
        takeover=settings.takeover,
        ttl=min(DEFAULT_TTL, settings.max_ttl),
        key_prefix=settings.prefix_on_nodes,
        drift_factor=settings.drift_factor,
        node_timeout=settings.node_timeout,
        guard=settings.guard,
    )


def lock_keys(
    client: Client, task: TaskLike, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Key, ...]:
    """Return the lock keys of a call of a task, or raise `LockKeyError`; none if it has no lock."""
    maker = task.redlock_plan.keys
    if maker is None:
        return ()
    keys: tuple[Key, ...] = maker.keys_for(args, kwargs, client.settings.key_prefix)
    return keys


def close_clients() -> None:
    """Close every client of this process; `client_for` makes a new one when it is called again."""
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        # A thread may still use the client, and ends its task under its lock.
        client.disconnect()


def _reset_after_fork() -> None:
    """Forget the parent's clients in a forked child, without closing their connections."""
    global _lock  # the parent may have held it when it forked
    _lock = threading.Lock()
    _clients.clear()


#: The names of nodes that were logged together. Pool children inherit the set.
_logged: set[tuple[str, ...]] = set()


#: The remedy for a single node that fails over.
_FAILOVER_NOTE = (
    " Its Sentinels may promote a replica that lacks the newest locks; with redlock_guard = True "
    "no lock is then granted until all earlier ones have ended."
)


def log_nodes_once(settings: RedlockSettings) -> None:
    """Log once which nodes hold the locks, and warn of a single one."""
    nodes = parse_nodes(settings.nodes)
    names = tuple(node.name for node in nodes)
    if names in _logged:
        return
    _logged.add(names)
    logged_nodes.add(names)  # the client has nothing to add
    logged_elsewhere.update(names)
    if kind_of(nodes[0]).is_in_process:
        return  # for tests, where a single node of this process is as good as five
    failover_note = _FAILOVER_NOTE if nodes[0].fails_over and not settings.guard else ""
    if settings.nodes_from_broker:
        logger.warning(
            "nodes-not-set",
            "redlock_nodes is not set, so the broker %(node)s is the only lock node. That keeps "
            "tasks apart while this one server runs, but when it restarts without its data or "
            "fails over to a replica, two bodies can run at once, and no lock can be acquired "
            "while it is down.%(failover_note)s Set redlock_nodes to three or five independent "
            "servers.",
            node=names[0],
            failover_note=failover_note,
        )
    elif len(names) == 1:
        logger.warning(
            "locks-on-single-node",
            "Locks live on the single node %(node)s: they do not survive its failover or loss of "
            "data.%(failover_note)s Set redlock_nodes to three or five independent servers.",
            node=names[0],
            failover_note=failover_note,
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


#: Apps whose nodes were checked. Pool children inherit it, and do not check them again.
_checked: weakref.WeakSet[Any] = weakref.WeakSet()


def record_nodes_checked(app: AppLike) -> None:
    """Record that this process or its parent has found no unusable node of the app."""
    _checked.add(app_itself(app))


def are_nodes_checked(app: AppLike) -> bool:
    """Return whether the app's nodes were checked in this process or its parent."""
    return app_itself(app) in _checked


def unusable_nodes_error(problems: Mapping[str, str]) -> ConfigurationError:
    """
    Return the error that names nodes that can never serve.

    Args:
        problems: why each of them can never serve.
    """
    return ConfigurationError(
        f"Lock nodes cannot be used: {describe_problems(problems)}. Correct redlock_nodes (or the "
        "broker URL, where redlock_nodes is not set). With redlock_on_unusable_node = 'warn', the "
        "other nodes are used if there are enough of them."
    )


register_at_fork(after_in_child=_reset_after_fork)
