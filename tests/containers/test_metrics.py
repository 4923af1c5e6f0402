"""The profile `metrics` of docker/: Prometheus has the locks' metrics, and Grafana shows them."""

from __future__ import annotations

import base64
import functools
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.deployment import DOCKER, Deployment, outcome
from tests.containers.metrics_images import can_be_had, named, prometheus_image
from tests.containers.stage import SCENE_TIMEOUT
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(30 * TIMEOUT)]

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
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load((DOCKER / "metrics/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]

Series = tuple[dict[str, str], list[float]]


@functools.cache
def services() -> list[str]:
    """Return what of the profile is started: everything that this machine can get."""
    return ["prometheus", *(["grafana"] if can_be_had(named("grafana")) else [])]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(
        tmp_path_factory.mktemp("checkout"), {"PROMETHEUS_IMAGE": prometheus_image()}
    )
    try:
        deployment.up()
        deployment.up_with("metrics", *services())
        deployment.wait_until_healthy()
        status, said = outcome(deployment.client())
        assert status == 0, said
        yield deployment
    finally:
        deployment.down()


def _span() -> tuple[float, float]:
    """Return the moments between which panels show something, in seconds."""
    now = time.time()
    return now - 60 * MINUTES, now


def _filled_in(expression: str) -> str:
    return expression.replace("$task", ".*").replace("$__rate_interval", "1m")


class Prometheus:
    """Prometheus, asked what Grafana asks it for a panel."""

    def __init__(self, deployment: Deployment) -> None:
        (self.container,) = deployment.containers("prometheus")

    def ask(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:9090/api/v1/{path}?{query}"
        status, said = self.container.exec_run(["wget", "-q", "-O", "-", url])
        assert status == 0, said
        return json.loads(said)["data"]

    def series_of(self, title: str) -> list[Series]:
        """Return the labels and the values of each series that a panel shows for all tasks."""
        start, end = _span()
        return [
            (one["metric"], [float(value) for _, value in one["values"]])
            for target in PANELS[title]["targets"]
            for one in self.ask(
                "query_range", query=_filled_in(target["expr"]), start=start, end=end, step=10
            )["result"]
        ]


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
        with urllib.request.urlopen(request, timeout=SCENE_TIMEOUT) as reply:
            return json.load(reply)

    def series_of(self, title: str) -> list[Series]:
        """Return the labels and the values of each series that a panel shows for all tasks."""
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
        start, end = (str(int(1000 * moment)) for moment in _span())
        asked = {"queries": queries, "from": start, "to": end}
        return [
            (frame["schema"]["fields"][-1].get("labels", {}), frame["data"]["values"][-1])
            for result in self.ask("/api/ds/query", asked)["results"].values()
            for frame in result["frames"]
        ]


@pytest.fixture
def prometheus(started: Deployment) -> Prometheus:
    return Prometheus(started)


@pytest.fixture
def grafana(started: Deployment) -> Grafana:
    if "grafana" not in services():
        pytest.skip(f"this machine cannot get the image {named('grafana')}")
    return Grafana(started)


@pytest.fixture(params=["prometheus", "grafana"])
def shown_by(request: pytest.FixtureRequest) -> Prometheus | Grafana:
    """What shows the series of panels."""
    shown_by: Prometheus | Grafana = request.getfixturevalue(request.param)
    return shown_by


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
def test_a_panel_has_data_of_a_deployment_that_locks(
    shown_by: Prometheus | Grafana, title: str
) -> None:
    def values() -> list[float]:
        shown = (value for _, series in shown_by.series_of(title) for value in series)
        return [value for value in shown if value is not None and not math.isnan(value)]

    wait_until(values, SCENE_TIMEOUT, interval=1.0, message=f"data in {title}")


def test_the_votes_of_every_node_are_shown(prometheus: Prometheus) -> None:
    wait_until(
        lambda: (
            len({labels["node"] for labels, _ in prometheus.series_of("Votes by node")}) == NODES
        ),
        SCENE_TIMEOUT,
        interval=1.0,
        message="votes of all nodes",
    )


def test_two_workers_and_two_beats_answer(prometheus: Prometheus) -> None:
    def counted() -> dict[str, float]:
        shown = prometheus.series_of("Instances that answer")
        return {labels["job"]: values[-1] for labels, values in shown}

    wait_until(
        lambda: counted() == {"workers": 2, "beats": 2},
        SCENE_TIMEOUT,
        interval=1.0,
        message=lambda: f"all instances, not {counted()}",
    )


def test_prometheus_has_all_alerts_and_can_evaluate_them(prometheus: Prometheus) -> None:
    def health() -> dict[str, str]:
        groups = prometheus.ask("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    wait_until(
        lambda: health() == dict.fromkeys(ALERTS, "ok"),
        SCENE_TIMEOUT,
        interval=1.0,
        message=lambda: str(health()),
    )


def test_health_checks_leave_no_files_of_metrics(started: Deployment) -> None:
    for worker in started.containers("worker"):
        count = "ls /tmp/metrics | sed 's/.*_//' | sort -u | wc -l"
        _, files = worker.exec_run(["sh", "-c", count])
        status, _ = worker.exec_run(["celery", "--app=bank", "report"])
        assert status == 0
        assert worker.exec_run(["sh", "-c", count])[1] == files


def test_a_checkout_for_its_owner_only_is_read(started: Deployment) -> None:
    assert not Path(started.checkout / "docker/metrics/alerts.yml").stat().st_mode & 0o077
    status, said = Prometheus(started).container.exec_run(
        ["promtool", "check", "config", "/etc/redlock/prometheus.yml"]
    )
    assert status == 0, said
