"""The pictures of the page, which `make screenshots` takes over into the documentation."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from celery import Celery
from playwright.sync_api import Browser, expect

from celery_redlock import Redlock
from celery_redlock.admin.lock_list import task_names
from celery_redlock.tasks.message import owner_label
from celery_redlock.testing import LocalCluster
from tests.acceptance.program import ROOT, Program
from tests.integration.web.browser.looks import row
from tests.integration.web.browser.shop import LATER, make_shop
from tests.integration.web.site import Site, served

pytestmark = pytest.mark.system

PICTURES = ROOT / "build" / "screenshots"
MOST_BYTES = 150_000

WORKERS = ("billing@worker-1", "exports@worker-2")

SENT = (
    *(("shop.settle", number) for number in (1042, 2210, 1042, 1042)),
    *(("shop.export", "acme") for _ in range(4)),
    ("shop.charge", 5581),
)
#: Rows by key, and how many wait.
SCENE = {
    "account:1042": (1, 2),
    "account:2210": (1, 0),
    "api:stripe": (1, 0),
    "invoice:5583": (1, 0),
    "tenant:acme": (3, 1),
}

WIDE: dict[str, Any] = {"viewport": {"width": 1360, "height": 704}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The page of a shop with two busy workers, when one of five nodes has just gone."""
    with LocalCluster(1, armed=False) as store, LocalCluster(5) as cluster:
        conf = {"broker_url": store.urls[0], "redlock_nodes": list(cluster.urls)}
        app = make_shop(conf)
        for node in range(len(cluster)):
            # As in production; without it there is a remark about each node.
            cluster.client(node).config_set("appendonly", "yes")
        logs = tmp_path_factory.mktemp("shop")
        command = [sys.executable, "-m", make_shop.__module__, json.dumps(conf)]
        workers = [Program(name, [*command, name], os.environ, logs) for name in WORKERS]
        try:
            for worker in workers:
                worker.wait_for_log(f"{worker.name} ready.")
            with (
                Redlock(cluster.urls, node_timeout=0.5) as client,
                served(client, names=task_names(app.tasks)) as site,
                site.viewer() as looks,
            ):
                next(looks)
                site.history._points[""] = deque(_busy_minutes(next(looks)["history"]["now"]))
                _send(app)
                next(look for look in looks if _shown(look) == SCENE)
                cluster.kill(4)
                next(look for look in looks if not look["nodes"][4]["reachable"])
                yield site
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


def _busy_minutes(now: int) -> Iterator[tuple[int, ...]]:
    """Yield what the page would have counted, had the shop been open for fourteen minutes."""
    for ago in range(56, 0, -1):
        held = 4 + round(2 * math.sin(ago / 6)) + ago % 2
        waiting = max(0, round(4 * math.sin(ago / 9)))
        yield now - ago, held, waiting, 6 * waiting, int(ago == 21)


def _send(app: Celery) -> None:
    for name, argument in SENT:
        app.tasks[name].delay(argument)
    # Nobody shall learn from a picture on which machine it was taken.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner_label, "HOST", "web-1")
        app.tasks["shop.invoice"].apply_async([5583], queue=LATER)


def _shown(look: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    groups = look["locks"]["keys"] if look["locks"] else ()
    return {group["key"]: (len(group["rows"]), group["waiting"]) for group in groups}


@pytest.mark.parametrize(
    ("name", "part", "options"),
    [
        ("locks-light", "Locks", WIDE | {"color_scheme": "light"}),
        ("locks-dark", "Nodes", WIDE | {"color_scheme": "dark"}),
        ("locks-phone", "Held keys", PHONE | {"color_scheme": "light"}),
    ],
)
def test_a_picture_of_the_page_is_small(
    scene: Site, chromium: Browser, name: str, part: str, options: dict[str, Any]
) -> None:
    context = chromium.new_context(**options, locale="en-GB", timezone_id="UTC")
    page = context.new_page()
    page.goto(scene.address)
    expect(page.get_by_text("4 of 5 nodes answer")).to_be_visible()
    expect(row(page, "account:1042")).to_be_visible()

    page.get_by_role("heading", name=part).evaluate("heading => heading.scrollIntoView()")
    picture = page.screenshot(path=PICTURES / f"{name}.png")
    context.close()

    assert len(picture) < MOST_BYTES
