"""
What the demo is made of: its numbers, and what its worker has to be told.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

__all__ = ["ACCOUNTS", "ACTS", "MAX_TTL", "NODES", "PROCESSES", "TTL", "WORK", "Scene"]

NODES = 5
PROCESSES = 6
ACCOUNTS = "ABCDEF"

#: Payments to each account in each of the three acts.
ACTS = (4, 3, 3)

#: Seconds between a body's read and its write.
WORK = 0.9

#: A lease far shorter than anybody needs, so that nobody has to wait long for one that is left
#: behind; and what a node that lost its data sits out.
TTL = 3.0
MAX_TTL = 5.0

_VARIABLE = "REDLOCK_DEMO_SCENE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """
    Where everything is, as the worker's processes need to know it.

    Attributes:
        broker: URL of the broker.
        results: URL of the result store.
        nodes: URLs of the lock nodes.
        directory: holds the account files and the journal.
        locked: whether bodies run under the lock.
    """

    broker: str
    results: str
    nodes: tuple[str, ...]
    directory: str
    locked: bool

    @property
    def journal(self) -> Path:
        """The file in which bodies say what they do."""
        return Path(self.directory, "journal.jsonl")

    @property
    def accounts(self) -> Path:
        """The directory of the account files."""
        return Path(self.directory, "accounts")

    def environment(self) -> dict[str, str]:
        """Return the environment for a process that shall find this scene."""
        told = json.dumps(asdict(self))
        # What Celery's pool keeps in files shall go with everything else, however the worker ends.
        return {**os.environ, _VARIABLE: told, "TMPDIR": self.directory}

    @classmethod
    def from_environment(cls) -> Self:
        """Return the scene that this process was started for."""
        told = json.loads(os.environ[_VARIABLE])
        return cls(**{**told, "nodes": tuple(told["nodes"])})
