"""The optimistic examples, run as their page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_deposit_arrives() -> None:
    (command,) = re.findall(
        r"^\$ python (-m \S+)$",
        (ROOT / "examples/optimistic/README.md").read_text(),
        flags=re.MULTILINE,
    )

    output = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout

    told = re.findall(r"(\d+) deposits of 1, balance (\d+), done again \d+ times", output)
    assert told == [("200", "200")] * 2
