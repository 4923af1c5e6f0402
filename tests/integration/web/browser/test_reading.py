"""The page for everyone: on a phone, in the dark, by ear."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from celery_redlock import Limit
from tests.integration.web.browser.looks import CONTROLS, cell, pale_texts, row
from tests.integration.web.site import Site
from tests.support.nodes import ServerNodes

pytestmark = pytest.mark.system

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LONG = "tenant:" + "acme" * 20
NAMED = re.compile(r"\S")


WINDOWS: dict[str, dict[str, object]] = {
    "wide": {},
    "table": {"viewport": {"width": 1121, "height": 800}},
    "cards": {"viewport": {"width": 1120, "height": 800}},
    "phone": PHONE,
}


@pytest.fixture(params=["wide", "phone"])
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    return WINDOWS[request.param]


@pytest.fixture
def page(tab: Page, site: Site, servers: ServerNodes) -> Page:
    """The page with a bit of everything: a long key, a limit, a node that is down."""
    client = servers.client(node_timeout=0.5)
    client.acquire(LONG)
    for _ in range(2):
        client.acquire(Limit("gpu", 2))
    servers.kill(4)
    tab.goto(site.address)
    expect(tab.get_by_text("4 of 5 nodes answer")).to_be_visible()
    expect(row(tab, LONG)).to_be_visible()
    return tab


def small_buttons(page: Page) -> list[str]:
    found: list[str] = page.locator("button:visible").evaluate_all(
        "buttons => buttons.filter(button => button.getBoundingClientRect().height < 44)"
        ".map(button => button.textContent)"
    )
    return found


def is_too_wide(page: Page) -> bool:
    found: bool = page.evaluate(
        "() => [document.documentElement, ...document.querySelectorAll('dialog[open]')]"
        ".some(node => node.scrollWidth > node.clientWidth)"
    )
    return found


def open_dialogs(page: Page) -> Iterator[str]:
    """Open one dialog after the other, and name it."""
    yield "none"
    for name in (f"Details of {LONG}", f"Release {LONG}"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_text("Asking the nodes.")).to_have_count(0)
        yield name
        page.keyboard.press("Escape")


@pytest.mark.parametrize("options", WINDOWS, indirect=True)
def test_nothing_is_wider_than_the_window(page: Page) -> None:
    assert not [name for name in open_dialogs(page) if is_too_wide(page)]


@pytest.mark.parametrize("options", ["phone"], indirect=True)
def test_fingers_hit_every_button_of_a_phone(page: Page) -> None:
    assert not [name for _ in open_dialogs(page) for name in small_buttons(page)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]

    assert not [text for _ in open_dialogs(page) for text in pale_texts(page)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_while_the_nodes_fail(
    page: Page, servers: ServerNodes, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    servers.kill(0, 1)
    expect(page.get_by_role("alert")).to_contain_text("3 of 5 nodes have to answer")

    assert not pale_texts(page)


def test_every_control_has_a_name(page: Page) -> None:
    for _ in open_dialogs(page):
        for control in page.locator(CONTROLS).locator("visible=true").all():
            expect(control).to_have_accessible_name(NAMED)


def test_every_row_is_told_apart_by_its_buttons(page: Page) -> None:
    names = page.locator("#lock-table tbody button").evaluate_all(
        "buttons => buttons.map(button => button.ariaLabel)"
    )

    assert len(names) == len(set(names)) == 6
    expect(cell(row(page, "slot 0"), "State")).to_be_visible()
