"""The dashboard and the alerts in docker/metrics name metrics that there are, and explain them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="needs the extra `prometheus`")

from prometheus_client import Counter, Histogram

from celery_redlock.cli.commands import redlock
from celery_redlock.core.instrumentation import Outcome
from celery_redlock.errors import LossReason
from celery_redlock.prometheus import METRICS, Metric
from celery_redlock.tasks.events import SIGNALS

DOCKER = Path(__file__).parents[3] / "docker"
FILES = DOCKER / "metrics"
DASHBOARD = json.loads((FILES / "grafana/dashboards/locks.json").read_text())
SCRAPES = yaml.safe_load((FILES / "prometheus.yml").read_text())
ALERTS = [
    alert
    for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    for alert in group["rules"]
]
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]

#: Prometheus adds these labels to all metrics.
OF_TARGETS = {"job", "instance"}
#: The samples that Prometheus itself makes, and their labels.
OF_PROMETHEUS = {"up": OF_TARGETS, "ALERTS": {"alertname", "alertstate", "severity"}}
FUNCTIONS = {"avg_over_time", "histogram_quantile", "increase", "label_values", "min", "rate"}
FUNCTIONS |= {"sum", "vector"}
KEYWORDS = {"bool", "by", "le", "offset", "or", "unless"}
#: The values that labels may have, where they are known.
VALUES = {
    "event": {signal.name for signal in SIGNALS.values()},
    "job": {job["job_name"] for job in SCRAPES["scrape_configs"]},
    "kind": {"lease", "reservation"},
    "outcome": {outcome.value for outcome in Outcome},
    "reason": {reason.name.lower() for reason in LossReason},
    "vote": {"granted", "acknowledged", "refused", "quarantined", "failed", "none"},
    "alertstate": {"pending", "firing"},
}


def samples_of(metric: Metric) -> Iterator[tuple[str, set[str]]]:
    labels = {*metric.labels, *OF_TARGETS}
    if metric.kind is Histogram:
        yield f"{metric.name}_bucket", {*labels, "le"}
        yield f"{metric.name}_count", labels
        yield f"{metric.name}_sum", labels
    else:
        assert metric.kind is not Counter or metric.name.endswith("_total")
        yield metric.name, labels


SAMPLES = dict(sample for metric in METRICS for sample in samples_of(metric)) | OF_PROMETHEUS

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = DASHBOARD["templating"]["list"]
EXPRESSIONS = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(one["definition"] for one in VARIABLES if "definition" in one),
    *(alert["expr"] for alert in ALERTS),
]

MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


def words_of(expression: str) -> set[str]:
    """Return the names in an expression, without label values and durations."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\b\d+[smhd]\b', "", expression)
    return set(re.findall(r"[a-zA-Z_]\w*", bare))


def problems_in(expression: str) -> list[str]:
    """Return what an expression names and Prometheus would not have."""
    found = words_of(expression)
    samples = found & SAMPLES.keys()
    labels = set().union(*(SAMPLES[name] for name in samples))
    problems = sorted(found - SAMPLES.keys() - labels - FUNCTIONS - KEYWORDS)
    for name, selected in re.findall(r"(\w+)\{([^}]*)\}", expression):
        for label, values in MATCHER.findall(selected):
            if label not in SAMPLES.get(name, ()):
                problems.append(f"{name} has no label {label}")
            known = VALUES.get(label)
            problems += [
                f"{label}={one}" for one in values.split("|") if known and one not in known
            ]
    return problems if samples else [*problems, "no metric"]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_labels_and_values_that_there_are(expression: str) -> None:
    assert problems_in(expression) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(redlock_loss_total)", "redlock_loss_total"),
        ("sum by (reason) (redlock_spare_nodes)", "reason"),
        ('redlock_spare_nodes{task="x"}', "redlock_spare_nodes has no label task"),
        ('redlock_extensions_total{outcome=~"granted|good"}', "outcome=good"),
        ("redlock_acquire_seconds", "redlock_acquire_seconds"),
        ("vector(0)", "no metric"),
    ],
)
def test_what_there_is_not_is_found(expression: str, problem: str) -> None:
    assert problem in problems_in(expression)


def test_every_metric_is_in_a_panel() -> None:
    shown = set().union(*(words_of(target["expr"]) for p in PANELS for target in p["targets"]))
    assert not [
        metric.name
        for metric in METRICS
        if not shown.intersection(name for name, _ in samples_of(metric))
    ]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_a_title_a_unit_and_a_description(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["description"].endswith(".")


def test_panels_do_not_lie_on_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in PANELS):
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_dashboard_asks_the_datasource_that_its_reader_chooses() -> None:
    assert "datasource" in {one["name"] for one in VARIABLES if one["type"] == "datasource"}
    used = {json.dumps(panel["datasource"]) for panel in PANELS}
    used |= {json.dumps(target["datasource"]) for panel in PANELS for target in panel["targets"]}
    assert used == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_a_severity_a_text_and_a_remedy(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "remedy"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_text_uses_labels_that_the_alert_has(alert: dict[str, Any]) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))
    grouped = set(re.findall(r"\w+", ",".join(re.findall(r"by \(([^)]*)\)", alert["expr"]))))
    assert used <= (grouped or OF_TARGETS)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_remedy_names_commands_that_there_are(alert: dict[str, Any]) -> None:
    named = set(re.findall(r"celery-redlock (\w+)", alert["annotations"]["remedy"]))
    assert named <= set(redlock.commands)
    assert named or alert["alert"] == "MetricsAreMissing"


def test_every_service_that_is_scraped_serves_metrics_where_it_is_scraped() -> None:
    scraped = {
        (name, str(dns["port"]))
        for job in SCRAPES["scrape_configs"]
        for dns in job["dns_sd_configs"]
        for name in dns["names"]
    }
    served = {
        (name, service["environment"]["METRICS_PORT"])
        for name, service in SERVICES.items()
        if "METRICS_PORT" in service.get("environment", {})
    }
    assert scraped == served


def test_files_of_processes_are_kept_in_memory() -> None:
    for name in ("worker", "beat"):
        directory = Path(SERVICES[name]["environment"]["PROMETHEUS_MULTIPROC_DIR"])
        assert {str(parent) for parent in directory.parents} & set(SERVICES[name]["tmpfs"])


def test_nothing_of_it_starts_without_its_profile() -> None:
    added = {name for name, service in SERVICES.items() if service.get("profiles") == ["metrics"]}
    assert added == {"grafana", "prometheus", "metrics-files"}


def test_grafana_lets_nobody_in_without_a_password() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert "${GRAFANA_PASSWORD:?" in environment["GF_SECURITY_ADMIN_PASSWORD"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    environment = SERVICES["grafana"]["environment"]
    (source,) = yaml.safe_load((FILES / "grafana/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((FILES / "grafana/dashboards/files.yml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert provider["options"]["path"] == f"{environment['GF_PATHS_PROVISIONING']}/dashboards"
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/locks.json"
