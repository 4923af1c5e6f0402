"""The rule of access."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra `web`")

import starlette.requests

from celery_redlock.errors import ConfigurationError
from celery_redlock.web.access import TokenAccess, is_from_page, is_loopback
from tests.unit.web.asking import a_release


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1"])
def test_no_token_is_needed_on_loopback(host: str) -> None:
    assert is_loopback(host)
    assert TokenAccess.for_host(host, None).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "lock1", "", "localhost.example"])
def test_elsewhere_a_token_is_made(host: str) -> None:
    assert len(TokenAccess.for_host(host, None).token or "") >= 32


def test_a_token_that_is_given_is_needed_on_loopback_too() -> None:
    assert (
        TokenAccess.for_host("localhost", "a-token-of-some-length").token
        == "a-token-of-some-length"
    )


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "with-ä-umlaut-in-it"])
def test_a_token_that_no_url_can_have_is_refused_without_quoting_it(token: str) -> None:
    with pytest.raises(ConfigurationError, match="--token cannot be used") as caught:
        TokenAccess.for_host("localhost", token)
    assert not token or token not in str(caught.value)


def test_a_release_without_a_host_comes_from_no_page() -> None:
    request = a_release()
    own = {b"host": b"", b"origin": b"http://"}
    request.scope["headers"] = [
        (name, own.get(name, value)) for name, value in request.scope["headers"]
    ]

    assert not is_from_page(starlette.requests.Request(request.scope))
