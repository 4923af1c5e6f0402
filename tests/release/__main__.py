"""
Builds what is shipped, and looks at it: `python -m tests.release [--tests]`.

Both archives are built twice, and are the same each time. The wheel is installed alone, each of its
modules is imported, and a typed program runs with it.

With `--tests`, tests run against the installed wheel, from the unpacked source archive without
its package: so nothing that they import can come from a checkout, and the archive is shown to
hold all that they need. Not the whole suite a second time: what can be wrong in a wheel but not
in a checkout is a file, a dependency or an entry point that is missing, and the tests of the
units, of the integration with servers and of one worker's calls load all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tests.release.archives import wrong_in_source_archive, wrong_in_wheel

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DIST = ROOT / "dist"
PACKAGE = "celery_redlock"
TESTS = ("tests/unit", "tests/integration", "tests/acceptance/test_calls.py")
MARKED = "not full and not system and not containers"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to install for")
    parser.add_argument("--tests", action="store_true", help="run tests against the wheel")
    parser.add_argument("--processes", default="4", help="for the tests")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="celery-redlock-release-") as temporary:
        wheel, source = build(DIST)
        run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source))
        demand("contents", wrong_in_wheel(wheel, ROOT) + wrong_in_source_archive(source, ROOT))
        again = [digest(path) for path in build(Path(temporary, "again"))]
        differing = [p.name for p in (wheel, source) if digest(p) not in again]
        demand("a second build is the same", [f"{name} differs" for name in differing])
        python = fresh_environment(arguments.python, Path(temporary, "environment"))
        only_the_wheel(python, wheel)
        install(python, f"{wheel}[embedded]", "mypy>=1.18")
        a_user_program(python, Path(temporary))
        if arguments.tests:
            install(python, f"{wheel}[embedded,cli,test]")
            the_tests(python, unpacked(source, Path(temporary, "source")), arguments.processes)
    print(f"{wheel.name} and {source.name} are good ({time.monotonic() - began:.0f} s)")


def build(directory: Path) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it; return both."""
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory)]
    run(*command, str(ROOT), SOURCE_DATE_EPOCH=time_of_the_last_commit())
    (wheel,) = directory.glob("*.whl")
    (source,) = directory.glob("*.tar.gz")
    return wheel, source


def time_of_the_last_commit() -> str:
    """Return seconds since the epoch, for archives that are the same whenever they are built."""
    command = ["git", "log", "-1", "--format=%ct"]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return told.stdout.strip()


def digest(path: Path) -> str:
    """Return what tells two files apart."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fresh_environment(interpreter: str, directory: Path) -> str:
    """Make a virtual environment; return its interpreter."""
    run(interpreter, "-m", "venv", str(directory))
    return str(directory / "bin" / "python")


def install(python: str, *what: str) -> None:
    """Install packages, and look whether all of them fit."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)
    run(python, "-m", "pip", "check", "--disable-pip-version-check")


def only_the_wheel(python: str, wheel: Path) -> None:
    """Install nothing but the wheel and what it asks for, and use it."""
    install(python, str(wheel))
    run(python, "-I", str(HERE / "importing.py"))
    command = Path(python).with_name("celery-redlock")
    run(str(command), "--help", quiet=True)


def unpacked(source: Path, directory: Path) -> Path:
    """Unpack the source archive, and remove the package from it; return its top."""
    with tarfile.open(source) as archive:
        archive.extractall(directory, filter="data")
    (top,) = directory.iterdir()
    shutil.rmtree(top / PACKAGE)
    return top


def a_user_program(python: str, directory: Path) -> None:
    """Check a typed program strictly, and run it."""
    program = Path(shutil.copy(HERE / "typed_program.py", directory))
    strict = ("--strict", "--config-file=", "--cache-dir=/dev/null")
    run(python, "-m", "mypy", *strict, str(program), cwd=directory)
    run(python, str(program), cwd=directory)


def the_tests(python: str, top: Path, processes: str) -> None:
    """Run the tests of the source archive against the installed wheel."""
    where = f"import {PACKAGE}, sys; sys.exit(sys.prefix not in {PACKAGE}.__file__)"
    run(python, "-c", where, cwd=top)
    command = (python, "-m", "tests.support.rerun", *TESTS, "-m", MARKED)
    run(*command, "--numprocesses", processes, "--dist", "worksteal", cwd=top)


def demand(what: str, problems: list[str]) -> None:
    """Say that something is as it should be, or end with what is not."""
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{what}: as it should be", flush=True)


def run(*command: str, cwd: Path = ROOT, quiet: bool = False, **environment: str) -> None:
    """Run a program that has to succeed."""
    print("$", *(part.removeprefix(f"{ROOT}/") for part in command), flush=True)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = subprocess.DEVNULL if quiet else None
    subprocess.run(command, cwd=cwd, check=True, env={**own, **environment}, stdout=output)


if __name__ == "__main__":
    main()
