"""Each alert fires in its situation and in no other; Prometheus's own tool says so, in its time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

import docker
from tests.containers.deployment import DOCKER
from tests.containers.metrics_images import prometheus_image
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.containers, pytest.mark.timeout(20 * TIMEOUT)]

ALERTS = DOCKER / "metrics/alerts.yml"

#: Samples are ten seconds apart: a situation begins with this one, and is looked at with that one.
BEGINS, LOOKED_AT = 80, 234
#: For alerts about one event: it is new when it is looked at.
NEW = f"_x{LOOKED_AT - 5} 1x10"
STOPS = f"0+10x{BEGINS} {10 * BEGINS}x200"
STARTS = f"0x{BEGINS} 0+10x200"

WORKER = 'job="workers",instance="worker:9100"'
BEAT = 'job="beats",instance="beat:9100"'
GRANTED = f'redlock_acquire_seconds_count{{{WORKER},task="pay",kind="lease",outcome="granted"}}'
UNAVAILABLE = (
    f'redlock_acquire_seconds_count{{{WORKER},task="pay",kind="lease",outcome="unavailable"}}'
)
QUICK = f'redlock_acquire_seconds_bucket{{{WORKER},task="pay",outcome="granted",le="0.1"}}'
SLOW = f'redlock_acquire_seconds_bucket{{{WORKER},task="pay",outcome="granted",le="10"}}'
EVER = f'redlock_acquire_seconds_bucket{{{WORKER},task="pay",outcome="granted",le="+Inf"}}'
VOTES = f'redlock_node_votes_total{{{WORKER},node="lock1",vote="granted"}}'
FAILURES = f'redlock_node_votes_total{{{WORKER},node="lock1",vote="failed"}}'
SPARE = f"redlock_spare_nodes{{{WORKER}}}"
LEADS = f'redlock_extensions_total{{{BEAT},outcome="granted"}}'


def event(name: str) -> str:
    return f'redlock_task_events_total{{{WORKER},task="pay",event="{name}"}}'


#: What all goes well with.
WELL = {
    f"up{{{WORKER}}}": "1x300",
    f"up{{{BEAT}}}": "1x300",
    GRANTED: "0+10x300",
    QUICK: "0+10x300",
    SLOW: "0+10x300",
    EVER: "0+10x300",
    VOTES: "0+10x300",
    SPARE: "2x300",
    LEADS: "0+3x300",
}

#: What differs where an alert fires.
FIRING = {
    "LocksHaveNoQuorum": {GRANTED: STOPS, UNAVAILABLE: STARTS},
    "LocksHaveNoNodeToSpare": {SPARE: f"2x{BEGINS} 0x200"},
    "LockNodeDoesNotVote": {VOTES: STOPS, FAILURES: STARTS},
    "LocksAreLost": {f'redlock_losses_total{{{WORKER},task="pay",reason="gone"}}': NEW},
    "TasksRunWithoutTheirLock": {event("task_without_lock"): NEW},
    "TasksWaitLongForTheirLock": {QUICK: STOPS},
    "TasksAreRequeuedAgainAndAgain": {event("task_requeued"): f"0x{BEGINS} 0+40x200"},
    "TasksGaveUp": {event("task_gave_up"): NEW},
    "ScheduleHasNoLeader": {LEADS: STOPS},
    "MetricsAreMissing": {f"up{{{WORKER}}}": f"1x{BEGINS} 0x200"},
}

#: What differs where people need not come: a part of what an alert is about.
QUIET = {
    "a quorum is missed now and then": {UNAVAILABLE: STARTS},
    "a node is quarantined and others vote": {FAILURES: STARTS},
    "a stop was asked for": {
        f'redlock_losses_total{{{WORKER},task="pay",reason="stop_requested"}}': NEW
    },
    "tasks are requeued as often as they run": {event("task_requeued"): "0+10x300"},
    "a task is skipped": {event("task_skipped"): NEW},
}


def says(directory: Path, differs: dict[str, str], firing: list[str]) -> tuple[int, str]:
    """Return the status and the words of the tool, told which alerts shall fire."""
    shutil.copy(ALERTS, directory)
    test = {
        "interval": "10s",
        "input_series": [
            {"series": series, "values": values} for series, values in (WELL | differs).items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{LOOKED_AT * 10}s",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing
                ],
            }
        ],
    }
    whole = {"rule_files": ["alerts.yml"], "evaluation_interval": "10s", "tests": [test]}
    (directory / "tests.yml").write_text(yaml.safe_dump(whole))
    engine = docker.from_env()
    tool = engine.containers.run(
        prometheus_image(),
        entrypoint=["promtool"],
        command=["test", "rules", "/situation/tests.yml"],
        volumes={str(directory): {"bind": "/situation", "mode": "ro"}},
        user="root",
        network_mode="none",
        detach=True,
    )
    try:
        return tool.wait()["StatusCode"], tool.logs().decode()
    finally:
        tool.remove(force=True)


def test_every_alert_has_a_situation() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == FIRING.keys()


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    status, said = says(tmp_path, {}, [])
    assert status == 0, said


@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    status, said = says(tmp_path, FIRING[alert], [alert])
    assert status == 0, said


@pytest.mark.parametrize("situation", QUIET)
def test_nobody_is_called_for_less(situation: str, tmp_path: Path) -> None:
    status, said = says(tmp_path, QUIET[situation], [])
    assert status == 0, said
