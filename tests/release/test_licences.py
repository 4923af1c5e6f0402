"""The page about licences says what the installed packages say."""

from __future__ import annotations

from tests.release.licences import NOT_INSTALLED, PAGE, rows, tools

MEND = "run `make licences`, and look at what has changed"


def test_the_page_has_every_package_that_is_asked_for() -> None:
    page = PAGE.read_text()

    assert not [name for name, _, _ in [*rows(), *tools()] if f"| {name} |" not in page], MEND


def test_the_page_gives_the_licence_that_an_installed_package_names() -> None:
    page = PAGE.read_text()

    assert not [
        (name, licence)
        for name, licence, _ in [*rows(), *tools()]
        if licence != NOT_INSTALLED and f"| {name} | {licence} |" not in page
    ], MEND
