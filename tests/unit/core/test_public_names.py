"""What users see of a client with one tab is what its documentation has."""

from __future__ import annotations

import pytest

from celery_redlock import AsyncRedlock, Redlock

COMMON = {
    *("acquire", "lock", "watch", "unwatch", "holder", "holders", "force_release", "node_names"),
    *("pause", "resume"),
}


@pytest.mark.parametrize(
    ("kind", "closing"), [(Redlock, {"close", "disconnect"}), (AsyncRedlock, {"aclose"})]
)
def test_a_client_shows_what_is_a_users(kind: type, closing: set[str]) -> None:
    shown = {name for name in dir(kind("memory://shown")) if not name.startswith("_")}
    assert shown == COMMON | closing
