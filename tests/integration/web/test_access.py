"""Access to the page over HTTP."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

import pytest

from tests.integration.web.site import Site, served
from tests.support.nodes import MemoryNodes

TOKEN = "a-token-of-some-length"


@pytest.fixture
def closed(memory: MemoryNodes) -> Iterator[Site]:
    """A page that needs a token."""
    with served(memory.client(), token=TOKEN) as found:
        yield found


def cookie_of(site: Site) -> str:
    answer = site.ask(f"/?token={TOKEN}")
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_the_cookie_is_for_tls_alone_where_a_proxy_has_it(closed: Site) -> None:
    path = f"/?token={TOKEN}"
    assert "Secure" not in closed.ask(path).headers["Set-Cookie"]
    answer = closed.ask(path, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("path", ["/", "/key?key=a", "/nowhere"])
def test_every_answer_keeps_other_sites_out(site: Site, path: str) -> None:
    headers = site.ask(path).headers

    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Server" not in headers


@pytest.mark.parametrize("tag", ["script", "style"])
def test_the_policy_allows_the_page_its_own_code_and_no_other(site: Site, tag: str) -> None:
    answer = site.ask("/")

    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_the_page_names_no_other_place(site: Site) -> None:
    assert not re.findall(r"(?:https?:)?//[a-z]", site.ask("/").text.replace("// ", ""))


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "localhost:9999", "[::1]:5577", "LOCALHOST"]
)
def test_a_loopback_name_is_answered_at_any_port(site: Site, host: str) -> None:
    assert site.ask("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[", ""])
@pytest.mark.parametrize("path", ["/", "/events", "/key?key=a"])
def test_another_name_for_this_machine_is_refused(site: Site, host: str, path: str) -> None:
    assert site.ask(path, headers={"Host": host}).status == 421


@pytest.mark.parametrize("path", ["/events", "/key?key=a"])
@pytest.mark.parametrize("other", ["cross-site", "same-site", "none"])
def test_no_other_site_makes_the_nodes_work(site: Site, path: str, other: str) -> None:
    assert site.ask(path, headers={"Sec-Fetch-Site": other}).status == 403
    assert not site.looks


@pytest.mark.parametrize("path", ["/", "/events", "/key?key=a"])
def test_without_the_token_nothing_is_shown(closed: Site, path: str) -> None:
    answer = closed.ask(path)

    assert answer.status == 401
    assert "csrf" not in answer.text


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_do_not_see(closed: Site) -> None:
    answer = closed.ask(f"/?filter=a*&token={TOKEN}")

    assert answer.status == 303
    assert answer.headers["Location"] == "./?filter=a%2A"
    attributes = answer.headers["Set-Cookie"].lower()
    assert "httponly" in attributes
    assert "samesite=strict" in attributes


def test_the_cookie_opens_the_page(closed: Site) -> None:
    assert closed.ask("/", headers={"Cookie": cookie_of(closed)}).status == 200


def test_with_the_token_any_name_is_answered(closed: Site) -> None:
    headers = {"Cookie": cookie_of(closed), "Host": "locks.example"}

    assert closed.ask("/", headers=headers).status == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "%F0%9F%94%92"])
def test_another_token_is_refused(closed: Site, token: str) -> None:
    answer = closed.ask(f"/?token={token}")

    assert (answer.status, "This page needs its token" in answer.text) == (401, True)
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("value", ["", "wrong", TOKEN + "x"])
def test_another_cookie_is_refused(closed: Site, value: str) -> None:
    headers = {"Cookie": f"{closed.access.cookie}={value}"}

    assert closed.ask("/", headers=headers).status == 401


def test_the_token_is_not_in_the_page(closed: Site) -> None:
    assert TOKEN not in closed.ask("/", headers={"Cookie": cookie_of(closed)}).text
