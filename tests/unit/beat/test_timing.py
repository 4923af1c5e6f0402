"""The times that bound a leadership have to fit together."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redlock import ConfigurationError
from celery_redlock.beat.leader_lease import Timings, read_timings
from celery_redlock.tasks.config.settings import read_settings


def timings(**conf: Any) -> Timings:
    app = Celery("timings", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=["memory://timings"], **conf)
    return read_timings(read_settings(app))


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, (30.0, 20.0, 2.0)),
        ({"redlock_ttl": 45}, (45.0, 30.0, 2.0)),
        ({"redlock_max_ttl": 15}, (15.0, 10.0, 2.0)),
        ({"redlock_ttl": 45, "redlock_beat_ttl": 6}, (6.0, 4.0, 1.0)),
        ({"redlock_beat_ttl": 6, "redlock_beat_retry": 0.5}, (6.0, 4.0, 0.5)),
        ({"redlock_beat_ttl": 6, "redlock_beat_renew_deadline": 3}, (6.0, 3.0, 1.0)),
    ],
)
def test_what_is_left_out_follows_from_the_lease(
    conf: dict[str, Any], expected: tuple[float, float, float]
) -> None:
    found = timings(**conf)
    assert (found.ttl, found.renew_deadline, found.retry) == pytest.approx(expected)


@pytest.mark.parametrize(
    "conf",
    [
        {"redlock_beat_renew_deadline": 6},
        {"redlock_beat_renew_deadline": 7},
        {"redlock_beat_retry": 4},
        {"redlock_beat_retry": 5},
        {"redlock_beat_renew_deadline": 2, "redlock_beat_retry": 1},
    ],
)
def test_what_does_not_fit_is_refused_with_all_three(conf: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        timings(redlock_beat_ttl=6, **conf)
    for name in ("redlock_beat_ttl=6", "redlock_beat_renew_deadline=", "redlock_beat_retry="):
        assert name in caught.value.message
    assert "Leave the last two out" in caught.value.message


def test_a_lease_above_the_longest_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redlock_beat_ttl=90 is above redlock_max_ttl=60"):
        timings(redlock_beat_ttl=90)


@pytest.mark.parametrize("ttl", [0.2, 1, 6, 30, 60])
def test_the_defaults_fit_any_lease(ttl: float) -> None:
    found = timings(redlock_beat_ttl=ttl)
    assert found.ttl > found.renew_deadline > found.retry
    assert found.broker_timeout < found.retry
    assert found.max_pass > found.ttl
