"""
Writes which versions pip installs today: `python -m tests.support.lock FILE REQUIREMENT...`.

The file lists each requirement and its dependencies, with one version for each. The Makefile gives
it to pip as constraints, so a new release of a dependency does not change what is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAD = "# Written by `make lock`.\n"
OURS = "celery-redlock"


def main(file: str, *requirements: str) -> None:
    """Ask pip, and write what it answers."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--ignore-installed", "--report", "-", *requirements]
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = (one["metadata"] for one in answer["install"])
    versions = {one["name"].lower(): one["version"] for one in found if one["name"] != OURS}
    lines = (f"{name}=={version}\n" for name, version in sorted(versions.items()))
    Path(file).write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
