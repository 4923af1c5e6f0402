"""Things behind every guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fencing.fences import KINDS, Guarded, Opener, kinds


@pytest.fixture(params=kinds())
def opener(
    request: pytest.FixtureRequest, tmp_path: Path, url_of: Callable[[str], str]
) -> Iterator[Opener]:
    """Any thing of one store, by its name."""
    with KINDS[request.param](url_of(request.param), tmp_path) as at:
        yield at


@pytest.fixture
def guarded(opener: Opener) -> Guarded:
    return opener("account:7")
