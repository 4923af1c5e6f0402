"""
A pass: all messages that a scheduler sends for one tick of an entry that is due.

A scheduler may send an entry several times, for example once for each tenant. Each of these
messages is a part of the tick, and runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery.beat import BeatLazyFunc

from celery_redlock.errors import LockKeyError
from celery_redlock.tasks.keys.canonical import canonical, digest
from celery_redlock.tasks.message.tick import PART_DIGITS, Tick

#: Prefixes of headers that tracing tools fill anew for each message.
TRACING = ("sentry-", "baggage", "traceparent", "tracestate", "x-datadog-", "b3")


@dataclass(slots=True)
class TickPass:
    """
    One pass of a scheduler over an entry that is due.

    Another beat and the next leader have to find the same parts. A part is made from the arguments
    and headers in which a message differs from the entry; messages that differ from it in the same
    way are distinguished by their order. The first message that does not differ has no part; most
    schedulers send only that one.

    Attributes:
        entry: the entry, as it was before the scheduler counted it as run.
        tick: the tick, without a part; None if the entry has none.
        sent: how many messages were sent.
        unsent: whether a message could not be sent, and is to be sent later.
        failure: the first error of a message.
        ids: the task ids that were chosen for its messages.
    """

    entry: Any
    tick: Tick | None
    sent: int = 0
    unsent: bool = False
    failure: Exception | None = None
    ids: set[str] = field(default_factory=set)
    _own: dict[str, Any] = field(init=False)
    _begun: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._own = _content(self.entry)

    @property
    def begun(self) -> int:
        """How many messages the scheduler has begun to send."""
        return self._begun.total()

    def next_tick(self, entry: Any) -> Tick | None:
        """Return the tick of the next message, with its part; `entry` is what is sent."""
        if self.tick is None:
            return None
        content = self._own_content(entry)
        number = self._begun[content]
        part = digest(f"{number} {content}")[:PART_DIGITS] if content or number else None
        return replace(self.tick, part=part)

    def begin(self, entry: Any) -> None:
        """Count a message that the scheduler begins to send."""
        self._begun[self._own_content(entry)] += 1

    def owns_id(self, entry: Any) -> bool:
        """Return whether the scheduler chooses the id of a message, and not the entry's author."""
        given = (entry.options or {}).get("task_id")
        return given is None or given in self.ids

    def _own_content(self, entry: Any) -> str:
        own = {
            name: value
            for name, value in _content(entry).items()
            if not (name in self._own and _same(value, self._own[name]))
        }
        try:
            return canonical(own) if own else ""
        except LockKeyError:
            return ""  # another beat could not find the same content; the order decides


def _content(entry: Any) -> dict[str, Any]:
    """Return the values that may distinguish the messages of a pass, by name."""
    args, headers = list(entry.args or ()), (entry.options or {}).get("headers")
    content = {"args": len(args)}
    content |= {f"args {number}": value for number, value in enumerate(args)}
    content |= {f"kwargs {name}": value for name, value in (entry.kwargs or {}).items()}
    if isinstance(headers, Mapping):
        content |= {
            f"headers {name}": value
            for name, value in headers.items()
            if not str(name).lower().startswith(TRACING)
        }
    # A lazy argument is evaluated for each message, in each beat anew.
    return {name: value for name, value in content.items() if not isinstance(value, BeatLazyFunc)}


def _same(value: Any, own: Any) -> bool:
    try:
        return bool(value == own)
    except Exception:
        return False
