"""What Sentinels and their masters refuse is said with who refuses it and what to write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.core.node_admin import ProbeResult, probe_nodes
from celery_redlock.testing import LocalSentinel


@pytest.fixture(scope="module")
def locked() -> Iterator[LocalSentinel]:
    """A group whose servers and Sentinels have passwords."""
    with LocalSentinel(1, requirepass="s3cret", sentinel_password="s3ntinel") as groups:
        yield groups


ONE_GROUP = pytest.mark.parametrize("redlock_sentinel", [{"groups": 1}], indirect=True)

#: In seconds: what speaks no TLS leaves a client that does without an answer, for a few timeouts.
WITHOUT_TLS = 1.0


def probe(url: str, timeout: float = 5.0) -> ProbeResult:
    """Return the result of probing a node that cannot be used."""
    (result,) = probe_nodes([url], timeout=timeout)
    assert "s3" not in (result.problem or "")
    return result


def problem(url: str) -> str:
    """Return the lasting problem of a node."""
    result = probe(url)
    assert result.lasting
    return str(result.problem)


def test_the_right_passwords_are_taken(locked: LocalSentinel) -> None:
    assert probe(locked.urls[0]).problem is None


MASTER = "its master 127.0.0.1:"
SENTINELS = "no majority of its Sentinels names a master: 127.0.0.1:"


@pytest.mark.parametrize(
    ("right", "given", "who", "says"),
    [
        ("s3cret", "other", MASTER, "invalid username-password pair"),
        (":s3cret@", "", MASTER, "its URL has none; write redis+sentinel://:password@"),
        ("s3ntinel", "other", SENTINELS, "invalid username-password pair"),
        ("?sentinel_password=s3ntinel", "", SENTINELS, "write ?sentinel_password=password"),
    ],
    ids=["wrong for the master", "missing for it", "wrong for the Sentinels", "missing for them"],
)
def test_who_refuses_a_password_is_named_with_what_to_write(
    locked: LocalSentinel, right: str, given: str, who: str, says: str
) -> None:
    text = problem(locked.urls[0].replace(right, given))
    assert text.startswith(who)
    assert says in text


@ONE_GROUP
def test_sentinels_without_tls_say_so(redlock_sentinel: LocalSentinel) -> None:
    result = probe(f"{redlock_sentinel.urls[0]}?sentinel_tls=true", WITHOUT_TLS)
    assert "write sentinel_tls=false" in str(result.problem)


@ONE_GROUP
def test_a_master_without_tls_says_so(redlock_sentinel: LocalSentinel) -> None:
    url = redlock_sentinel.urls[0].replace("redis+", "rediss+")
    result = probe(f"{url}?sentinel_tls=false", WITHOUT_TLS)
    assert str(result.problem).startswith("its master 127.0.0.1:")
    assert "write redis+sentinel://" in str(result.problem)


@ONE_GROUP
def test_a_sentinel_that_is_named_as_a_server_names_the_url_to_write(
    redlock_sentinel: LocalSentinel,
) -> None:
    assert "redis+sentinel://sentinel-1:26379" in problem(redlock_sentinel.sentinel_urls[0])


@ONE_GROUP
def test_servers_that_are_named_as_sentinels_are_none(redlock_sentinel: LocalSentinel) -> None:
    hosts = ",".join(
        url.removeprefix("redis://").removesuffix("/0") for url in redlock_sentinel.server_urls()
    )
    assert "is not a Sentinel; name the Sentinels' ports" in problem(
        f"redis+sentinel://{hosts}/locks-0"
    )


@ONE_GROUP
def test_a_group_that_is_not_known_is_a_lasting_problem(redlock_sentinel: LocalSentinel) -> None:
    text = problem(redlock_sentinel.urls[0].replace("locks-0", "lokcs"))
    assert text == "its Sentinels watch no master named 'lokcs'; correct the URL"
