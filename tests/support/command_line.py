"""The command `celery-redlock` in the process of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from celery_redlock.cli import main


@dataclass(frozen=True, slots=True)
class Printed:
    """The output of a command that has ended."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


CommandLine = Callable[..., Printed]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run a command, which has to end with `status`; return what it has printed."""

    def run(*words: str, status: int = 0) -> Printed:
        assert main(words) == status
        return Printed(*capsys.readouterr())

    return run
