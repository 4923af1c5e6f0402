"""The images of the profile `metrics`, where they can be had."""

from __future__ import annotations

import re
from pathlib import Path

from docker.errors import APIError, ImageNotFound

import docker
from tests.containers.deployment import DOCKER

COMPOSE = (DOCKER / "compose.yaml").read_text()
STAND_IN = Path(__file__).with_name("prometheus")


def named(service: str) -> str:
    """Return the image that compose.yaml names."""
    (found,) = set(re.findall(rf"\$\{{{service.upper()}_IMAGE:-(.*)\}}", COMPOSE))
    return str(found)


def can_be_had(image: str) -> bool:
    """Return whether the engine has an image or gets it."""
    images = docker.from_env().images
    try:
        images.get(image)
    except ImageNotFound:
        try:
            images.pull(image)
        except APIError:
            return False
    return True


def prometheus_image() -> str:
    """Return the image of Prometheus that compose.yaml names, or else one with Debian's."""
    image = named("prometheus")
    if can_be_had(image):
        return image
    built, _ = docker.from_env().images.build(path=str(STAND_IN), tag="redlock-test-prometheus")
    return str(built.tags[0])
