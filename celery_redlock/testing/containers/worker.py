"""
A Celery worker in a container, with this package installed and the lock nodes set.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import distribution, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_celery import CeleryTestSetup, CeleryTestWorker, CeleryWorkerContainer

from celery_redlock.testing.containers.nodes import HostContainer, HostNode

DISTRIBUTION = "celery-redlock"
PYTHON_IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"
CLUSTER_CONFIG = "celery_redlock_cluster_config"

#: The files of a source tree that an installation needs; the rest (environments, tests) is large.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "celery_redlock")

_NODES = "REDLOCK_NODES"

# The nodes have other addresses inside containers than in the test's app, whose settings
# pytest-celery copies to the worker. So the worker reads them from its environment.
_USE_NODES = f"""
import os

if "{_NODES}" in os.environ:
    app.conf.redlock_nodes = os.environ["{_NODES}"]
"""


class RedlockTestSetup(CeleryTestSetup):
    """Broker, backend and workers, and lock nodes for all of them."""

    @classmethod
    def config(cls, celery_worker_cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the test's own app, `redlock_nodes` included."""
        config: dict[str, Any] = super().config(celery_worker_cluster_config)
        nodes = celery_worker_cluster_config.get(CLUSTER_CONFIG)
        if nodes:
            config["redlock_nodes"] = nodes["host_urls"]
        return config


class RedlockWorkerContainer(HostContainer, CeleryWorkerContainer):
    """A worker's container; its app has `redlock_nodes` set."""

    @classmethod
    def version(cls) -> str:
        """Return the version of Celery in the image: the one that runs the tests."""
        return version("celery")

    @classmethod
    def initial_env(
        cls, celery_worker_cluster_config: dict[str, Any], initial: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the environment of pytest-celery, and the lock nodes."""
        environment: dict[str, Any] = super().initial_env(celery_worker_cluster_config, initial)
        nodes = celery_worker_cluster_config.get(CLUSTER_CONFIG)
        if nodes:
            environment[_NODES] = ",".join(nodes["urls"])
        return environment

    @classmethod
    def initial_content(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the files of pytest-celery in /app, where the app reads the lock nodes."""
        content: dict[str, Any] = super().initial_content(*args, **kwargs)
        content["app.py"] += _USE_NODES.encode()
        return content


class RedlockTestWorker(HostNode, CeleryTestWorker):
    """A worker that tests can freeze, and `RedlockTestCluster` can cut off from lock nodes."""


def this_package() -> str | Path:
    """
    Return the argument with which `pip` installs this package as it is installed here.

    That is the source tree or wheel if it still exists, else a requirement with the version.
    """
    installed = distribution(DISTRIBUTION)
    origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
    if origin.startswith("file://"):
        path = Path(unquote(urlsplit(origin).path))
        if path.exists():
            return path
    return f"{DISTRIBUTION}=={installed.version}"


def make_context(directory: Path, package: str | Path) -> str:
    """
    Write the build context of a worker's image; return the argument for `pip` in it.

    Args:
        directory: an empty directory.
        package: a source tree, a wheel, or a requirement.
    """
    shutil.copy(Path(__file__).with_name("worker.Dockerfile"), directory / "Dockerfile")
    requirements = [each for each in requires(DISTRIBUTION) or [] if "extra ==" not in each]
    (directory / "requirements.txt").write_text("\n".join(requirements) + "\n")
    target = directory / "package"
    target.mkdir()
    if isinstance(package, str):
        # Not every builder copies a directory without files.
        (target / "requirement").write_text(package)
        return package
    if package.is_file():
        shutil.copy(package, target)
        return f"./{package.name}"
    for name in _SOURCES:
        source = package / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return "."
