"""The `redlock_*` settings of an app, however they were given to Celery."""

from __future__ import annotations

import re
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from celery.app import utils as celery_utils

from celery_redlock.core import SHORTEST_TTL
from celery_redlock.core.validation import checked_drift_factor
from celery_redlock.errors import ConfigurationError, LockKeyError
from celery_redlock.protocol.keys import validate_key, validate_name
from celery_redlock.tasks.border import AppLike, app_itself
from celery_redlock.tasks.config.broker_node import node_from_broker, prefix_from_broker
from celery_redlock.tasks.config.mistakes import Mistakes
from celery_redlock.tasks.config.option_values import check_storable
from celery_redlock.tasks.config.options import (
    NONE_IS_A_VALUE,
    OPTIONS,
    PER_TASK,
    checked,
    checks_of,
    one_of,
    seconds,
    unknown_name,
)
from celery_redlock.transport import parse_node, split_nodes

PREFIX = "redlock_"
#: Default TTL of a lock in seconds, unless `redlock_max_ttl` is shorter.
DEFAULT_TTL = 30.0
#: Prefix of Celery's own tasks, which only a pattern with this prefix matches.
BUILT_IN = "celery."
#: Replaces nodes that are all unreadable, while other mistakes are looked for.
UNREADABLE = ("memory://unreadable",)
RESERVED_SIGNALS = (
    "SIGKILL",
    "SIGSTOP",
    "SIGTERM",
    "SIGINT",
    "SIGQUIT",
    "SIGHUP",
    "SIGCHLD",
    "SIGUSR1",
)

#: 0 where threads receive no signals (Windows).
LOST_SIGNAL = int(signal.SIGURG) if hasattr(signal, "pthread_kill") else 0

# `celery report` and `inspect conf` print every setting whose name does not match this pattern, and
# node URLs contain passwords. Celery has no other way to extend the pattern.
if "REDLOCK_NODES" not in celery_utils.HIDDEN_SETTINGS.pattern:
    celery_utils.HIDDEN_SETTINGS = re.compile(
        f"{celery_utils.HIDDEN_SETTINGS.pattern}|REDLOCK_NODES",
        celery_utils.HIDDEN_SETTINGS.flags,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RedlockSettings:
    """
    The checked settings of an app; durations in seconds.

    The reference of settings prints this text.

    Attributes:
        given_nodes: URLs of independent masters; three or five, or one if a second run only wastes
            work. `redis://`, `rediss://`, `unix://`, or `redis+sentinel://`; `memory://name` for
            unit tests.
        max_ttl: Longest TTL of a lock. All processes that use the same nodes need the same value,
            because restart quarantine lasts this long.
        takeover: How long after a failover a process may still use the former master of a Sentinel
            group. A promoted server is quarantined for this long in addition to `redlock_max_ttl`,
            and both settings need the same value in all processes. `None`: 30 seconds if a node can
            fail over, otherwise 0.
        key_prefix: Prefix of every lock key on the nodes. If the broker is the node, the
            `global_keyprefix` of `broker_transport_options` precedes it.
        drift_factor: Clock drift to allow for, as a fraction of the TTL. If chrony may slew at its
            default of 83 333 ppm, use 0.1, or give chrony `maxslewrate 1000`.
        node_timeout: How long a process waits for each reply of a node, including those while it
            connects (TCP, login, scripts); for a TLS handshake, three times as long. A node that
            never replies delays a call by this time. A first connection with slow replies, or
            with a TLS handshake that never ends, delays it by up to four times as much.
        on_unusable_node: Reaction to a node that can never serve (wrong password, missing
            permission, cluster mode). `raise`: a worker or beat does not start, and the first
            publish of a process that takes a lock raises `ConfigurationError`. `warn`: processes
            log the node and use the others; without a quorum a message is sent without its lock.
        guard: Whether restarted nodes are in restart quarantine until all older locks have expired.
            `None`: only with two or more nodes.
        dedupe: Run each message once, even if the broker delivers it twice; for all tasks. Set it
            in workers and publishers. Without it in the publisher, two messages with one task id
            count as one delivered twice, for `lock_dedupe_window`. Has an effect only in processes
            that a `celery` command starts, or that import `RedlockTask` or `celery_redlock.tasks`.
        lost_signal: Signal that interrupts a body in a prefork or solo worker. Windows has none.
        tasks: Lock options for tasks whose names match a pattern:
            `{"billing.*": {"lock_key": True}}`. A task's exact name beats patterns, and an
            earlier pattern a later one; `None` instead of options excludes the task. Has an effect
            only in processes that a `celery` command starts, or that import `RedlockTask` or
            `celery_redlock.tasks`.
        beat_ttl: TTL of the leader's lock, with `RedlockScheduler`: how long after the leader
            crashed another beat takes over. `None`: `redlock_ttl`, at most `redlock_max_ttl`.
        beat_renew_deadline: The leader stops sending when its lock has not been extended for this
            long.
            Must be shorter than the TTL and longer than a third of it, which is the interval of
            the extensions. `None`: two thirds of the TTL.
        beat_retry: Interval between a standby's election attempts, and the time that one pass of
            the scheduler should not exceed. The leader's broker connect and read timeouts are three
            quarters of it. `None`: 2 seconds, at most a sixth of the TTL.
        beat_scheduler: The scheduler that `RedlockScheduler` wraps: a class, its path or its alias.
            The default has the entries of an ordinary beat and keeps nothing on disk: state that
            must outlive a beat is on the lock nodes.
        beat_key: Name of the leader's lock and of the schedule's record. Beats with the same name
            share a schedule. `None`: `beat:` and the name of the app.
        defaults: the options that `redlock_<option>` settings give, named without prefix.
        app: returns the app; None once it is gone.
    """

    given_nodes: tuple[str, ...] = field(default=(), repr=False)
    max_ttl: Annotated[float, seconds(SHORTEST_TTL)] = 60.0
    takeover: Annotated[float | None, seconds(0.0)] = None
    key_prefix: Annotated[str, _key_prefix] = "redlock:"
    drift_factor: float = 0.01
    node_timeout: Annotated[float, seconds(0.001)] = 0.2
    on_unusable_node: Annotated[str, one_of(OnUnusableNode)] = "raise"
    guard: Annotated[bool | None, _switch] = None
    dedupe: Annotated[bool, _switch] = False
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lost_signal: Annotated[int, _lost_signal] = LOST_SIGNAL
    beat_ttl: Annotated[float | None, seconds(SHORTEST_TTL)] = None
    beat_renew_deadline: Annotated[float | None, seconds(0.01)] = None
    beat_retry: Annotated[float | None, seconds(0.01)] = None
    beat_scheduler: Annotated[str | type, _scheduler] = (
        "celery_redlock.beat.inner_scheduler:DefaultScheduler"
    )
    beat_key: Annotated[str | None, _lock_key] = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    app: Callable[[], Any] = field(default=lambda: None, repr=False)

    @property
    def nodes_from_broker(self) -> bool:
        """Whether `redlock_nodes` is unset, so that the broker is the single node."""
        return not self.given_nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        """
        The node URLs, with passwords.

        Read it only where a task locks: an app whose tasks do not lock needs no usable node.

        Raises:
            ConfigurationError: `redlock_nodes` is unset, and the broker cannot serve as a node.
        """
        return self.given_nodes or (node_from_broker(self.app()),)

    @property
    def prefix_on_nodes(self) -> str:
        """
        The prefix of every lock key on the nodes, with that of the broker if it is the node.

        Raises:
            ConfigurationError: as `nodes`.
        """
        app = self.app() if self.nodes_from_broker else None
        return (prefix_from_broker(app) if app else "") + self.key_prefix

    @property
    def ttl(self) -> float:
        """The TTL of a lock whose task sets none; a low `redlock_max_ttl` lowers the built-in."""
        ttl: float = self.defaults.get("ttl", min(DEFAULT_TTL, self.max_ttl))
        return ttl

    def options_for(self, task_name: str) -> Mapping[str, Any]:
        """Return the `redlock_tasks` entry of a task: its exact name, else the first match."""
        pattern = self.pattern_for(task_name)
        return {} if pattern is None else self.tasks[pattern]

    def pattern_for(self, task_name: str) -> str | None:
        """Return the pattern of that entry; None if none matches."""
        if task_name in self.tasks:
            return task_name
        return next((pattern for pattern in self.tasks if matches(pattern, task_name)), None)


def matches(pattern: str, task_name: str) -> bool:
    """Return whether a `redlock_tasks` pattern matches a task."""
    if task_name.startswith(BUILT_IN) and not pattern.startswith(BUILT_IN):
        return False
    return fnmatchcase(task_name, pattern)


OnUnusableNode = Literal["raise", "warn"]
Cached = tuple[dict[str, Any], RedlockSettings, Mistakes]
_cache: weakref.WeakKeyDictionary[Any, Cached] = weakref.WeakKeyDictionary()


def read_settings(app: AppLike) -> RedlockSettings:
    """
    Return the app's settings, cached until one of them changes.

    Raises:
        ConfigurationError: settings are unknown or have an invalid value; the message names each.
    """
    settings, mistakes = check_settings(app)
    mistakes.raise_any()
    return settings


def check_settings(app: AppLike) -> tuple[RedlockSettings, Mistakes]:
    """Return the app's settings, with defaults instead of invalid values, and the mistakes."""
    app, mistakes = app_itself(app), Mistakes()
    given = _given(app.conf, mistakes)
    known = _cache.get(app)
    if known is not None and known[0] == given and not mistakes:
        return known[1:]
    settings = _checked(given, weakref.ref(app), mistakes)
    _cache[app] = given, settings, mistakes
    return settings, mistakes


def _given(conf: Any, mistakes: Mistakes) -> dict[str, Any]:
    """Return the `redlock_*` settings without their namespace (`CELERY_REDLOCK_TTL`)."""
    # Celery loads the configuration, and with it the namespace, at first use.
    namespace = conf.finalize().prefix or ""
    known = {PREFIX + name for name in KNOWN}
    found = {}
    for key in [key for key in conf if isinstance(key, str)]:
        name = key.lower().removeprefix(namespace.lower())
        if not name.startswith(PREFIX):
            continue
        try:
            found[name] = conf[name]
        except KeyError:
            # Celery cannot read this spelling; a Django module may have such names of its own.
            if name in known or not namespace:
                wanted = _spelled(name, namespace)
                mistakes.append(ConfigurationError(f"setting {key}: write it as {wanted}."))
    unset = known - {PREFIX + name for name in NONE_IS_A_VALUE}
    return {name: value for name, value in found.items() if value is not None or name not in unset}


def _spelled(name: str, namespace: str) -> str:
    return (namespace + name).upper() if namespace.isupper() else namespace + name


def _checked(
    given: Mapping[str, Any], app: Callable[[], Any], mistakes: Mistakes
) -> RedlockSettings:
    values: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for label, value in given.items():
        name = label.removeprefix(PREFIX)
        with mistakes.collected():
            if name in PER_TASK:
                raise ConfigurationError(
                    f"setting {label} would apply to every task, with the task's name as key; "
                    f"set lock_{name} on the tasks it is for, or in redlock_tasks."
                )
            if name in OPTIONS:
                defaults[name] = checked(OPTIONS[name], value, f"setting {label}")
            elif name in CHECKS:
                values[name] = checked(CHECKS[name], value, f"setting {label}")
            elif name in SELF_DESCRIBING_CHECKS:
                values[name] = SELF_DESCRIBING_CHECKS[name](value, mistakes)
            else:
                raise ConfigurationError(f"setting {unknown_name(label, PREFIX, KNOWN)}")
    # Unreadable nodes must not be replaced by the default, which is the broker.
    nodes = values.pop("nodes", UNREADABLE if "redlock_nodes" in given else ())
    settings = RedlockSettings(given_nodes=nodes, defaults=defaults, app=app, **values)
    found = _contradictions(settings)
    mistakes.extend(ConfigurationError(f"setting {contradiction}.") for contradiction in found)
    if "skip_result" in defaults:
        with mistakes.collected():
            check_storable(defaults["skip_result"], "setting redlock_skip_result", app())
    return settings


def _contradictions(settings: RedlockSettings) -> Iterator[str]:
    """Iterate over messages about settings that do not fit each other."""
    if settings.ttl > settings.max_ttl:
        yield (
            f"redlock_ttl={settings.ttl:g} is above redlock_max_ttl={settings.max_ttl:g}; lower "
            "it or raise redlock_max_ttl"
        )
    if settings.node_timeout > settings.ttl:
        yield (
            f"redlock_node_timeout={settings.node_timeout:g} is above "
            f"redlock_ttl={settings.ttl:g}, so a lock would expire before a slow node had to "
            "reply; lower redlock_node_timeout, to a tenth of the TTL or less"
        )
    if settings.nodes_from_broker and not settings.key_prefix:
        yield (
            "redlock_key_prefix='' needs separate lock nodes: redlock_nodes is not set, so the "
            "broker is the lock node, and a lock key could be one of Celery's keys. Set "
            "redlock_nodes, or leave redlock_key_prefix out"
        )


def _nodes(value: Any, mistakes: Mistakes) -> tuple[str, ...]:
    # The messages must not print the value: it may contain passwords.
    advice = "give ['redis://host:6379/0', ...]."
    urls = split_nodes(value) if isinstance(value, str) else value
    if not isinstance(urls, list | tuple) or not all(isinstance(url, str) for url in urls):
        raise ConfigurationError(f"setting redlock_nodes is not a list of node URLs; {advice}")
    nodes = tuple(url.strip() for url in urls)
    if not nodes or not all(nodes):
        raise ConfigurationError(f"setting redlock_nodes is empty or has an empty entry; {advice}")
    readable = []
    for index, url in enumerate(nodes):
        try:
            parse_node(url)
            readable.append(url)
        except ConfigurationError as exc:
            mistakes.append(ConfigurationError(f"setting redlock_nodes[{index}]: {exc}"))
    return tuple(readable) or UNREADABLE


def _tasks(value: Any, mistakes: Mistakes) -> dict[str, dict[str, Any]]:
    shape = "setting redlock_tasks must be a mapping {'pattern': {'lock_key': True, ...}, ...}."
    if not isinstance(value, Mapping):
        raise ConfigurationError(shape)
    entries: dict[str, dict[str, Any]] = {}
    for pattern, options in value.items():
        with mistakes.collected():
            entries[pattern] = _entry(pattern, options, shape)
    return entries


def _entry(pattern: Any, options: Any, shape: str) -> dict[str, Any]:
    where = f"setting redlock_tasks[{pattern!r}]"
    if isinstance(pattern, str) and options is None:
        return {}
    if not isinstance(pattern, str) or not isinstance(options, Mapping):
        raise ConfigurationError(f"{where} is {options!r} and names no options; {shape}")
    if not options:
        raise ConfigurationError(
            f"{where} is empty; give at least {{'lock_key': True}}, or None to lock none "
            "of its tasks."
        )
    names = {f"lock_{name}": name for name in OPTIONS}
    mistakes = Mistakes()
    entry = {}
    for label, option in options.items():
        with mistakes.collected():
            if label not in names:
                raise ConfigurationError(f"{where}: {unknown_name(str(label), 'lock_', OPTIONS)}")
            name = names[label]
            entry[name] = checked(OPTIONS[name], option, f"{where}[{label!r}]")
    mistakes.raise_any()
    return entry


def _key_prefix(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigurationError("is not a string")
    try:
        validate_key(f"{value}x")
    except LockKeyError as exc:
        raise ConfigurationError(f"cannot be used: {exc.message.rstrip('.')}") from None
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError("is not a choice; give True or False, or omit it")
    return value


def _lost_signal(value: Any) -> int:
    if not LOST_SIGNAL:
        raise ConfigurationError(
            "cannot be used: threads receive no signals on this system; omit it"
        )
    try:
        found = signal.Signals[value] if isinstance(value, str) else signal.Signals(value)
    except (KeyError, ValueError):
        raise ConfigurationError(
            "is not a signal on this system; give a name such as 'SIGURG'"
        ) from None
    if found.name in RESERVED_SIGNALS:
        raise ConfigurationError("is taken by Celery or the system; use 'SIGURG'")
    return int(found)


def _lock_key(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError("is not the name of a lock; give a string such as 'beat:billing'")
    try:
        return validate_name(value, "it")
    except LockKeyError as exc:
        raise ConfigurationError(f"cannot be used: {exc.message.rstrip('.')}") from None


def _scheduler(value: Any) -> str | type:
    if isinstance(value, type) or (isinstance(value, str) and value):
        return value
    raise ConfigurationError("is not a scheduler; give a class, 'package.module:Class' or an alias")


#: The check of each setting, which returns the value's normal form. The text of a
#: `ConfigurationError` continues "setting redlock_guard=5 ...".
CHECKS = checks_of(RedlockSettings)
#: Checks whose messages are complete: the value is secret or nested, or the client words the error.
#: They collect the mistakes that leave the rest of the value usable.
SELF_DESCRIBING_CHECKS: dict[str, Callable[[Any, Mistakes], Any]] = {
    "nodes": _nodes,
    "tasks": _tasks,
    "drift_factor": lambda value, _: checked_drift_factor(value, "setting redlock_drift_factor"),
}
KNOWN = (*CHECKS, *SELF_DESCRIBING_CHECKS, *(OPTIONS.keys() - PER_TASK))
