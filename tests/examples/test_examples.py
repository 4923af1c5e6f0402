"""Every example does what its page says, with the command that its page names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import (
    EXAMPLE_TIMEOUT,
    EXAMPLES,
    NAMES,
    ROOT,
    Example,
    marked,
    processes_of,
    started,
)
from tests.support.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(EXAMPLE_TIMEOUT + 2 * TIMEOUT)]


def run(name: str, temporary: Path, **environment: str) -> str:
    process = started(Example.of(name), temporary, **environment)
    output, _ = process.communicate(timeout=EXAMPLE_TIMEOUT)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("name", marked(NAMES))
def test_an_example_sees_what_it_claims_and_leaves_nothing(
    name: str, tmp_path: Path, record_property: Any
) -> None:
    output = run(name, tmp_path)

    assert "Traceback" not in output
    wait_until(lambda: not processes_of(tmp_path), message=lambda: str(processes_of(tmp_path)))
    assert not list(tmp_path.iterdir())
    seen = sum(line.startswith("Seen: ") for line in output.splitlines())
    record_property("counts", {"examples": {"run": 1, "claims seen": seen}})


def test_every_directory_is_listed_and_has_a_page() -> None:
    directories = {page.parent.name for page in EXAMPLES.glob("*/README.md")}

    assert sorted(NAMES) == sorted(directories)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_names_extras_that_there_are_and_packages_that_tests_have(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    example = Example.of(name)

    assert example.extras <= project["optional-dependencies"].keys()
    tested = " ".join(project["optional-dependencies"]["test"])
    assert all(package in tested for package in example.packages)


def test_the_list_installs_what_any_page_asks_for() -> None:
    text = (EXAMPLES / "README.md").read_text()
    extras = {extra for name in NAMES for extra in Example.of(name).extras}
    packages = {package for name in NAMES for package in Example.of(name).packages}
    (command,) = [line for line in text.splitlines() if line.startswith("$ pip install")]

    assert set(command.partition("[")[2].partition("]")[0].split(",")) == extras
    assert set(command.partition('" ')[2].split()) == packages


def test_servers_that_the_environment_names_are_used(
    tmp_path: Path, redlock_cluster_factory: Any
) -> None:
    nodes = redlock_cluster_factory(3)
    (store,) = redlock_cluster_factory(1).urls

    run(
        "bank_transfer",
        tmp_path,
        REDLOCK_NODES=",".join(nodes.urls),
        CELERY_BROKER_URL=store,
        CELERY_RESULT_BACKEND=store,
    )

    assert nodes.client(0).keys("redlock*")
    assert nodes.state(0) == "running"  # they were not the example's to end


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_an_example_that_is_ended_from_outside_leaves_no_process(end: str, tmp_path: Path) -> None:
    process = started(Example.of("crawler"), tmp_path)
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()

    getattr(process, end)()

    process.communicate(timeout=EXAMPLE_TIMEOUT)
    wait_until(lambda: not processes_of(tmp_path), message=lambda: str(processes_of(tmp_path)))
