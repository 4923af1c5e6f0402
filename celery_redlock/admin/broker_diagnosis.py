"""
Findings about the broker of an app: messages that workers have but have not acknowledged.

Only Redis needs them. Other brokers deliver the messages of a killed worker again at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.admin.diagnosis import Check, Finding, Severity, findings_from
from celery_redlock.protocol.texts import readable
from celery_redlock.transport import clock

if TYPE_CHECKING:
    from celery_redlock.tasks.border import AppLike

#: Seconds that the broker has to connect, and for each answer.
TIMEOUT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """
    The facts about a Redis broker.

    Attributes:
        url: its URL, without the password.
        failure: why it does not answer; empty if it does.
        unacknowledged: the number of messages that workers have but have not acknowledged.
        oldest: seconds since a worker received the oldest of these messages.
        visibility_timeout: seconds after which the broker delivers such a message again.
        short: for each task option, the names of the tasks in which it is not longer than that.
    """

    url: str
    failure: str = ""
    unacknowledged: int = 0
    oldest: float = 0.0
    visibility_timeout: float
    short: Mapping[str, tuple[str, ...]]

    @property
    def delivers_again_in(self) -> float:
        """Seconds until the broker delivers the oldest message again, unless it is acknowledged."""
        return max(0.0, self.visibility_timeout - self.oldest)


def _not_longer_than(option: str, effect: str) -> Check[BrokerFacts]:
    return Check(
        code="visibility-timeout",
        severity=Severity.WARNING,
        when=lambda f: bool(f.short[option]),
        text=lambda f: (
            f"The broker delivers a message of a killed worker again after visibility_timeout, "
            f"{readable(f.visibility_timeout)} s, and {option} of {', '.join(f.short[option])} is "
            f"not longer: {effect}. Raise {option}, or lower visibility_timeout."
        ),
    )


#: All rows that match.
BROKER: tuple[Check[BrokerFacts], ...] = (
    Check(
        code="broker-unreachable",
        severity=Severity.WARNING,
        when=lambda f: bool(f.failure),
        text=lambda f: (
            f"The broker {f.url} does not answer this machine ({f.failure}), so its messages were "
            "not looked at. Start it, or run this where the workers run."
        ),
    ),
    Check(
        code="messages-unacknowledged",
        severity=Severity.INFO,
        when=lambda f: f.unacknowledged > 0,
        text=lambda f: (
            f"Messages that workers have but have not acknowledged, and that are in no queue: "
            f"{f.unacknowledged}. Each runs, waits in its worker, or was in a worker that was "
            "killed. The broker delivers those of a killed worker again, the oldest in "
            f"{readable(f.delivers_again_in)} s, and they run then. To free their locks earlier, "
            "use `release --revoke`. Without --revoke, they run beside or after calls sent again."
        ),
    ),
    _not_longer_than(
        "lock_queue_ttl", "its lock has ended then, so a further call is sent, and both will run"
    ),
    _not_longer_than(
        "lock_dedupe_window", "a worker may not recognise that the message has run, and rerun it"
    ),
)


def diagnose_broker(app: AppLike) -> tuple[Finding, ...]:
    """
    Return the findings about an app's broker; none if the broker is not Redis.

    It changes nothing. Limit: it is the view of this machine, at one moment.
    """
    timeouts = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
    with contextlib.closing(app.connection_for_read(transport_options=timeouts)) as connection:
        if connection.transport_cls not in ("redis", "rediss"):
            return ()
        return findings_from(BROKER, _facts(app, connection))


def _facts(app: AppLike, connection: Any) -> BrokerFacts:
    url = connection.as_uri()
    configured = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    try:
        connection.connect()  # once; `default_channel` would try again and again
        channel = connection.channel()
        visibility_timeout = float(channel.visibility_timeout)
        client = channel.client
        unacknowledged = int(client.hlen(channel.unacked_key))
        # The last one, because kombu gives its key prefix to this command, but not to ZRANGE.
        oldest = client.zrevrangebyscore(
            channel.unacked_index_key,
            "+inf",
            "-inf",
            start=max(0, unacknowledged - 1),
            num=1,
            withscores=True,
        )
    except Exception as exc:
        # The client may raise any error, and its text may contain the password.
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


def _short(app: AppLike, seconds: float) -> dict[str, tuple[str, ...]]:
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
            and plan.options.queue_ttl <= seconds
        ),
        "lock_dedupe_window": tuple(
            name
            for name, plan in plans.items()
            if plan.marks_messages and plan.options.dedupe_window <= seconds
        ),
    }
