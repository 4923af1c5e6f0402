"""The deployment of docker/compose.yaml, started by the commands that docker/README.md tells."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from tests.support.waiting import TIMEOUT, wait_until

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
README = (DOCKER / "README.md").read_text()

MAKE_PATIENCE = TIMEOUT
# An image may have to be built, and others fetched from far away.
UP_PATIENCE = 20 * TIMEOUT
# On a busy machine: until health checks that are 15 s apart have all succeeded.
HEALTHY_PATIENCE = 8 * TIMEOUT
CLIENT_PATIENCE = 8 * TIMEOUT
# Of each container, for a test's report: some minutes of a worker.
LOG_LINES = 5000


def told_commands() -> list[str]:
    """Return what the first console block of the README tells people to type."""
    (block, *_) = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def compose_command() -> list[str]:
    """Return what answers to compose's commands here: the plugin, else docker-compose."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


class Deployment:
    """
    A project of its own, with passwords of its own, beside any that runs here already.

    It is started from a checkout that nobody but its owner may read.
    """

    def __init__(self, checkout: Path, environment: Mapping[str, str] | None = None) -> None:
        self.project = f"redlock-test-{uuid.uuid4().hex[:8]}"
        self._docker = docker.from_env()
        self.checkout = checkout
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "GRAFANA_PORT": "0",
            **(environment or {}),
        }
        _check_out(checkout)
        make_env, *self._told = told_commands()
        self._run([make_env], MAKE_PATIENCE)

    def told(self, start: str) -> list[str]:
        """Return the words of the README's command that does this, as this machine has it."""
        (command,) = (c for c in self._told if f" {start} " in f"{c} ")
        return [*compose_command(), *shlex.split(command.removeprefix("docker compose "))]

    def up(self) -> None:
        self._run(self.told("up"), UP_PATIENCE)

    def up_with(self, profile: str, *services: str) -> None:
        """Start what a profile adds, all or some of it, on any free port of this machine."""
        self._run([*self._compose(profile), "up", "--detach", *services], UP_PATIENCE)

    def down(self) -> None:
        command = self._compose("flower", "metrics")
        self._run([*command, "down", "--volumes", "--timeout", "1"], UP_PATIENCE)
        for image in self._docker.images.list(f"{self.project}-app"):
            # Without what it was built from, which spares the next run the time.
            self._docker.images.remove(image.tags[0], noprune=True)

    def client(self, *options: str) -> subprocess.Popen[str]:
        """Start the client."""
        return subprocess.Popen(
            [*self.told("run"), *options],
            cwd=self.checkout,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def containers(self, service: str = "") -> list[Any]:
        """Return the project's containers, running or not, or those of one service."""
        labels = [f"com.docker.compose.project={self.project}"]
        if service:
            labels.append(f"com.docker.compose.service={service}")
        found = self._docker.containers.list(all=True, filters={"label": labels})
        return [c for c in found if c.labels.get("com.docker.compose.oneoff") != "True"]

    def logs(self) -> list[tuple[str, str]]:
        """Return what each container has logged, under a heading with the times of its last run."""
        found = []
        for container in self.containers():
            state = container.attrs["State"]
            times = f"started {state['StartedAt']}, ended {state['FinishedAt']}"
            log = container.logs(timestamps=True, tail=LOG_LINES).decode(errors="replace")
            found.append((f"log of {container.name}, {state['Status']}, {times}", log))
        return found

    def wait_until_healthy(self) -> None:
        """Wait for every service to say so itself, and for what runs once to have succeeded."""
        wait_until(
            lambda: all(_is_well(container) for container in self.containers()),
            HEALTHY_PATIENCE,
            interval=0.5,
            message=lambda: "\n\n".join(
                f"{c.name} is {c.status}: {c.attrs['State']}\n{c.logs(tail=20).decode()}"
                for c in self.containers()
                if not _is_well(c)
            ),
        )

    def _compose(self, *profiles: str) -> list[str]:
        named = [word for profile in profiles for word in ("--profile", profile)]
        return [*compose_command(), "--file", "docker/compose.yaml", *named]

    def _run(self, command: list[str], patience: float) -> None:
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _check_out(directory: Path) -> None:
    """Copy what the image is built from, as `git clone` leaves it under `umask 077`."""
    for name in ("docker", "celery_redlock"):
        ignored = shutil.ignore_patterns("__pycache__", ".env")
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for name in (".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, directory)
    for path in (directory, *directory.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)


def _is_well(container: Any) -> bool:
    state = container.attrs["State"]
    health = state.get("Health")
    if health is None:
        return state["Status"] == "exited" and state["ExitCode"] == 0
    return state["Status"] == "running" and health["Status"] == "healthy"


def outcome(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how a client ended and what it said."""
    out, err = client.communicate(timeout=CLIENT_PATIENCE)
    return client.returncode, f"{out}\n{err}"
