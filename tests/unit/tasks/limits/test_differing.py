"""A worker names tasks that give one key different limits."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import Limit, Rate
from tests.support.tasks import Bench
from tests.unit.tasks.jobs import start_worker


def declare(bench: Bench, **tasks: dict[str, Any]) -> None:
    for name, options in tasks.items():
        bench.task(lambda id: None, name=name, **options)
    bench.app.finalize()


def warnings(bench: Bench, caplog: pytest.LogCaptureFixture) -> list[str]:
    start_worker(bench)
    return [line for line in caplog.messages if "give it different limits" in line]


def test_tasks_with_different_numbers_are_named_with_both_and_the_remedy(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    declare(
        bench,
        invoice={"lock_key": "t:{id}", "lock_limit": 5},
        refund={"lock_key": ["account", Limit("t:{id}", 3)]},
    )
    (line,) = warnings(bench, caplog)
    assert line.startswith("The tasks invoice, refund can have the same key but give it different ")
    assert "invoice: Limit('t:{id}', 5); refund: Limit('t:{id}', 3)." in line
    assert "so more tasks may hold the key than the lowest limit allows" in line
    assert line.endswith(
        "Give them the same limit, or give each a key of its own, such as 'invoice:t:{id}'."
    )


def test_tasks_with_different_rates_are_named_with_both(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    declare(
        bench,
        invoice={"lock_key": "stripe", "lock_rate": "100/m"},
        refund={"lock_key": Rate("stripe", "50/m")},
    )
    (line,) = warnings(bench, caplog)
    assert "invoice: Rate('stripe', '100/m'); refund: Rate('stripe', '50/m')." in line


def test_each_group_is_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    declare(
        bench,
        one={"lock_key": ["x", Limit("a", 5), Limit("b", 5)]},
        two={"lock_key": ["x", Limit("a", 4), Limit("b", 4)]},
        three={"lock_key": ["x", Limit("a", 3)]},
    )
    assert len(warnings(bench, caplog)) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lock_limit": 5}, {"lock_limit": 5}),
        ({"lock_limit": 5}, {"lock_rate": "5/s"}),
        ({"lock_limit": 5}, {"lock_limit": lambda id: 3}),
        ({"lock_rate": "2/s"}, {"lock_rate": 2}),
        ({"lock_limit": 5}, {"lock_limit": 3, "lock_key": "other"}),
        ({"lock_limit": 5, "lock_key": None}, {"lock_limit": 3, "lock_key": None}),
        ({"lock_key": [Rate("s", "2/s"), Rate("s", "9/m")]},
         {"lock_key": [Rate("s", "9/m"), Rate("s", "2/s")]}),
    ],
    ids=["same", "limit and rate", "function", "spelling", "key", "default key", "two rates"],
)  # fmt: skip
def test_limits_that_agree_or_cannot_be_compared_are_not_named(
    bench: Bench, caplog: pytest.LogCaptureFixture, one: dict[str, Any], other: dict[str, Any]
) -> None:
    declare(bench, one={"lock_key": "k", **one}, other={"lock_key": "k", **other})
    assert warnings(bench, caplog) == []
