"""The refresher, without a server and without nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

pytest.importorskip("starlette", reason="needs the extra `web`")

from celery_redlock.web import refresher as refresher_module
from celery_redlock.web.refresher import Refresher

AGAIN = b"event: again\ndata: 0\n\n"


def look(filters: Collection[str]) -> dict[str, str]:
    return dict.fromkeys(filters, "what the nodes have")


def test_a_viewer_is_told_to_connect_again_when_its_time_is_over() -> None:
    async def watch() -> list[bytes]:
        refresher = Refresher(look, interval=60.0)
        assert refresher.join("")
        return [frame async for frame in refresher.frames("", lasts=0.05)]

    assert asyncio.run(watch())[-1] == AGAIN


def test_a_viewer_that_is_slower_than_the_looks_has_to_connect_again_too() -> None:
    async def watch() -> list[bytes]:
        refresher = Refresher(look)
        assert refresher.join("")
        found = []
        async for frame in refresher.frames("", lasts=0.0):
            refresher._publish({"": b"another"})
            found.append(frame)
            if len(found) == 3:
                break
        return found

    assert asyncio.run(watch()) == [AGAIN]


def test_a_viewer_that_connects_again_finds_the_latest_look() -> None:
    looks = []

    def counted(filters: Collection[str]) -> dict[str, str]:
        looks.append(filters)
        return look(filters)

    async def watch() -> tuple[bytes, bytes]:
        refresher = Refresher(counted, interval=60.0)
        assert refresher.join("")
        seen = await anext(refresher.frames(""))
        refresher.leave("")
        assert refresher.join("")
        return seen, await anext(refresher.frames(""))

    first, second = asyncio.run(watch())
    assert first == second
    assert len(looks) == 1


def test_looks_go_through_the_filter_of_a_viewer_that_is_about_to_connect_again() -> None:
    looks = []

    def noted(filters: Collection[str]) -> dict[str, str]:
        looks.append(set(filters))
        return look(filters)

    async def watch() -> None:
        refresher = Refresher(noted, interval=60.0)
        assert refresher.join("account:*")
        await anext(refresher.frames("account:*"))
        refresher.leave("account:*")
        assert refresher.join("another")
        await anext(refresher.frames("another"))

    asyncio.run(watch())
    assert looks == [{"account:*"}, {"account:*", "another"}]


def test_filters_of_viewers_that_have_left_go_after_one_interval() -> None:
    async def watch() -> tuple[str, ...]:
        refresher = Refresher(look, interval=0.0)
        assert refresher.join("account:*")
        refresher.leave("account:*")
        return refresher._filters()

    assert asyncio.run(watch()) == ()


def test_those_that_have_left_do_not_add_to_the_most_filters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refresher_module, "MOST_VIEWERS", 2)

    async def watch() -> tuple[str, ...]:
        refresher = Refresher(look, interval=60.0)
        for text in "abc":
            assert refresher.join(text)
            refresher.leave(text)
        assert refresher.join("d")
        return refresher._filters()

    assert asyncio.run(watch()) == ("d", "c")
