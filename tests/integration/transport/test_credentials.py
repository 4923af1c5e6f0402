"""Credentials that code gives, as those of cloud services that end soon."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import CredentialProvider

from celery_redlock import Redlock
from celery_redlock.admin.lock_list import list_locks
from celery_redlock.admin.node_report import report_nodes
from celery_redlock.cli import main
from celery_redlock.core import client_of, probe_nodes
from celery_redlock.core.lease import holding_of
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support.cases import first_of
from tests.support.greenlets import PATCH, run_with_greenlets
from tests.support.nodes import CALM
from tests.support.waiting import TIMEOUT, wait_until

NAME = f"{__name__}.credentials"
GIVEN = ["first"]


def credentials() -> tuple[str, str]:
    """Return what the servers accept now."""
    return "locks", GIVEN[-1]


class Credentials(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return credentials()


instance = Credentials()


def factory() -> Credentials:
    return Credentials()


def fails() -> tuple[str, str]:
    raise LookupError("no role is attached")


def of_another_kind() -> str:
    return GIVEN[-1]


def is_interrupted() -> tuple[str, str]:
    raise KeyboardInterrupt


over = threading.Event()


def late() -> tuple[str, str]:
    over.wait(TIMEOUT)
    return credentials()


BESIDE_GREENLETS = f"""
import sys, time
from celery_redlock import Redlock
from celery_redlock._greenlets.unpatched import unpatched
ident = unpatched("_thread", "get_ident")
main, asked_in = ident(), set()
def login():
    time.sleep(0.01)
    asked_in.add(ident() == main)
    return "locks", "first"
with Redlock(sys.argv[1:]) as redlock, redlock.lock("key", wait={TIMEOUT}):
    print(list(asked_in))
"""


class Servers:
    """Servers that accept one password at a time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.rotate("first")

    def rotate(self, password: str) -> None:
        """Accept another password, and end the connections that were made with the last one."""
        GIVEN[:] = [password]
        for node in range(3):
            admin = self.cluster.client(node)
            admin.execute_command(
                *("ACL", "SETUSER", "locks", "reset", "on", f">{password}"),
                *("~*", "&*", "+@all"),
            )
            admin.execute_command("CLIENT", "KILL", "USER", "locks")

    def urls(self, name: str = NAME) -> list[str]:
        return [f"{url}?credential_provider={name}" for url in self.cluster.urls]


@pytest.fixture
def servers(redlock_cluster_factory: ClusterFactory) -> Iterator[Servers]:
    over.clear()
    yield Servers(redlock_cluster_factory(3))
    over.set()


@pytest.mark.parametrize("name", ["credentials", "Credentials", "instance", "factory"])
def test_a_function_a_class_or_an_object_gives_them(servers: Servers, name: str) -> None:
    with Redlock(servers.urls(f"{__name__}.{name}")) as redlock:
        assert redlock.acquire("key", wait=TIMEOUT).is_valid


def test_they_are_asked_for_at_each_new_connection(servers: Servers) -> None:
    with Redlock(servers.urls()) as redlock:
        redlock.acquire("key", wait=TIMEOUT).release()
        servers.rotate("second")
        assert redlock.acquire("key", wait=TIMEOUT).is_valid


def test_a_lease_is_extended_through_changes(servers: Servers) -> None:
    with Redlock(servers.urls()) as redlock, redlock.lock("key", ttl=CALM, wait=TIMEOUT) as lease:
        for password in ("second", "third"):
            servers.rotate(password)
            trust = holding_of(lease).valid_until
            wait_until(lambda trust=trust: holding_of(lease).valid_until > trust)


def test_waiters_are_woken_after_a_change(servers: Servers) -> None:
    def listens() -> bool:
        clients = servers.cluster.client(0).client_list()
        return any(one["user"] == "locks" and one["sub"] != "0" for one in clients)

    with Redlock(servers.urls()) as holder, Redlock(servers.urls()) as waiter:
        lease = holder.acquire("key", wait=TIMEOUT)
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(waiter.acquire, "key", wait=TIMEOUT)
            wait_until(listens)
            servers.rotate("second")
            wait_until(listens)
            lease.release()
            assert waits.result().is_valid


def test_tools_ask_for_them(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    urls = servers.urls()
    with Redlock(urls) as redlock:
        redlock.acquire("key", wait=TIMEOUT)
        (entry,) = list_locks(redlock)
        assert main(["list", "--nodes", ",".join(urls)]) == 0
    assert entry.key in capsys.readouterr().out
    assert {probe.problem for probe in probe_nodes(urls, timeout=TIMEOUT)} == {None}
    assert {report.failure for report in report_nodes(urls)} == {None}


def test_a_failure_of_the_code_is_the_reason_of_its_nodes(servers: Servers) -> None:
    probes = probe_nodes(servers.urls(f"{__name__}.fails"), timeout=TIMEOUT)
    named = f"its credential provider {__name__}.fails"
    reason = f"{named} has failed: LookupError: no role is attached"
    assert {(probe.problem, probe.lasting) for probe in probes} == {(reason, False)}


def test_an_interruption_of_the_code_is_a_failure(servers: Servers) -> None:
    probes = probe_nodes(servers.urls(f"{__name__}.is_interrupted"), timeout=TIMEOUT)
    assert all("has failed: KeyboardInterrupt" in str(probe.problem) for probe in probes)


def test_what_is_no_tuple_is_named_by_its_type(servers: Servers) -> None:
    probes = probe_nodes(servers.urls(f"{__name__}.of_another_kind"), timeout=TIMEOUT)
    reasons = {str(probe.problem) for probe in probes}
    assert all("has returned str, not (password,) or (user, password)" in one for one in reasons)
    assert not any(GIVEN[-1] in one for one in reasons)


def test_whoever_starts_waits_no_longer_for_them_than_for_a_connection(servers: Servers) -> None:
    probes = probe_nodes(servers.urls(f"{__name__}.late"), timeout=0.5)
    reason = f"its credential provider {__name__}.late took longer than 0.5 s"
    assert {(probe.problem, probe.lasting) for probe in probes} == {(reason, False)}


def test_a_client_that_connects_without_end_is_closed(servers: Servers) -> None:
    redlock = Redlock([*servers.urls()[:2], servers.urls(f"{__name__}.late")[2]])
    redlock.acquire("key", wait=TIMEOUT)
    client = client_of(redlock)
    with client.patient(2.0) as patient:
        patient.holders("key")
        began = time.monotonic()
    assert time.monotonic() - began < 10.0
    redlock.close()


def test_a_client_gets_its_connections_although_each_answer_outlasts_a_reply(
    servers: Servers,
) -> None:
    threading.Timer(0.5, over.set).start()
    with Redlock(servers.urls(f"{__name__}.late"), node_timeout=0.1) as redlock:
        assert redlock.acquire("key", wait=TIMEOUT).is_valid


@pytest.mark.parametrize("library", first_of(PATCH))
def test_beside_greenlets_the_code_runs_in_one(servers: Servers, library: str) -> None:
    urls = servers.urls("__main__.login")
    assert run_with_greenlets(library, BESIDE_GREENLETS, *urls) == "[True]\n"


def test_a_password_that_is_refused_is_no_lasting_problem(servers: Servers) -> None:
    GIVEN.append("of another time")
    probes = probe_nodes(servers.urls(), timeout=TIMEOUT)
    assert {probe.lasting for probe in probes} == {False}
    assert all("invalid username-password pair" in str(probe.problem) for probe in probes)
