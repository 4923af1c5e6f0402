"""`celery-redlock init` arms brand-new nodes, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest

from celery_redlock.core import Redlock
from celery_redlock.errors import QuorumUnavailable
from celery_redlock.testing import LocalCluster
from tests.support.command_line import CommandLine, Printed
from tests.support.nodes import CALM
from tests.support.waiting import wait_until

PASSWORD = "s3cr3t-word"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, armed=False, requirepass=PASSWORD) as cluster:
        yield cluster


@pytest.fixture
def init(cluster: LocalCluster, cli: CommandLine) -> CommandLine:
    return partial(cli, "init", "--nodes", ",".join(cluster.urls))


def states(printed: Printed) -> list[str]:
    return [line.split()[1] for line in printed.lines]


def test_brand_new_nodes_serve_at_once_after_init(cluster: LocalCluster, init: CommandLine) -> None:
    with Redlock(cluster.urls, node_timeout=CALM) as redlock:
        assert states(init()) == ["armed"] * 3
        assert redlock.acquire("key").release()


def test_json_has_the_state_of_each_node(cluster: LocalCluster, init: CommandLine) -> None:
    cluster.kill(1)
    nodes = init("--json", "--force", status=1).json["nodes"]
    assert [node["state"] for node in nodes] == ["armed", "failed", "armed"]
    assert [node["votes"] for node in nodes] == [True, False, True]


def test_init_is_harmless_on_nodes_that_serve(init: CommandLine) -> None:
    init()
    assert states(init()) == ["serving"] * 3


def test_an_empty_node_of_a_set_in_use_is_not_armed(
    cluster: LocalCluster, init: CommandLine
) -> None:
    init()
    cluster.flush(1)

    printed = init(status=1)
    assert states(printed) == ["serving", "missing", "serving"]
    assert "may have crashed and lost its locks" in printed.out
    cluster.kill(2)
    with (
        Redlock(cluster.urls, node_timeout=CALM) as redlock,
        pytest.raises(QuorumUnavailable, match="is quarantined"),
    ):
        redlock.acquire("key")


def test_force_arms_a_node_whatever_its_record_says(
    cluster: LocalCluster, init: CommandLine
) -> None:
    init()
    cluster.flush(1)

    printed = init("--force")
    assert states(printed) == ["armed"] * 3
    assert "brand-new" not in printed.out


def test_a_node_that_does_not_answer_is_named_and_fails_the_command(
    cluster: LocalCluster, init: CommandLine
) -> None:
    cluster.kill(1)

    printed = init(status=1)
    assert states(printed) == ["missing", "failed", "missing"]
    assert "refused" in printed.lines[1]


def test_what_to_do_is_said_where_not_all_nodes_could_be_asked(
    cluster: LocalCluster, init: CommandLine
) -> None:
    cluster.kill(1)

    told = init(status=1).lines[0]
    silent = cluster.urls[1].replace(f":{PASSWORD}@", "")
    assert f"not all nodes could be asked: {silent}. Start them and run this again" in told
    assert "--force once no lease can be left" in told


def test_nodes_are_armed_when_those_that_did_not_answer_are_back(
    cluster: LocalCluster, init: CommandLine
) -> None:
    cluster.kill(1)
    init(status=1)
    cluster.restart(1)

    assert states(init()) == ["armed"] * 3


def test_no_password_is_printed(cluster: LocalCluster, init: CommandLine) -> None:
    cluster.kill(1)
    printed = init(status=1)

    assert PASSWORD not in printed.out + printed.err


def test_a_wrong_password_is_said_without_printing_it(
    cluster: LocalCluster, cli: CommandLine
) -> None:
    wrong = [url.replace(PASSWORD, "wr0ng") for url in cluster.urls]

    printed = cli("init", "--nodes", ",".join(wrong), status=1)
    assert states(printed) == ["failed"] * 3
    assert "wr0ng" not in printed.out + printed.err


def test_each_node_may_have_an_option_of_its_own(cluster: LocalCluster, cli: CommandLine) -> None:
    printed = cli("init", *(word for url in cluster.urls for word in ("--nodes", url)))
    assert states(printed) == ["armed"] * 3


@pytest.mark.parametrize(
    "words", [[], ["--nodes", "memory://a", "-A", "app"]], ids=["neither", "both"]
)
def test_nodes_come_from_the_command_or_from_an_app_and_not_from_both(
    cli: CommandLine, words: list[str]
) -> None:
    assert "--nodes" in cli("init", *words, status=2).err


def test_a_quarantined_node_is_shown_with_the_seconds_that_remain(
    cluster: LocalCluster, init: CommandLine
) -> None:
    with Redlock(cluster.urls, node_timeout=CALM) as redlock, pytest.raises(QuorumUnavailable):
        redlock.acquire("key")

    def remaining() -> list[str]:
        return re.findall(r"votes by itself in (\d+) s", init(status=1).out)

    assert all(0 < int(seconds) <= 60 for seconds in wait_until(remaining))
