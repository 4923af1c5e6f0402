"""Each row of the tables finds one thing, and healthy nodes give it nothing to find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_redlock.admin.diagnosis import (
    GROUP,
    NODE,
    SET,
    UNUSABLE,
    Check,
    Finding,
    Severity,
    as_data,
    diagnose,
)
from celery_redlock.admin.node_report import (
    Failure,
    FailureKind,
    Guard,
    NodeReport,
    SentinelFacts,
)
from celery_redlock.protocol.mastership import TAKEOVER
from celery_redlock.tasks.config.settings import RedlockSettings

MAX_TTL = 60.0
HEALTHY = tuple(
    NodeReport(
        url=f"redis://lock{number}:6379/0",
        latency=0.001,
        role="master",
        server="valkey",
        version="8.1.0",
        run_id=f"run {number}",
        uptime=1000,
        persistence="aof",
        maxmemory=0,
        maxmemory_policy="noeviction",
        backlog_ttl=3600,
        is_replicated=False,
        guard=Guard.SERVING,
        clock_skew=0.0,
        skew_from_nodes=0.0,
        missing_rights=(),
    )
    for number in range(1, 6)
)
ERROR, WARNING, INFO = Severity


def failed(kind: FailureKind) -> dict[str, Any]:
    return {"failure": Failure(kind=kind, text="ConnectionError: refused")}


#: What is different in the first node, by the finding about it.
OF_NODE: dict[tuple[str, Severity], dict[str, Any]] = {
    ("node-unreachable", ERROR): failed(FailureKind.SILENT),
    ("no-login", ERROR): failed(FailureKind.LOGIN),
    ("node-unusable", ERROR): failed(FailureKind.SETUP),
    ("replica", ERROR): {"role": "replica"},
    ("rights-missing", ERROR): {"missing_rights": ("+set", "+info", "+zadd")},
    ("info-hidden", WARNING): {"missing_rights": ("+info",)},
    ("wake-rights-missing", WARNING): {"missing_rights": ("+zadd", "&redlock-meta:wake:*")},
    ("refuses-writes", ERROR): {"refusal": "OOM command not allowed"},
    ("evicting-policy", ERROR): {"maxmemory_policy": "volatile-lru"},
    ("backlog-ttl-short", WARNING): {"backlog_ttl": 59},
    ("backlog-ttl-hidden", INFO): {"backlog_ttl": None, "is_replicated": True},
    ("quarantined", WARNING): {"guard": Guard.QUARANTINED, "quarantine_left": 12.0},
    ("max-ttl-differs", WARNING): {"guard": Guard.QUARANTINED, "quarantine_left": 70.0},
    ("restarted", WARNING): {"guard": Guard.OTHER},
    ("clock-skew", WARNING): {"skew_from_nodes": -7.25},
    ("slow-node", WARNING): {"latency": 0.05},
    ("persistence-missing", INFO): {"persistence": "none"},
}

#: Reports and settings of whole sets, by the finding about them.
OF_SET: dict[tuple[str, Severity], tuple[Sequence[NodeReport], dict[str, Any]]] = {
    ("quorum-margin", ERROR): (
        [*(replace(one, role="replica") for one in HEALTHY[:3]), *HEALTHY[3:]],
        {},
    ),
    ("key-paused", INFO): (
        [replace(one, paused="api", paused_for=30.0) for one in HEALTHY],
        {},
    ),
    ("pause-incomplete", WARNING): (
        [*(replace(one, paused="api", paused_for=30.0) for one in HEALTHY[1:]), HEALTHY[0]],
        {},
    ),
    ("quorum-margin", WARNING): (
        [*(replace(one, role="replica") for one in HEALTHY[:2]), *HEALTHY[2:]],
        {},
    ),
    ("even-nodes", WARNING): (HEALTHY[:4], {}),
    ("single-node", INFO): (HEALTHY[:1], {}),
    ("versions-differ", INFO): ([*HEALTHY[:4], replace(HEALTHY[4], version="8.0.2")], {}),
    ("clock-skew", WARNING): ([replace(one, clock_skew=3.0) for one in HEALTHY], {}),
    ("clock-slewed", ERROR): (HEALTHY, {"clock_correction": -0.08}),
    ("same-server-twice", ERROR): ([*HEALTHY[:4], replace(HEALTHY[4], run_id="run 1")], {}),
    ("persistence-missing", ERROR): (
        [replace(HEALTHY[0], persistence="none"), *HEALTHY[1:]],
        {"guard": False},
    ),
    ("never-armed", WARNING): ([replace(one, guard=Guard.MISSING) for one in HEALTHY], {}),
}
#: Findings about nodes that vote nevertheless.
OF_VOTERS = {
    "info-hidden",
    "wake-rights-missing",
    "evicting-policy",
    "backlog-ttl-short",
    "backlog-ttl-hidden",
    "clock-skew",
    "slow-node",
    "persistence-missing",
}
SENTINELS = SentinelFacts(named=3, known=3, silent=(), agree=True)
HEALTHY_GROUPS = tuple(
    replace(
        one,
        url=f"redis+sentinel://s1:26379,s2:26379,s3:26379/locks-{number}",
        is_replicated=True,
        replicas=1,
        min_replicas=0,
        sentinels=SENTINELS,
    )
    for number, one in enumerate(HEALTHY[:3])
)


def sentinels(**changes: Any) -> dict[str, Any]:
    return {"sentinels": replace(SENTINELS, **changes)}


#: What is different in the first group, and in the settings, by the finding about it.
OF_GROUP: dict[tuple[str, Severity], tuple[dict[str, Any], dict[str, Any]]] = {
    ("sentinels-few", WARNING): (sentinels(named=2, known=2), {}),
    ("sentinel-silent", WARNING): (sentinels(silent=("s2:26379 TimeoutError",)), {}),
    ("sentinels-disagree", WARNING): (sentinels(agree=False), {}),
    ("sentinels-unnamed", WARNING): (sentinels(known=5), {}),
    ("replicas-missing", WARNING): ({"replicas": 0}, {}),
    ("min-replicas", WARNING): ({"min_replicas": 1}, {}),
    ("failover-forgets", WARNING): ({}, {"guard": False}),
    ("takeover-short", ERROR): ({}, {"takeover": 6.9}),
    ("quarantined", WARNING): ({"guard": Guard.QUARANTINED, "quarantine_left": 89.0}, {}),
    ("max-ttl-differs", WARNING): ({"guard": Guard.QUARANTINED, "quarantine_left": 92.0}, {}),
    ("backlog-ttl-short", WARNING): ({"backlog_ttl": 89}, {}),
}


def findings(
    reports: Sequence[NodeReport], *, clock_correction: float | None = None, **settings: Any
) -> tuple[Finding, ...]:
    return diagnose(reports, RedlockSettings(max_ttl=MAX_TTL, **settings), clock_correction)


def about_first(**changes: Any) -> tuple[Finding, ...]:
    return findings([replace(HEALTHY[0], **changes), *HEALTHY[1:]])


def kinds(found: Sequence[Finding]) -> set[tuple[str, Severity]]:
    return {(one.code, one.severity) for one in found}


def test_healthy_nodes_give_no_finding() -> None:
    assert findings(HEALTHY) == ()


@pytest.mark.parametrize("kind", OF_NODE, ids=lambda kind: "-".join(kind))
def test_one_cause_gives_one_finding_that_names_its_node(kind: tuple[str, Severity]) -> None:
    (found,) = about_first(**OF_NODE[kind])

    assert (found.code, found.severity, found.node) == (*kind, HEALTHY[0].url)


def test_healthy_groups_give_no_finding() -> None:
    assert findings(HEALTHY_GROUPS) == ()


@pytest.mark.parametrize("kind", OF_GROUP, ids=lambda kind: "-".join(kind))
def test_one_cause_gives_one_finding_that_names_its_group(kind: tuple[str, Severity]) -> None:
    changes, settings = OF_GROUP[kind]

    found = findings([replace(HEALTHY_GROUPS[0], **changes), *HEALTHY_GROUPS[1:]], **settings)
    (first, *_) = [one for one in found if one.code != "quorum-margin"]
    assert (first.code, first.severity, first.node) == (*kind, HEALTHY_GROUPS[0].url)
    assert {one.code for one in found} <= {kind[0], "quorum-margin"}


@pytest.mark.parametrize("row", GROUP, ids=lambda row: f"{row.code}-{row.severity}")
def test_no_row_about_a_group_matches_a_server(row: Check[Any]) -> None:
    of_servers = findings([replace(HEALTHY[0], replicas=0, min_replicas=1)], takeover=0.0)
    assert row.code not in {one.code for one in of_servers}


def test_a_group_s_quarantine_is_longer_by_the_takeover() -> None:
    (found, _) = findings([replace(HEALTHY_GROUPS[0], guard=Guard.OTHER), *HEALTHY_GROUPS[1:]])
    assert f"its quarantine of {MAX_TTL + TAKEOVER:g} s" in found.message


def test_the_default_takeover_is_long_enough() -> None:
    assert findings(HEALTHY_GROUPS, takeover=TAKEOVER) == ()


def test_a_group_with_a_warning_votes() -> None:
    reports = [replace(one, **sentinels(known=5)) for one in HEALTHY_GROUPS]
    assert kinds(findings(reports)) == {("sentinels-unnamed", WARNING)}


@pytest.mark.parametrize("kind", OF_SET, ids=lambda kind: "-".join(kind))
def test_the_whole_set_is_judged_as_well(kind: tuple[str, Severity]) -> None:
    reports, settings = OF_SET[kind]

    assert kind in kinds(findings(reports, **settings))


def test_each_row_about_a_node_or_a_group_has_a_cause_here() -> None:
    assert {(row.code, row.severity) for row in (*UNUSABLE, *NODE)} <= {*OF_NODE, *OF_SET}
    assert {(row.code, row.severity) for row in GROUP} <= OF_GROUP.keys()


@pytest.mark.parametrize("row", SET, ids=lambda row: f"{row.code}-{row.severity}")
def test_each_row_about_a_set_matches_some_facts(row: Check[Any]) -> None:
    reports, settings = OF_SET[row.code, row.severity]

    found = [one for one in findings(reports, **settings) if one.node is None]
    assert (row.code, row.severity) in kinds(found)


def test_each_row_is_the_only_one_of_its_code_and_severity_in_its_table() -> None:
    for table in ((*UNUSABLE, *GROUP, *NODE), SET):
        assert len({(row.code, row.severity) for row in table}) == len(table)


def test_nothing_else_is_found_about_a_node_that_does_not_answer() -> None:
    everything = {name: value for kind in OF_NODE for name, value in OF_NODE[kind].items()}

    assert kinds(about_first(**everything)) == {("node-unusable", ERROR)}


def test_all_causes_are_found_on_a_node_that_answers() -> None:
    found = about_first(maxmemory_policy="allkeys-lru", skew_from_nodes=2.0)

    assert kinds(found) == {("evicting-policy", ERROR), ("clock-skew", WARNING)}


def test_errors_are_before_warnings_and_nodes_in_their_order() -> None:
    reports = [
        replace(HEALTHY[0], persistence="none"),
        replace(HEALTHY[1], guard=Guard.OTHER),
        replace(HEALTHY[2], role="replica"),
        replace(HEALTHY[3], role="replica"),
        HEALTHY[4],
    ]

    assert [(one.code, one.node) for one in findings(reports)] == [
        ("replica", HEALTHY[2].url),
        ("replica", HEALTHY[3].url),
        ("quorum-margin", None),
        ("restarted", HEALTHY[1].url),
        ("persistence-missing", HEALTHY[0].url),
    ]


def test_a_quarantined_node_does_not_vote_and_its_time_is_named() -> None:
    reports = [
        *(replace(one, guard=Guard.QUARANTINED, quarantine_left=12.0) for one in HEALTHY[:2]),
        *HEALTHY[2:],
    ]

    found = findings(reports)
    assert "for 12 s more" in found[0].message
    assert "3 of 5" in found[-1].message


def test_a_node_whose_quarantine_has_not_begun_names_its_length() -> None:
    assert "60 s" in about_first(guard=Guard.MISSING)[0].message


@pytest.mark.parametrize("kind", OF_NODE, ids=lambda kind: "-".join(kind))
def test_two_nodes_of_five_that_do_not_vote_leave_a_quorum_and_no_more(
    kind: tuple[str, Severity],
) -> None:
    reports = [*(replace(one, **OF_NODE[kind]) for one in HEALTHY[:2]), *HEALTHY[2:]]

    margin = {("quorum-margin", WARNING)} if kind[0] not in OF_VOTERS else set()
    assert kinds(findings(reports)) == {kind} | margin


def test_one_server_under_three_names_has_one_vote() -> None:
    reports = [*(replace(one, run_id="run 1") for one in HEALTHY[:3]), *HEALTHY[3:]]

    assert [(one.code, one.node) for one in findings(reports)] == [
        ("same-server-twice", HEALTHY[1].url),
        ("same-server-twice", HEALTHY[2].url),
        ("quorum-margin", None),
    ]


def test_new_nodes_do_not_vote() -> None:
    reports, _ = OF_SET["never-armed", WARNING]

    assert "0 of 5" in findings(reports)[0].message


@pytest.mark.parametrize("persistence", ["none", "rdb"])
def test_nodes_without_persistence_and_guard_vote(persistence: str) -> None:
    reports = [replace(one, persistence=persistence) for one in HEALTHY]

    assert kinds(findings(reports, guard=False)) == {("persistence-missing", ERROR)}


def test_without_the_guard_a_restarted_node_votes() -> None:
    reports = [replace(one, guard=Guard.OTHER) for one in HEALTHY]

    assert findings(reports, guard=False) == ()


def test_a_single_node_is_not_guarded_unless_the_settings_ask_for_it() -> None:
    (one,) = (replace(HEALTHY[0], guard=Guard.MISSING),)

    assert kinds(findings([one])) == {("single-node", INFO)}
    assert ("never-armed", WARNING) in kinds(findings([one], guard=True))


def test_facts_that_a_node_does_not_show_are_no_finding() -> None:
    assert findings([NodeReport(url=one.url) for one in HEALTHY]) == ()


def test_a_clock_that_is_seconds_off_names_the_limit_to_candidates() -> None:
    assert "7.25 s behind" in about_first(skew_from_nodes=-7.25)[0].message
    assert "more than 5 s ahead" in about_first(skew_from_nodes=-7.25)[0].message
    assert "candidate" not in about_first(skew_from_nodes=-2.0)[0].message


def test_the_machine_whose_clock_is_behind_is_named_so() -> None:
    reports, _ = OF_SET["clock-skew", WARNING]

    assert "This machine's clock is 3 s behind" in findings(reports)[0].message


def test_a_message_ends_as_a_sentence() -> None:
    cases = [about_first(**changes) for changes in OF_NODE.values()]
    cases += [findings(reports, **settings) for reports, settings in OF_SET.values()]
    cases += [
        findings([replace(HEALTHY_GROUPS[0], **changes)], **settings)
        for changes, settings in OF_GROUP.values()
    ]

    assert not [
        one for found in cases for one in found if not one.message.endswith((".", "allowed"))
    ]


def test_data_are_what_json_takes() -> None:
    reports = [replace(HEALTHY[0], **failed(FailureKind.LOGIN)), *HEALTHY[1:]]
    data = json.loads(json.dumps(as_data(reports, findings(reports))))

    assert data["nodes"][0]["failure"] == {"kind": "login", "text": "ConnectionError: refused"}
    assert [node["reachable"] for node in data["nodes"]] == [False, *[True] * 4]
    assert data["nodes"][1]["guard"] == "serving"
    (finding,) = data["findings"]
    assert finding.keys() == {"severity", "node", "code", "message"}
    assert (finding["severity"], finding["code"]) == ("error", "no-login")
