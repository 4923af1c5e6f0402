"""What goes wrong on the command line is said in a sentence that names the mend."""

from __future__ import annotations

import os
import sys

import click
import pytest

from celery_redlock.cli import locks, main
from celery_redlock.testing import LocalCluster
from celery_redlock.testing.plugin import ClusterFactory
from tests.support import forked


@pytest.fixture
def cluster(redlock_cluster_factory: ClusterFactory) -> LocalCluster:
    return redlock_cluster_factory(3)


ESCAPE = "\x1b]0;title\x07"


def test_nothing_that_nodes_have_controls_the_terminal(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in range(3):
        cluster.client(node).set(f"redlock:a{ESCAPE}", f"b{ESCAPE}", px=60_000)
    nodes = ",".join(cluster.urls)
    for shows_tables in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=shows_tables: shown, raising=False)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(click, "confirm", lambda *_, **__: None)
        for words in (["list"], ["show", f"a{ESCAPE}"], ["release", f"b{ESCAPE}"]):
            main([*words, "--nodes", nodes])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks, "release_lock", lambda *_, **__: [])
            main(["release", f"a{ESCAPE}", "--nodes", nodes])
    output = capsys.readouterr()
    assert "title" in output.out
    assert "\x1b]" not in output.out + output.err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [("list", "--nodes", "memory://a"), ("--help",), ("list", "--help")], ids=" ".join
)
def test_a_full_disk_is_one_line(words: tuple[str, ...], unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = forked.run(
            "-m", "celery_redlock", *words, check=False, env=env, stdout=full.fileno()
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "No space left" in line
