"""
What is explored of a running body: where it may be when its lease is lost, and what strikes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evidence.models.explorer import AnySetting

WAYS = ("thread", "signal", "greenlet")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySetting(AnySetting):
    """
    What is explored.

    Attributes:
        way: how the loss reaches the body: one of `WAYS`.
        autoretry: Celery's autoretry is wrapped around the application's code.
    """

    model: ClassVar = "evidence.models.striking:Striking"
    way: str
    autoretry: bool


_ALL = frozenset(
    {
        "struck in the application",
        "waits for Celery",
        "sent",
        "retry is out",
        "left before it landed",
    }
)
_OF_THREADS = _ALL | {"struck at an entry", "absorbed at the end"}

BODIES = tuple(
    BodySetting(
        name=f"body-{way}{'-autoretry' if autoretry else ''}",
        way=way,
        autoretry=autoretry,
        expects=(_OF_THREADS if way == "thread" else _ALL)
        - (frozenset({"absorbed at the end"}) if autoretry else frozenset())
        | (frozenset({"taken back"}) if autoretry and way == "thread" else frozenset()),
    )
    for way in WAYS
    for autoretry in (False, True)
)
