"""
What the image of a test worker is built from.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["PYTHON_IMAGE", "make_context", "this_package"]

DISTRIBUTION = "celery-redlock"
PYTHON_IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim-bookworm"

# What a source tree needs to be installed; the rest of it (environments, tests) is large.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "celery_redlock")


def this_package() -> str | Path:
    """
    Return what `pip` gets to install this package as it is installed here.

    A path where it came from a source tree or a wheel that is still there, else a requirement with
    its version.
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
    Write a build context, and return what `pip` installs in it.

    Args:
        directory: where; empty.
        package: a source tree, a wheel, or a requirement.
    """
    shutil.copy(Path(__file__).with_name("worker.Dockerfile"), directory / "Dockerfile")
    (directory / "requirements.txt").write_text("\n".join(_requirements()) + "\n")
    target = directory / "package"
    target.mkdir()
    if isinstance(package, str):
        # A directory without a file would not be copied by every builder.
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


def _requirements() -> list[str]:
    """Return what this package needs, without its extras."""
    return [each for each in requires(DISTRIBUTION) or [] if "extra ==" not in each]
