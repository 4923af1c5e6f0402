"""Environments can be set up wherever a checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pip_finds_the_constraints_where_the_path_has_a_blank(tmp_path: Path) -> None:
    top = tmp_path / "a checkout"
    top.mkdir()
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, top)
    (top / "show.mk").write_text('show: ; @echo "$$PIP_CONSTRAINT"\n')
    command = ["make", "--no-print-directory", "-f", "Makefile", "-f", "show.mk", "show"]
    environ = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    shown = subprocess.check_output(command, cwd=top, text=True, env=environ)
    paths = shown.split()  # as pip splits them
    assert paths
    assert [path for path in paths if not (top / path).is_file()] == []
