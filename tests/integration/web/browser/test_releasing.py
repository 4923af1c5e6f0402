"""Releases by people, who may have nothing but a keyboard."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from celery_redlock import LeaseLost
from celery_redlock.core import client_of
from celery_redlock.tasks.message.node_keys import dedupe_key_of
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from tests.integration.web.browser.looks import row
from tests.support.nodes import ServerNodes

pytestmark = pytest.mark.system

ENOUGH = 40


def tab_to(page: Page, name: str) -> None:
    """Press Tab until a button has the focus."""
    button = page.get_by_role("button", name=name)
    expect(button).to_be_visible()
    for _ in range(ENOUGH):
        page.keyboard.press("Tab")
        if button.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError(f"Tab never comes to {name}")


def test_a_keyboard_suffices_to_release_a_lock(page: Page, servers: ServerNodes) -> None:
    lease = servers.client().acquire("account:7")
    tab_to(page, "Release account:7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Release account:7?")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.get_by_text("account:7: Released: 1.")).to_be_in_viewport()
    with pytest.raises(LeaseLost):
        lease.extend()


def test_the_first_answer_to_the_question_keeps_the_lock(page: Page, servers: ServerNodes) -> None:
    lease = servers.client().acquire("account:7")
    tab_to(page, "Release account:7")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Release account:7")).to_be_focused()
    assert lease.extend() is None


def test_a_lock_that_passed_on_meanwhile_stays(page: Page, servers: ServerNodes) -> None:
    client = servers.client()
    seen = client.acquire("account:7")
    page.get_by_role("button", name="Release account:7").click()
    seen.release()
    lease = client.acquire("account:7", wait=5.0)

    page.get_by_role("dialog").get_by_role("button", name="Release").click()

    expect(page.get_by_text("the lock has ended or passed on meanwhile")).to_be_in_viewport()
    assert lease.extend() is None


def test_a_queued_message_is_revoked_with_its_lock_if_the_question_is_answered_so(
    page: Page, servers: ServerNodes
) -> None:
    client = servers.client()
    label = label_for(Role.QUEUED, "id", "host", marker="0" * 32, task="job")
    client.acquire("invoice:7", label=label)
    page.get_by_role("button", name="Release invoice:7").click()
    page.get_by_role("checkbox", name="Revoke it").check()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()

    expect(page.get_by_text("invoice:7: Released: 1.")).to_be_in_viewport()
    assert client_of(client).inspect((dedupe_key_of("0" * 32),))[0] is not None


@pytest.mark.parametrize(
    ("state", "effect"),
    [("paused", "The pause ends"), ("finished", "Its body has ended"), ("", "is not stopped")],
)
def test_the_question_is_what_a_release_does_in_this_state(
    page: Page, servers: ServerNodes, state: str, effect: str
) -> None:
    client = servers.client()
    if state == "paused":
        client.pause("account:7", 60)
    else:
        label = label_for(Role.FINISHED, "id", "host", task="job") if state else None
        client.acquire("account:7", label=label)
    page.get_by_role("button", name="Release account:7").click()
    expect(page.get_by_role("dialog")).to_contain_text(effect)


def test_the_question_about_a_lock_that_is_not_queued_has_nothing_to_revoke(
    page: Page, servers: ServerNodes
) -> None:
    servers.client().acquire("account:7")
    page.get_by_role("button", name="Release account:7").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)


def test_the_focus_stays_when_rows_come_and_go(page: Page, servers: ServerNodes) -> None:
    client = servers.client()
    before = client.acquire("a")
    kept = client.acquire("m")
    tab_to(page, "Release m")

    added = client.acquire("k")
    before.release()
    expect(row(page, "k")).to_be_visible()
    expect(row(page, "a")).to_have_count(0)

    expect(page.get_by_role("button", name="Release m")).to_be_focused()
    assert added.extend() is kept.extend()


def test_the_focus_goes_to_the_head_when_its_row_goes(page: Page, servers: ServerNodes) -> None:
    lease = servers.client().acquire("account:7")
    tab_to(page, "Release account:7")

    lease.release()

    expect(page.get_by_role("heading", name="Held keys")).to_be_focused()


def test_the_focus_goes_to_the_head_when_its_row_goes_behind_a_dialog(
    page: Page, servers: ServerNodes
) -> None:
    lease = servers.client().acquire("account:7")
    tab_to(page, "Release account:7")
    page.keyboard.press("Enter")
    lease.release()
    # Not by its role: what is behind a dialog has none.
    expect(page.locator("#lock-table tbody")).to_have_count(0)

    page.keyboard.press("Escape")

    expect(page.get_by_role("heading", name="Held keys")).to_be_focused()


def test_the_focus_stays_while_the_nodes_fail(page: Page, servers: ServerNodes) -> None:
    servers.hold("account:7", "someone", range(5), ttl=3600)
    tab_to(page, "Release account:7")

    servers.kill(0, 1, 2)

    release = page.get_by_role("button", name="Release account:7")
    expect(release).to_have_attribute("aria-disabled", "true")
    expect(release).to_be_focused()
