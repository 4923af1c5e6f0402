"""What a container is made of is fetched where it is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from celery_redlock.testing.containers import RedlockNodeContainer
from celery_redlock.testing.containers.nodes import running_container
from tests.support.waiting import TIMEOUT

pytestmark = [pytest.mark.containers, pytest.mark.timeout(10 * TIMEOUT)]


class ReadyContainer(RedlockNodeContainer):
    """Ready at once, whatever it wraps."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def ready(self) -> bool:
        return True


class Engine:
    """A Docker engine that notes what it is asked for; `.containers` and `.images` are itself."""

    def __init__(self, *images: str, registry: tuple[str, ...] = ()) -> None:
        self.containers = self.images = self
        self.asked: list[str] = []
        self._here = set(images)
        self._registry = registry

    def create(self, *, image: str, **_: Any) -> Any:
        self.asked.append("create")
        if image not in self._here:
            raise ImageNotFound(f"No such image: {image}")
        note = self.asked.append
        return SimpleNamespace(
            start=lambda: note("start"), remove=lambda **_: note("remove"), name="container"
        )

    def pull(self, image: str) -> None:
        self.asked.append("pull")
        if image not in self._registry:
            raise ImageNotFound(f"pull access denied for {image}")
        self._here.add(image)


def run(engine: Engine) -> None:
    with running_container(engine, ReadyContainer, networks=["network"], image="redis:7"):
        pass


def test_an_image_that_is_not_here_is_pulled() -> None:
    engine = Engine(registry=("redis:7",))
    run(engine)
    assert engine.asked == ["create", "pull", "create", "start", "remove"]


def test_an_image_that_is_here_is_not_asked_for_elsewhere() -> None:
    engine = Engine("redis:7")
    run(engine)
    assert engine.asked == ["create", "start", "remove"]


def test_an_image_that_is_nowhere_is_the_error() -> None:
    with pytest.raises(ImageNotFound, match="pull access denied for redis:7"):
        run(Engine())
