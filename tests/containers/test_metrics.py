"""The profile `metrics` of docker/: Prometheus has the locks' metrics, and Grafana shows them."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.deployment import DOCKER, Deployment, outcome
from tests.containers.stage import TIMEOUT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

DASHBOARD = json.loads((DOCKER / "metrics/grafana/dashboards/locks.json").read_text())
SOURCE = {"type": "prometheus", "uid": "prometheus"}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
#: Panels that show something wherever locks are acquired.
WITH_DATA = [
    "Acquires by outcome",
    "Hold of a lock",
    "Instances that answer",
    "Leading beats",
    "Nodes to spare",
    "Votes by node",
    "Wait for a lock",
]
NODES = 5
MINUTES = 15


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("checkout"))
    try:
        deployment.up()
        deployment.up_with("metrics")
        deployment.wait_until_healthy()
        status, said = outcome(deployment.client())
        assert status == 0, said
        yield deployment
    finally:
        deployment.down()


class Grafana:
    """Grafana, as the user `admin` or as somebody without a password."""

    def __init__(self, deployment: Deployment) -> None:
        (container,) = deployment.containers("grafana")
        (published,) = container.ports["3000/tcp"]
        self.host = published["HostIp"]
        self._url = f"http://{self.host}:{published['HostPort']}"
        settings = dict(setting.split("=", 1) for setting in container.attrs["Config"]["Env"])
        self._password = settings["GF_SECURITY_ADMIN_PASSWORD"]

    def ask(self, path: str, data: Any = None, *, login: bool = True) -> Any:
        request = urllib.request.Request(f"{self._url}{path}")
        if login:
            credentials = base64.b64encode(f"admin:{self._password}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        if data is not None:
            request.data = json.dumps(data).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            return json.load(reply)

    def series_of(self, title: str) -> list[dict[str, Any]]:
        """Return the series that a panel shows for all tasks."""
        queries = [
            {
                **target,
                "datasource": SOURCE,
                "expr": _filled_in(target["expr"]),
                "intervalMs": 10_000,
                "maxDataPoints": 500,
            }
            for target in PANELS[title]["targets"]
        ]
        now = int(time.time() * 1000)
        span = {"from": str(now - MINUTES * 60_000), "to": str(now)}
        results = self.ask("/api/ds/query", {"queries": queries, **span})["results"]
        return [frame for result in results.values() for frame in result["frames"]]


def _filled_in(expression: str) -> str:
    return expression.replace("$task", ".*").replace("$__rate_interval", "1m")


def _labels(frame: dict[str, Any]) -> dict[str, str]:
    return frame["schema"]["fields"][-1].get("labels", {})


@pytest.fixture
def grafana(started: Deployment) -> Grafana:
    return Grafana(started)


def test_grafana_is_published_on_this_machine_only(grafana: Grafana) -> None:
    assert grafana.host == "127.0.0.1"


def test_nobody_sees_it_without_the_password(grafana: Grafana) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        grafana.ask(f"/api/dashboards/uid/{DASHBOARD['uid']}", login=False)
    assert raised.value.code == 401


def test_it_has_the_dashboard(grafana: Grafana) -> None:
    found = grafana.ask(f"/api/dashboards/uid/{DASHBOARD['uid']}")
    assert {panel["title"] for panel in found["dashboard"]["panels"]} == set(PANELS)


@pytest.mark.parametrize("title", WITH_DATA)
def test_a_panel_has_data_of_a_deployment_that_locks(grafana: Grafana, title: str) -> None:
    frames = wait_until(lambda: grafana.series_of(title), TIMEOUT, message=f"data in {title}")
    assert any(value is not None for frame in frames for value in frame["data"]["values"][-1])


def test_the_votes_of_every_node_are_shown(grafana: Grafana) -> None:
    wait_until(
        lambda: len({_labels(one)["node"] for one in grafana.series_of("Votes by node")}) == NODES,
        TIMEOUT,
        message="votes of all nodes",
    )


def test_two_workers_and_two_beats_answer(grafana: Grafana) -> None:
    def counted() -> dict[str, float]:
        frames = grafana.series_of("Instances that answer")
        return {_labels(one)["job"]: one["data"]["values"][-1][-1] for one in frames}

    wait_until(
        lambda: counted() == {"workers": 2, "beats": 2},
        TIMEOUT,
        message=lambda: f"all instances, not {counted()}",
    )


def test_an_alert_fires_for_a_node_that_does_not_vote(
    started: Deployment, grafana: Grafana
) -> None:
    (node,) = started.containers("lock3")
    node.stop(timeout=1)
    try:
        wait_until(
            lambda: any(
                rule["name"] == "LockNodeDoesNotVote" and rule["state"] != "inactive"
                for group in _alerts(grafana)
                for rule in group["rules"]
            ),
            # Five minutes without a vote, and some for the clock of the rules.
            480.0,
            interval=5.0,
            message="the alert",
        )
    finally:
        node.start()


def _alerts(grafana: Grafana) -> Any:
    path = f"/api/datasources/proxy/uid/{SOURCE['uid']}/api/v1/rules"
    return grafana.ask(path)["data"]["groups"]


def test_health_checks_leave_no_files_of_metrics(started: Deployment) -> None:
    for worker in started.containers("worker"):
        count = "ls /tmp/metrics | sed 's/.*_//' | sort -u | wc -l"
        _, files = worker.exec_run(["sh", "-c", count])
        status, _ = worker.exec_run(["celery", "--app=bank", "report"])
        assert status == 0
        assert worker.exec_run(["sh", "-c", count])[1] == files


def test_a_checkout_for_its_owner_only_is_read(started: Deployment) -> None:
    assert not Path(started.checkout / "docker/metrics/alerts.yml").stat().st_mode & 0o077
    (prometheus,) = started.containers("prometheus")
    status, said = prometheus.exec_run(
        ["promtool", "check", "config", "/etc/redlock/prometheus.yml"]
    )
    assert status == 0, said
