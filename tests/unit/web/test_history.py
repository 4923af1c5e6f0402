"""What the page keeps of the last minutes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `web`")

from celery_redlock.web import refresher
from celery_redlock.web.refresher import EVERY, MOST_POINTS, History


class Looks:
    """Looks whose counts and time the test sets; the time in points."""

    def __init__(self) -> None:
        self.history = History(self._look)
        self.part = 1.0

    def at(
        self,
        time: float,
        *,
        held: int = 0,
        waits: Collection[float] = (),
        expired: int = 0,
        text: str = "",
    ) -> list[Any]:
        """Look, and return the points: when, held, waiting, the longest wait, expired."""
        self._time, self._held, self._waits, self._expired = time, held, waits, expired
        found: list[Any] = self.history([text])[text]["history"]["points"]
        return found

    def _look(self, filters: Collection[str]) -> dict[str, dict[str, Any]]:
        keys = [{"waiting": 1, "waiting_for": seconds} for seconds in self._waits]
        locks = {"part": self.part, "found": self._held, "keys": keys}
        at = datetime.fromtimestamp(self._time * EVERY, UTC).isoformat()
        look = {"at": at, "locks": locks if self.part else None, "expired": self._expired}
        return dict.fromkeys(filters, look)


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_each_look_adds_what_it_has_counted(looks: Looks) -> None:
    looks.at(1, held=3, waits=[7.0, 9.0], expired=1)

    assert looks.at(2, held=4) == [(1, 3, 2, 9.0, 1), (2, 4, 0, 0.0, 0)]


def test_a_point_has_the_most_of_its_looks(looks: Looks) -> None:
    looks.at(1.2, held=3, waits=[1.0, 2.0])
    looks.at(1.5, held=5, waits=[9.0])

    assert looks.at(1.8, held=1, waits=[4.0]) == [(1, 5, 2, 9.0, 0)]


def test_a_point_has_all_locks_that_have_expired(looks: Looks) -> None:
    looks.at(1.2, expired=2)
    looks.at(1.5)

    assert looks.at(1.8, expired=1) == [(1, 0, 0, 0.0, 3)]


def test_a_time_without_looks_is_a_gap(looks: Looks) -> None:
    looks.at(1)

    assert [time for time, *_ in looks.at(5)] == [1, 5]


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_look_that_does_not_see_everything_is_a_gap(looks: Looks, part: float) -> None:
    looks.at(1)
    looks.part = part

    assert [time for time, *_ in looks.at(2, held=7)] == [1]


def test_it_ends_15_minutes_ago(looks: Looks) -> None:
    for time in range(200):
        found = looks.at(time)

    assert [time for time, *_ in found] == list(range(200 - MOST_POINTS, 200))
    assert MOST_POINTS * EVERY == 15 * 60


def test_what_is_too_old_goes_also_where_no_look_is_complete(looks: Looks) -> None:
    looks.at(1)
    looks.part = 0.0

    assert looks.at(1 + MOST_POINTS) == []


def test_each_filter_has_its_own(looks: Looks) -> None:
    looks.at(1, held=3, text="a")

    assert looks.at(1, held=1, text="b") == [(1, 1, 0, 0.0, 0)]


def test_the_filter_that_was_looked_at_least_recently_goes(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresher, "MOST_VIEWERS", 2)
    for time, text in enumerate(["a", "b", "a", "c"]):
        looks.at(time, text=text)

    assert [time for time, *_ in looks.at(4, text="a")] == [0, 2, 4]
    assert [time for time, *_ in looks.at(5, text="b")] == [5]


def test_a_clock_that_is_set_back_stops_for_a_while(looks: Looks) -> None:
    looks.at(7, held=1)

    assert looks.at(3, held=2) == [(7, 2, 0, 0.0, 0)]
