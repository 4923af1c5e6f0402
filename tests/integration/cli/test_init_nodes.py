"""`celery-redlock init` arms brand-new nodes, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.cli import main
from celery_redlock.core import Redlock
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.testing import LocalCluster
from tests.support.nodes import CALM
from tests.support.waiting import wait_until

PASSWORD = "s3cr3t-word"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, armed=False, requirepass=PASSWORD) as cluster:
        yield cluster


def init(cluster: LocalCluster, *options: str) -> int:
    return main(["init", "--nodes", ",".join(cluster.urls), *options])


def states(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines()]


def test_brand_new_nodes_serve_at_once_after_init(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Redlock(cluster.urls, node_timeout=CALM) as redlock:
        assert init(cluster) == 0
        assert states(capsys.readouterr().out) == ["armed"] * 3
        assert redlock.acquire("key").release()


def test_json_has_the_state_of_each_node(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kill(1)
    assert init(cluster, "--json", "--force") == 1
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["state"] for node in nodes] == ["armed", "failed", "armed"]
    assert [node["votes"] for node in nodes] == [True, False, True]


def test_init_is_harmless_on_nodes_that_serve(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    init(cluster)
    capsys.readouterr()

    assert init(cluster) == 0
    assert states(capsys.readouterr().out) == ["serving"] * 3


def test_an_empty_node_of_a_set_in_use_is_not_armed(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    init(cluster)
    cluster.flush(1)
    capsys.readouterr()

    assert init(cluster) == 1
    output = capsys.readouterr().out
    assert states(output) == ["serving", "missing", "serving"]
    assert "may have crashed and lost its locks" in output
    cluster.kill(2)
    with (
        Redlock(cluster.urls, node_timeout=CALM) as redlock,
        pytest.raises(QuorumUnavailable, match="is quarantined"),
    ):
        redlock.acquire("key")


def test_force_arms_a_node_whatever_its_record_says(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    init(cluster)
    cluster.flush(1)
    capsys.readouterr()

    assert init(cluster, "--force") == 0
    output = capsys.readouterr().out
    assert states(output) == ["armed"] * 3
    assert "brand-new" not in output


def test_a_node_that_does_not_answer_is_named_and_fails_the_command(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kill(1)

    assert init(cluster) == 1
    output = capsys.readouterr().out
    assert states(output) == ["missing", "failed", "missing"]
    assert "refused" in output.splitlines()[1]


def test_what_to_do_is_said_where_not_all_nodes_could_be_asked(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kill(1)
    init(cluster)

    told = capsys.readouterr().out.splitlines()[0]
    silent = cluster.urls[1].replace(f":{PASSWORD}@", "")
    assert f"not all nodes could be asked: {silent}. Start them and run this again" in told
    assert "--force once no lease can be left" in told


def test_nodes_are_armed_when_those_that_did_not_answer_are_back(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kill(1)
    init(cluster)
    cluster.restart(1)
    capsys.readouterr()

    assert init(cluster) == 0
    assert states(capsys.readouterr().out) == ["armed"] * 3


def test_force_arms_the_nodes_that_answer(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.kill(1)

    assert init(cluster, "--force") == 1
    assert states(capsys.readouterr().out) == ["armed", "failed", "armed"]


def test_no_password_is_printed(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.kill(1)
    init(cluster)

    printed = capsys.readouterr()
    assert PASSWORD not in printed.out + printed.err


def test_a_wrong_password_is_said_without_printing_it(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [url.replace(PASSWORD, "wr0ng") for url in cluster.urls]

    assert main(["init", "--nodes", ",".join(wrong)]) == 1
    printed = capsys.readouterr()
    assert states(printed.out) == ["failed"] * 3
    assert "wr0ng" not in printed.out + printed.err


def test_each_node_may_have_an_option_of_its_own(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *(word for url in cluster.urls for word in ("--nodes", url))]) == 0
    assert states(capsys.readouterr().out) == ["armed"] * 3


def test_nodes_may_be_those_of_an_app(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "app_of_init.py").write_text(
        "from celery import Celery\n"
        "app = Celery('app_of_init', set_as_current=False)\n"
        f"app.conf.redlock_nodes = {list(cluster.urls)!r}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["init", "-A", "app_of_init"]) == 0
    assert states(capsys.readouterr().out) == ["armed"] * 3


def test_nodes_come_from_the_command_or_from_an_app_and_not_from_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ([], ["--nodes", "memory://a", "-A", "app"]):
        assert main(["init", *words]) == 2
    assert "--nodes" in capsys.readouterr().err


def test_a_quarantined_node_is_shown_with_the_seconds_that_remain(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Redlock(cluster.urls, node_timeout=CALM) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("key")

    wait_until(lambda: init(cluster) and "is quarantined for " in capsys.readouterr().out)
    init(cluster)
    remaining = re.findall(r"is quarantined for (\d+) s more", capsys.readouterr().out)
    assert remaining
    assert all(0 < int(seconds) <= 60 for seconds in remaining)
