"""
Findings about the broker of an app: messages that a worker has and has not acknowledged.

Only of Redis. Another broker delivers the messages of a killed worker again at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_redlock.admin.diagnosis import Finding, Row, Severity, findings_from
from celery_redlock.protocol.texts import readable
from celery_redlock.transport import clock

__all__ = ["BROKER", "diagnose_broker"]

#: Seconds that the broker has to connect, and for each answer.
TIMEOUT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """
    The facts about a Redis broker.

    Attributes:
        url: its URL, without the password.
        failure: why it does not answer; empty if it does.
        unacknowledged: how many messages workers have, and have not acknowledged.
        oldest: how long one of them has been with its worker at most, in seconds.
        visibility_timeout: after how many seconds it delivers such a message again.
        short: for each option of tasks, those that give it a smaller number of seconds.
    """

    url: str
    failure: str = ""
    unacknowledged: int = 0
    oldest: float = 0.0
    visibility_timeout: float
    short: Mapping[str, tuple[str, ...]]

    @property
    def delivers_again_in(self) -> float:
        """Seconds until it delivers the oldest again, unless a worker acknowledges it."""
        return max(0.0, self.visibility_timeout - self.oldest)


def _shorter_than(option: str, effect: str) -> Row[BrokerFacts]:
    return Row(
        code="visibility-timeout",
        severity=Severity.WARNING,
        when=lambda f: bool(f.short[option]),
        text=lambda f: (
            f"The broker delivers a message of a killed worker again after visibility_timeout, "
            f"{readable(f.visibility_timeout)} s, and {option} of {', '.join(f.short[option])} is "
            f"shorter: {effect}. Raise {option}, or lower visibility_timeout."
        ),
    )


#: All rows that match.
BROKER: tuple[Row[BrokerFacts], ...] = (
    Row(
        code="broker-unreachable",
        severity=Severity.WARNING,
        when=lambda f: bool(f.failure),
        text=lambda f: (
            f"The broker {f.url} does not answer this machine ({f.failure}), so its messages were "
            "not looked at. Start it, or run this where the workers run."
        ),
    ),
    Row(
        code="messages-unacknowledged",
        severity=Severity.INFO,
        when=lambda f: f.unacknowledged > 0,
        text=lambda f: (
            f"Messages that a worker has and has not acknowledged, and that are in no queue: "
            f"{f.unacknowledged}. They run, or wait in their worker, or it was killed. The broker "
            "delivers those of a killed worker again, the first of all in "
            f"{readable(f.delivers_again_in)} s, and they run then. Until then their locks are no "
            "leftovers: give `release` the option --revoke, so that they do not run as well."
        ),
    ),
    _shorter_than(
        "lock_queue_ttl", "its lock ends before, and a further call is sent although both will run"
    ),
    _shorter_than(
        "lock_dedupe_window", "a worker may not recognise that it has run, and runs it again"
    ),
)


def diagnose_broker(app: Any) -> tuple[Finding, ...]:
    """
    Return what is worth knowing about an app's broker; nothing about one that is not Redis.

    Limit: it is the view of this machine, at one moment. Changes nothing.
    """
    timeouts = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
    with contextlib.closing(app.connection_for_read(transport_options=timeouts)) as connection:
        if connection.transport_cls not in ("redis", "rediss"):
            return ()
        return findings_from(BROKER, _facts(app, connection))


def _facts(app: Any, connection: Any) -> BrokerFacts:
    url = connection.as_uri()
    configured = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    try:
        connection.connect()  # once; `default_channel` would try again and again
        channel = connection.channel()
        visibility_timeout = float(channel.visibility_timeout)
        client = channel.client
        unacknowledged = int(client.hlen(channel.unacked_key))
        # The last one: kombu gives a key prefix to this command, and not to ZRANGE.
        oldest = client.zrevrangebyscore(
            channel.unacked_index_key,
            "+inf",
            "-inf",
            start=max(0, unacknowledged - 1),
            num=1,
            withscores=True,
        )
    except Exception as exc:
        # Whatever the client raises; its text may have the password.
        seconds = float(configured or 0.0)
        return BrokerFacts(
            url=url,
            failure=type(exc).__name__,
            visibility_timeout=seconds,
            short=_short(app, seconds),
        )
    return BrokerFacts(
        url=url,
        unacknowledged=unacknowledged,
        oldest=max((clock.wall_us() / 1e6 - since for _, since in oldest), default=0.0),
        visibility_timeout=visibility_timeout,
        short=_short(app, visibility_timeout),
    )


def _short(app: Any, seconds: float) -> dict[str, tuple[str, ...]]:
    plans = {
        name: task.redlock_plan
        for name, task in sorted(app.tasks.items())
        if getattr(task, "redlock_plan", None) is not None
    }
    return {
        "lock_queue_ttl": tuple(
            name
            for name, plan in plans.items()
            if plan.options.mode_spec.at_publish
            and not plan.options.mode_spec.for_window
            and plan.options.queue_ttl < seconds
        ),
        "lock_dedupe_window": tuple(
            name
            for name, plan in plans.items()
            if plan.marks_messages and plan.options.dedupe_window < seconds
        ),
    }
