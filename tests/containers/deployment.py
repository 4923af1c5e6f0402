"""The deployment of docker/compose.yaml, started by the commands that docker/README.md tells."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import docker
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
README = (DOCKER / "README.md").read_text()

# An image may have to be built, and others fetched from far away.
UP_PATIENCE = 600.0
# On a busy machine: until health checks that are 15 s apart have all succeeded.
HEALTHY_PATIENCE = 240.0
CLIENT_PATIENCE = 240.0


def told_commands() -> list[str]:
    """Return what the first console block of the README tells people to type."""
    (block, *_) = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def compose_command() -> list[str]:
    """Return what answers to compose's commands here: the plugin, else docker-compose."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


class Deployment:
    """A project of its own, with passwords of its own, beside any that runs here already."""

    def __init__(self, directory: Path) -> None:
        self.project = f"redlock-test-{uuid.uuid4().hex[:8]}"
        self._docker = docker.from_env()
        self._environment = {**os.environ, "COMPOSE_PROJECT_NAME": self.project}
        make_env, *self._told = told_commands()
        for name in (make_env.split("/")[-1], ".env.example"):
            shutil.copy(DOCKER / name, directory)
        subprocess.run([str(directory / "make-env")], check=True, capture_output=True)
        self._env_file = directory / ".env"

    def told(self, start: str) -> list[str]:
        """Return the words of the README's command that does this, as this machine has it."""
        (command,) = (c for c in self._told if f" {start} " in f"{c} ")
        words = shlex.split(command.removeprefix("docker compose "))
        return [*compose_command(), "--env-file", str(self._env_file), *words]

    def up(self) -> None:
        self._run(self.told("up"), UP_PATIENCE)

    def down(self) -> None:
        file = ["--file", str(DOCKER / "compose.yaml"), "--env-file", str(self._env_file)]
        self._run([*compose_command(), *file, "down", "--volumes", "--timeout", "1"], UP_PATIENCE)

    def client(self, *options: str) -> subprocess.Popen[str]:
        """Start the client."""
        return subprocess.Popen(
            [*self.told("run"), *options],
            cwd=ROOT,
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

    def _run(self, command: list[str], patience: float) -> None:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience,
            check=False,
        )
        assert done.returncode == 0, done.stdout


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
