"""A guarded file in a directory where others can put files of their own under any name."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_redlock.errors import ConfigurationError, FenceRecordCorrupt
from celery_redlock.fencing import FileFence, FileTokenStore
from tests.fencing.files.crashing import run_in_child
from tests.support.waiting import TIMEOUT

NAMES = ["data.redlock-token", "data.redlock-lock"]

PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "symbolic link": lambda path, secret: path.symlink_to(secret),
    "dangling link": lambda path, secret: path.symlink_to(secret.with_name("not there")),
    "pipe": lambda path, _: os.mkfifo(path),
    "directory": lambda path, _: path.mkdir(),
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """End a test that waits for a pipe."""
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(int(TIMEOUT))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory / "data"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file elsewhere that only its owner may read."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    return secret


def opened_for_writing(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[tuple[str, int, int]]:
    """Return a list that gets the name, the flags and the mode of all that is opened to write."""
    opened: list[tuple[str, int, int]] = []
    original = os.open

    def noting(name: Path, flags: int, mode: int = 0o777, **options: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            opened.append((Path(name).name, flags, mode))
        return original(name, flags, mode, **options)

    monkeypatch.setattr(os, "open", noting)
    return opened


def drafts_of(opened: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [one for one in opened if one[0] not in NAMES]


def test_new_content_is_written_to_a_new_file_that_nobody_could_have_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opened_for_writing(monkeypatch, path)
    for token in range(1, 9):
        FileFence(path).write(b"new", token)

    drafts = drafts_of(opened)
    # One for the content and one for the token, each time.
    assert len({name for name, _, _ in drafts}) == len(drafts) == 16
    for name, flags, _ in drafts:
        assert re.fullmatch(r"\.data\.[0-9a-f]{16}\.redlock-new", name)
        assert flags & os.O_EXCL
        assert flags & os.O_NOFOLLOW


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("name", [".data.new-0", "data.fence.new", "data.fence", "data.lock"])
def test_what_stands_under_names_that_can_be_guessed_is_left_alone(
    path: Path, secret: Path, plant: Callable[[Path, Path], None], name: str
) -> None:
    planted = path.with_name(name)
    plant(planted, secret)
    before = planted.lstat()

    FileFence(path).write(b"new", 5)

    assert path.read_bytes() == b"new"
    assert (secret.read_bytes(), stat.S_IMODE(secret.stat().st_mode)) == (b"secret", 0o600)
    assert planted.lstat() == before
    assert not secret.with_name("not there").exists()


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize("name", NAMES)
def test_what_stands_in_a_guard_s_place_and_is_no_file_is_named(
    path: Path, secret: Path, plant: Callable[[Path, Path], None], name: str
) -> None:
    planted = path.with_name(name)
    plant(planted, secret)

    with pytest.raises(FenceRecordCorrupt, match=re.escape(str(planted))):
        FileFence(path).write(b"new", 5)

    assert (secret.read_bytes(), stat.S_IMODE(secret.stat().st_mode)) == (b"secret", 0o600)
    assert not path.exists()
    assert not secret.with_name("not there").exists()


def test_a_second_name_of_another_file_is_not_written_as_the_lock(path: Path, secret: Path) -> None:
    path.with_name("data.redlock-lock").hardlink_to(secret)

    with pytest.raises(FenceRecordCorrupt, match="redlock-lock"):
        FileFence(path).write(b"new", 5)

    assert secret.read_bytes() == b"secret"


def test_a_symbolic_link_that_takes_the_file_s_place_lends_it_no_mode(
    path: Path, secret: Path
) -> None:
    fence = FileFence(path)
    path.symlink_to(secret)

    fence.write(b"new", 5)

    assert (path.is_symlink(), path.read_bytes(), secret.read_bytes()) == (False, b"new", b"secret")
    assert path.stat().st_mode & 0o111 == 0


def test_nobody_who_may_not_read_the_file_may_open_what_is_to_replace_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"old")
    path.chmod(0o600)
    opened = opened_for_writing(monkeypatch, path)

    FileFence(path).write(b"new", 5)

    content, _ = drafts_of(opened)
    assert content[2] == 0o600


def test_a_token_keeps_the_mode_that_its_record_has(path: Path) -> None:
    fence = FileFence(path)
    fence.claim(5)
    record = path.with_name("data.redlock-token")
    record.chmod(0o600)
    fence.claim(6)
    assert stat.S_IMODE(record.stat().st_mode) == 0o600


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir())


def test_the_next_writer_removes_what_a_killed_one_has_left(path: Path) -> None:
    def die() -> None:
        with FileFence(path).replacing(5) as file:
            file.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        run_in_child(die)
    assert len(names(path)) == 2, "the lock, and the last one's"
    FileFence(path).write(b"new", 6)

    assert names(path) == ["data", "data.redlock-lock", "data.redlock-token"]


def test_what_another_writer_still_writes_is_not_removed(path: Path) -> None:
    fence = FileFence(path)
    with fence.replacing(7) as file:
        fence.write(b"5", 5)
        fence.write(b"6", 6)
        file.write(b"7")
    assert fence.read() == b"7"


def test_a_list_of_drafts_removes_no_other_files(path: Path) -> None:
    victim = path.with_name(".data.victim.redlock-new")
    link = path.with_name(".data.0123456789abcdef.redlock-new")
    for name in (victim, path.with_name("victim")):
        name.write_bytes(b"kept")
    link.symlink_to(victim)
    path.with_name("data.redlock-lock").write_text(
        "victim\n../shared/victim\n.data.victim.redlock-new\n0123456789abcdef\n\xff\n"
    )

    FileFence(path).write(b"new", 5)

    assert victim.read_bytes() == path.with_name("victim").read_bytes() == b"kept"
    assert link.is_symlink()


def test_the_list_of_drafts_does_not_grow(path: Path) -> None:
    fence = FileFence(path)
    for token in range(1, 20):
        fence.write(b"new", token)

    assert path.with_name("data.redlock-lock").stat().st_size <= 2 * 17


@pytest.mark.parametrize("name", ["x.redlock-token", "x.redlock-lock", ".x.1.redlock-new"])
def test_a_name_that_guards_use_themselves_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="another name"):
        FileFence(tmp_path / name)


def test_a_link_to_such_a_name_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "x.redlock-token")

    with pytest.raises(ConfigurationError, match="another name"):
        FileFence(tmp_path / "link")


@pytest.mark.parametrize("suffix", [".fence", ".lock"])
def test_a_file_whose_name_ends_as_that_of_a_lock_shares_nothing_with_another(
    tmp_path: Path, suffix: str
) -> None:
    plain, other = FileFence(tmp_path / "x"), FileFence(tmp_path / f"x{suffix}")
    plain.write(b"plain", 7)
    other.write(b"other", 3)

    assert (plain.read(), plain.seen()) == (b"plain", 7)
    assert (other.read(), other.seen()) == (b"other", 3)


def test_a_guarded_directory_and_a_guarded_file_in_it_share_nothing(tmp_path: Path) -> None:
    guard = FileTokenStore(tmp_path)
    guard.claim("/a", 7)
    (digest,) = {found.name.partition(".")[0] for found in tmp_path.iterdir()}

    FileFence(tmp_path / digest).write(b"new", 3)
    with pytest.raises(ConfigurationError):
        FileFence(tmp_path / f"{digest}.redlock-guard")
