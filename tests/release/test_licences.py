"""The page about licences says what the installed packages say."""

from __future__ import annotations

from tests.release.licences import PAGE, rows, tools

MEND = "run `make licences` and look at what has changed"


def test_the_page_has_every_package_that_is_installed_with_the_licence_that_it_names() -> None:
    page = PAGE.read_text()

    missing = [row for row in [*rows(), *tools()] if f"| {row[0]} | {row[1]} |" not in page]

    assert not missing, MEND
