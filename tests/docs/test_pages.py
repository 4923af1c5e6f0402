"""Every block of the documentation does what its page shows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, PAGES, ROOT, blocks_of
from tests.support.waiting import TIMEOUT

LOCK_NODES = 5
#: What people read and type first; `make test-full` plays all pages.
FIRST_READ = {ROOT / "README.md", DOCS / "tutorial" / "first-lock.md"}
PAGE_PATIENCE = 8 * TIMEOUT


@pytest.mark.timeout(PAGE_PATIENCE + 2 * TIMEOUT)
@pytest.mark.parametrize(
    "page",
    [
        page if page in FIRST_READ else pytest.param(page, marks=pytest.mark.full)
        for page in PAGES
        if blocks_of(page)
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_block_does_what_its_page_shows(
    page: Path, tmp_path: Path, redlock_cluster_factory, record_property
) -> None:
    nodes = redlock_cluster_factory(LOCK_NODES)
    (store,) = redlock_cluster_factory(1).urls
    job = {
        "page": str(page.relative_to(ROOT)),
        "directory": str(tmp_path / "page"),
        "nodes": [_address(url) for url in nodes.urls],
        "store": _address(store),
    }
    (tmp_path / "page").mkdir()
    result = tmp_path / "result.json"
    player = subprocess.Popen(
        [sys.executable, "-m", "tests.docs.player", json.dumps(job), str(result)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = player.communicate(timeout=PAGE_PATIENCE)
    finally:
        # Commands that a page has left in the background are in the player's session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(player.pid, signal.SIGKILL)
    assert player.returncode == 0, output
    played = json.loads(result.read_text())
    record_property("counts", {"docs blocks": played["counts"]})
    record_property("remarks", [f"docs block not run: {why}" for why in played["not_run"]])


def _address(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]
