"""The rule of access."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra `web`")

from celery_redlock.errors import ConfigurationError
from celery_redlock.web.access import Access, is_loopback


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "::1"])
def test_no_token_is_needed_on_loopback(host: str) -> None:
    assert is_loopback(host)
    assert Access.for_host(host, None).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "lock1", "", "localhost.example"])
def test_elsewhere_a_token_is_made(host: str) -> None:
    assert len(Access.for_host(host, None).token or "") >= 32


def test_a_token_that_is_given_is_needed_on_loopback_too() -> None:
    assert Access.for_host("localhost", "a-token-of-some-length").token == "a-token-of-some-length"


@pytest.mark.parametrize("token", ["", "short", "with a space in it", "with-ä-umlaut-in-it"])
def test_a_token_that_no_url_can_have_is_refused_without_quoting_it(token: str) -> None:
    with pytest.raises(ConfigurationError, match="--token cannot be used") as caught:
        Access.for_host("localhost", token)
    assert not token or token not in str(caught.value)
