"""The demo's journal: whole records only, whatever a reader meets in the file."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from celery_redlock.demo.journal import Journal, Reader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return an empty journal's file."""
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal(path)


def test_a_reader_returns_each_record_once(journal: Journal, path: Path) -> None:
    reader = Reader(path)
    journal.note("entered", run="r1")
    first = reader.new_records()
    journal.note("left", run="r1")
    assert [record["event"] for record in (*first, *reader.new_records())] == ["entered", "left"]


def test_a_record_that_is_half_there_waits_for_its_end(journal: Journal, path: Path) -> None:
    journal.note("entered", run="r1")
    whole = path.read_bytes()
    path.write_bytes(whole[:49])
    reader = Reader(path)
    assert reader.new_records() == []
    with path.open("ab") as file:
        file.write(whole[49:])
    (record,) = reader.new_records()
    assert record["run"] == "r1"


def test_no_record_goes_on_to_another_page(journal: Journal, path: Path) -> None:
    journal.note("entered", run="r1", account="A")
    assert mmap.PAGESIZE % path.stat().st_size == 0


def test_facts_too_long_for_a_record_are_refused(journal: Journal) -> None:
    with pytest.raises(ValueError, match=r"'entered' has \d+ bytes, a record holds 511"):
        journal.note("entered", run="r" * 600)
