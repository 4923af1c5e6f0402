"""The page in applications of other people, which decide who may do what."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock import LeaseLost
from celery_redlock.tasks.message.owner_label import label_for
from celery_redlock.tasks.rules.facts import Role
from celery_redlock.testing import LocalCluster
from tests.integration.web.hosted import Host, hosted
from tests.integration.web.site import keys
from tests.support.cases import first_of
from tests.support.nodes import ServerNodes


@pytest.fixture(scope="module", params=["fastapi", "django"])
def running(
    request: pytest.FixtureRequest,
    redlock_cluster_factory: Callable[[int], LocalCluster],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """An application of each kind, for all tests of this module."""
    nodes, logs = redlock_cluster_factory(5).urls, tmp_path_factory.mktemp("hosts")
    with hosted(request.param, nodes, logs) as found:
        yield found


@pytest.fixture
def host(request: pytest.FixtureRequest, running: Host, servers: ServerNodes) -> Host:
    running.program.show_if_it_fails(request.node)
    running.root, running.cookie = Host.root, ""
    return running


def test_a_user_sees_and_releases_a_lock_and_another_only_sees_it(
    host: Host, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")

    host.log_in("bob")
    with host.viewer() as looks:
        next(look for look in looks if keys(look) == ["account:7"])
    answer = host.release(lease.owner)
    assert (answer.status, json.loads(answer.text)["message"]) == (
        403,
        "Nothing can be released: you may not release locks.",
    )
    assert lease.extend() is None

    host.log_in("ada")
    assert host.release(lease.owner).status == 200
    with pytest.raises(LeaseLost):
        lease.extend()
    host.program.wait_for_log("Viewer 'ada' releases 'account:7'")


@pytest.mark.parametrize("path", ["/", "/events", "/key?key=a"])
def test_nothing_is_shown_to_those_who_may_not_see_it(host: Host, path: str) -> None:
    assert host.ask(path).status == 403


def test_without_its_slash_the_address_is_mended(host: Host) -> None:
    answer = host.ask("?filter=a%2A")

    assert answer.status == 307
    place = answer.headers["Location"]
    assert place in ("locks/?filter=a%2A", f"{host.address}?filter=a%2A")


def test_the_rest_of_the_application_is_as_before(host: Host) -> None:
    host.root = ""

    answer = host.ask("/hello")

    assert (answer.status, answer.text) == (200, '"hello"')
    assert "Content-Security-Policy" not in answer.headers


def test_a_release_from_elsewhere_is_refused_whoever_sends_it(
    host: Host, servers: ServerNodes
) -> None:
    lease = servers.connected().acquire("account:7")
    host.log_in("ada")

    assert host.release(lease.owner, X_Redlock_CSRF="another").status == 403
    assert host.release(lease.owner, Origin="http://evil.example").status == 403
    assert lease.extend() is None


def test_tasks_have_their_names(host: Host, servers: ServerNodes) -> None:
    label = label_for(Role.RUNNING, "id", "host", task="shop.settle")
    lease = servers.connected().acquire("account:8", label=label)
    with host.log_in("bob").viewer() as looks:
        look = next(look for look in looks if keys(look) == ["account:8"])
        (row,) = look["locks"]["keys"][0]["rows"]

    assert row["task"] == "shop.settle"
    assert lease.extend() is None


@pytest.mark.parametrize("name", first_of(["fastapi", "django"]))
def test_viewers_do_not_keep_the_server_from_ending(
    name: str, servers: ServerNodes, tmp_path: Path
) -> None:
    with hosted(name, servers.urls, tmp_path) as host, host.log_in("ada").viewer() as looks:
        next(looks)
        host.program.signal(signal.SIGTERM)
        for _ in looks:
            pass

        assert host.program.wait_for_exit() in (0, -signal.SIGTERM)


def test_any_of_several_processes_releases_what_another_has_shown(
    servers: ServerNodes, tmp_path: Path
) -> None:
    client = servers.connected()
    with hosted("fastapi", servers.urls, tmp_path, "--workers", "2") as host:
        host.program.wait_for_log("Application startup complete")
        shown = host.log_in("ada").ask("/")
        (csrf,) = re.findall(r'<meta name="csrf" content="(.+)">', shown.text)
        cookie = f"{host.cookie}; {shown.headers['Set-Cookie'].partition(';')[0]}"
        for number in range(8):
            lease = client.acquire(f"account:{number}")
            answer = host.release(
                lease.owner, f"account:{number}", Cookie=cookie, X_Redlock_CSRF=csrf
            )
            assert answer.status == 200, answer.text


def test_behind_a_proxy_that_takes_a_prefix_away_all_addresses_hold(
    servers: ServerNodes, tmp_path: Path
) -> None:
    with hosted("fastapi", servers.urls, tmp_path, "--root-path", "/team") as host:
        host.log_in("ada")

        assert host.ask("/").status == 200
        assert host.ask("/key?key=a").status == 200
        with host.viewer() as looks:
            assert next(looks)["problem"] is None
