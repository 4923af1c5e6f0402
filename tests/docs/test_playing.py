"""The player of pages notices when a page does not show what happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.console import commands_of
from tests.support.waiting import TIMEOUT


class Played:
    """A page that somebody has written, played in a process of its own."""

    def __init__(self, directory: Path, *blocks: str) -> None:
        page = directory / "page.md"
        page.write_text("\n\n".join(["# A page", *blocks]))
        (directory / "work").mkdir()
        result = directory / "result.json"
        job = {
            "page": str(page),
            "directory": str(directory / "work"),
            "nodes": ["127.0.0.1:1111", "127.0.0.1:2222"],
            "store": "127.0.0.1:3333",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.player", json.dumps(job), str(result)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=3 * TIMEOUT,
        )
        self.refused = done.returncode != 0
        self.error = done.stderr
        self.result = {} if self.refused else json.loads(result.read_text())


@pytest.fixture
def play(tmp_path: Path):
    return lambda *blocks: Played(tmp_path, *blocks)


def block(language: str, *lines: str, order: str = "") -> str:
    ordered = f"<!-- docs: {order} -->\n" if order else ""
    return "\n".join([f"{ordered}```{language}", *lines, "```"])


def test_every_sort_of_block_is_counted(play) -> None:
    page = play(
        block("python", "x = 1"),
        block("console", "$ echo there", "there"),
        block("console", '$ pip install "celery-redlock[embedded]"', "$ make test"),
        block("yaml", "a: 1"),
        block("text", "a drawing"),
        block("console", "$ rm -rf /", order="not run: nobody wants that"),
    )
    assert page.result["counts"] == {
        "executed": 2,
        "checked": 1,
        "parsed": 1,
        "shown as text": 1,
        "not run": 1,
    }
    (remark,) = page.result["not_run"]
    assert remark.endswith("page.md:27: nobody wants that")


def test_blocks_of_a_page_share_their_names(play) -> None:
    assert not play(block("python", "x = 1"), block("python", "assert x == 1")).refused


def test_a_python_block_that_fails_is_reported_with_its_line(play) -> None:
    page = play(block("python", "x = 1", "assert x == 2"))
    assert page.refused
    assert "page.md:4:" in page.error
    assert 'page.md", line 5, in <module>' in page.error


def test_a_block_may_name_the_error_that_it_shows(play) -> None:
    assert not play(block("python", "{}['a']", order="raises KeyError")).refused


def test_a_block_that_does_not_raise_what_it_shows_is_refused(play) -> None:
    assert (
        "does not raise KeyError" in play(block("python", "x = 1", order="raises KeyError")).error
    )


def test_output_that_does_not_come_is_refused(play) -> None:
    assert "the page shows 'here'" in play(block("console", "$ echo there", "here")).error


def test_output_may_leave_things_out(play) -> None:
    shown = ("$ printf 'a 17 b\\nmore\\nc   d\\n'", "a ... b", "c d")
    assert not play(block("console", *shown)).refused


def test_an_exit_status_that_the_page_does_not_name_is_refused(play) -> None:
    assert "exit status 3, not 0" in play(block("console", "$ exit 3")).error


def test_an_exit_status_can_be_named(play) -> None:
    assert not play(block("console", "$ exit 3", order="exit status 3")).refused


def test_a_command_can_be_repeated_until_it_shows_what_the_page_does(play) -> None:
    page = play(
        block(
            "console",
            "$ echo x >> runs; wc -l < runs",
            "3",
            order="repeated until it shows this",
        )
    )
    assert not page.refused


def test_an_extra_that_there_is_not_is_refused(play) -> None:
    page = play(block("console", '$ pip install "celery-redlock[magic]"'))
    assert "extras that there are not: {'magic'}" in page.error


def test_a_make_target_that_there_is_not_is_refused(play) -> None:
    assert "there is no make magic" in play(block("console", "$ make magic")).error


def test_a_language_that_nobody_knows_is_refused(play) -> None:
    assert "nothing is known about language 'cobol'" in play(block("cobol", "DISPLAY 'HI'.")).error


def test_what_cannot_be_parsed_is_refused(play) -> None:
    assert play(block("json", "{")).refused


def test_a_file_that_nothing_uses_is_refused(play) -> None:
    assert "nothing on the page uses" in play(block("python", "# tool.py", "x = 1")).error


def test_a_file_is_there_for_what_follows(play) -> None:
    assert not play(block("python", "# tool.py", "x = 1"), block("python", "import tool")).refused


def test_a_server_that_refuses_its_configuration_is_reported(play) -> None:
    assert play(block("text", "# redis.conf", "no-such-option yes")).refused


def test_host_names_stand_for_the_servers_of_the_tests(play) -> None:
    lines = ("urls = ['redis://lock2:6379', 'redis://localhost:6379/1']",)
    check = "assert urls == ['redis://127.0.0.1:2222', 'redis://127.0.0.1:3333/1'], urls"
    assert not play(block("python", *lines, check)).refused


def test_a_command_in_the_background_ends_with_the_page(play, tmp_path: Path) -> None:
    page = play(
        block(
            "console",
            "$ bash -c 'echo $$ > pid; echo going; exec sleep 1000'",
            order='in the background until "going"',
        )
    )
    assert not page.refused
    pid = int((tmp_path / "work" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_command_in_the_background_that_ends_is_refused(play) -> None:
    page = play(block("console", "$ echo gone", order='in the background until "never"'))
    assert "it has ended" in page.error


def test_directives_are_no_blocks_but_may_have_some(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```{toctree}\na\n```\n\n````{note}\n```python\nx\n```\n````\n\n```text\ny\n```"
    )
    assert [each.text for each in blocks_of(page)] == ["x\n", "y\n"]


def test_code_that_is_hidden_in_a_directive_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```{code-block} python\nx\n```\n")
    with pytest.raises(ValueError, match="as a fenced block"):
        blocks_of(page)


def test_an_order_without_a_block_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- docs: not run: why -->\n\nText.\n")
    with pytest.raises(ValueError, match="no block follows"):
        blocks_of(page)


def test_blocks_in_lists_lose_their_indentation(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. Do\n\n   ```python\n   if x:\n       y\n   ```\n")
    assert [each.text for each in blocks_of(page)] == ["if x:\n    y\n"]


def test_commands_may_go_on_in_the_next_line() -> None:
    (command,) = commands_of("$ celery -A shop \\\n  worker\nready\n")
    assert command.line.split() == ["celery", "-A", "shop", "worker"]
    assert command.shown == ["ready"]
