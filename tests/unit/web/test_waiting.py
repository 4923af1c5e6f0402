"""Requests to the page that wait for others, and viewers that come at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `web`")

from celery_redlock.web import app as page
from celery_redlock.web import refresher
from celery_redlock.web.access import MountedAccess, guarded
from celery_redlock.web.refresher import Refresher
from tests.support.waiting import TIMEOUT
from tests.unit.web.asking import Answer, Request, a_release


class View:
    """Nodes that answer when the test lets them."""

    def __init__(self) -> None:
        self.may_show, self.may_release = Event(), Event()
        self.shown: list[str] = []
        self.released: list[str] = []

    def show(self, key: str) -> list[str]:
        self.shown.append(key)
        assert self.may_show.wait(TIMEOUT)
        return []

    def release(self, key: str, *_: object, **__: object) -> int:
        self.released.append(key)
        assert self.may_release.wait(TIMEOUT)
        return 1


@pytest.fixture
def view() -> Iterator[View]:
    found = View()
    yield found
    found.may_show.set()
    found.may_release.set()


class Site:
    """The page, without nodes. Each viewer has the rights in `rights`."""

    def __init__(self, view: Any) -> None:
        self.rights = {"view": True, "release": True}
        access = MountedAccess(
            may_view=lambda scope: self.rights["view"],
            may_release=lambda scope: self.rights["release"],
            user=None,
        )
        self.refresher = Refresher(lambda filters: dict.fromkeys(filters, "what the nodes have"))
        self.app = guarded(page.web_app(view, self.refresher, access), access, "")

    def send(self, request: Request) -> asyncio.Task[Answer]:
        return asyncio.create_task(request.to(self.app))


def test_a_release_does_not_wait_for_details(view: View) -> None:
    async def use() -> int:
        site = Site(view)
        details = site.send(Request("/key"))
        await until(lambda: view.shown)
        view.may_release.set()
        status = (await site.send(a_release())).status
        assert not details.done()
        view.may_show.set()
        await details
        return status

    assert asyncio.run(use()) == 200


def test_more_than_the_most_that_may_wait_for_details_are_refused(view: View) -> None:
    async def use() -> list[int]:
        site = Site(view)
        asked = [site.send(Request("/key")) for _ in range(1 + page._MOST_WAITING + 2)]
        await until(lambda: sum(one.done() for one in asked) == 2)
        view.may_show.set()
        await asyncio.gather(*asked)
        assert (await site.send(Request("/key"))).status == 200
        return [one.result().status for one in asked]

    assert asyncio.run(use()) == [200] * 9 + [503] * 2


@pytest.mark.parametrize("path", ["/key", "/release"])
def test_the_nodes_do_nothing_for_those_who_have_left_while_they_waited(
    view: View, path: str
) -> None:
    async def use() -> int:
        site = Site(view)
        requests = [Request(path) if path == "/key" else a_release() for _ in range(3)]
        sent = [site.send(request) for request in requests]
        await until(lambda: view.shown or view.released)
        await settled()
        requests[1].has_left.set()
        view.may_show.set()
        view.may_release.set()
        await asyncio.gather(*sent)
        return len(view.shown + view.released)

    assert asyncio.run(use()) == 2


@pytest.mark.parametrize("right", ["view", "release"])
def test_rights_that_end_while_a_release_waits_for_another_release_nothing(
    view: View, right: str
) -> None:
    async def use() -> list[int]:
        site = Site(view)
        first = site.send(a_release())
        await until(lambda: view.released)
        second = site.send(a_release())
        await settled()
        site.rights[right] = False
        view.may_release.set()
        return [(await one).status for one in (first, second)]

    assert asyncio.run(use()) == [200, 403]
    assert len(view.released) == 1


def test_a_body_that_takes_too_long_releases_nothing(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_BODY_WITHIN", 0.0)

    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def use() -> int:
        async with asyncio.timeout(TIMEOUT):
            return (await Site(view).send(a_release(body=never))).status

    assert asyncio.run(use()) == 408
    assert not view.released


def test_of_viewers_that_come_at_once_no_more_than_the_most_are_let_in(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresher, "MOST_VIEWERS", 2)

    async def use() -> list[int]:
        site = Site(view)
        requests = [Request("/events") for _ in range(5)]
        sent = [site.send(request) for request in requests]
        await until(lambda: all(request.sent for request in requests))
        for request in requests:
            request.has_left.set()
        return [(await one).status for one in sent]

    assert sorted(asyncio.run(use())) == [200, 200, 503, 503, 503]


@pytest.mark.parametrize("is_early", [True, False], ids=["before a look", "after it"])
def test_a_viewer_that_leaves_gives_its_place_back(
    view: View, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    monkeypatch.setattr(refresher, "MOST_VIEWERS", 1)

    async def use() -> list[int]:
        site, found = Site(view), []
        for _ in range(2):
            request = Request("/events")
            if is_early:
                request.has_left.set()
            answer = site.send(request)
            await until(lambda request=request: len(request.sent) >= (1 if is_early else 2))
            request.has_left.set()
            found.append((await answer).status)
        return found

    assert asyncio.run(use()) == [200, 200]


def test_who_asks_for_headers_alone_takes_no_place(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresher, "MOST_VIEWERS", 0)

    async def use() -> Answer:
        return await Site(view).send(Request("/events", method="HEAD"))

    answer = asyncio.run(use())
    assert (answer.status, answer.text) == (200, "")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def until(condition: Callable[[], object]) -> None:
    """Wait in the event loop until a condition holds."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(50):
        await asyncio.sleep(0)
