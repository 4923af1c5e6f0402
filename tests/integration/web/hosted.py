"""Applications under uvicorn in which the page is mounted."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.program import ROOT, Program
from tests.integration.web.site import Pages


class Host(Pages):
    """An application under uvicorn, with the page at a path of its own."""

    root = "/ops/locks"

    def __init__(self, program: Program) -> None:
        self.program = program
        program.wait_for_log("Uvicorn running on")
        (port,) = re.findall(r"Uvicorn running on http://[\d.]+:(\d+)", program.log)
        self.port = int(port)

    def log_in(self, name: str) -> Host:
        """Be somebody from now on."""
        self.cookie = ""
        root, self.root = self.root, ""
        answer = self.ask(f"/login/{name}")
        self.root = root
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        return self


@contextmanager
def hosted(name: str, nodes: Sequence[str], logs: Path, *options: str) -> Iterator[Host]:
    command = ["-m", "uvicorn", f"tests.integration.web.hosts.{name}_host:api", "--port", "0"]
    environment = {
        **os.environ,
        "HOST_NODES": json.dumps(nodes),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    program = Program(name, [sys.executable, *command, *options], environment, logs)
    try:
        yield Host(program)
    finally:
        program.stop()
