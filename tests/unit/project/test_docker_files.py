"""The files in docker/ let nobody in who should not be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[3] / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
SERVICES = ("BROKER", "FLOWER", "GRAFANA", "LOCK", "STORE")
PASSWORDS = tuple(f"{service}_PASSWORD" for service in SERVICES)


def read(path: Path) -> dict[str, str]:
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


PROJECT = "COMPOSE_PROJECT_NAME"


def test_no_password_has_a_default() -> None:
    assert read(DOCKER / ".env.example") == dict.fromkeys((PROJECT, *PASSWORDS), "")
    assert not re.findall(r"\$\{\w+_PASSWORD:?-", COMPOSE)


@pytest.mark.parametrize("name", PASSWORDS)
def test_nothing_starts_without_a_password(name: str) -> None:
    assert f"${{{name}:?" in COMPOSE


def test_what_is_published_is_published_on_this_machine_only() -> None:
    published = re.findall(r"^\s+ports: \[(.*)\]$", COMPOSE, flags=re.MULTILINE)
    assert published == [
        '"127.0.0.1:${FLOWER_PORT:-5555}:5555"',
        '"127.0.0.1:${GRAFANA_PORT:-3000}:3000"',
    ]
    assert COMPOSE.count("ports:") == len(published)


def test_images_that_are_built_belong_to_the_project() -> None:
    built = re.findall(r"image: (\S+)\n\s+build:", COMPOSE)
    assert len(built) == COMPOSE.count("build:") == 2
    assert all(image.startswith("${COMPOSE_PROJECT_NAME:-redlock-bank}-") for image in built)
