"""What is particular to a guarded file."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_redlock.errors import FenceRecordCorrupt, StaleFencingToken
from celery_redlock.fencing import FileFence, FileTokenStore
from celery_redlock.fencing.token_file import TokenFile
from tests.support.waiting import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def fence(path: Path) -> FileFence:
    return FileFence(path)


@contextmanager
def other_process(path: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run code in another process; it says a line when it has come where it shall be."""
    source = f"from celery_redlock.fencing import FileFence\nfence = FileFence({str(path)!r})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", source + code],
        text=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


HOLD_THE_LOCK = "with fence._token.locked(): print('ready', flush=True); input()\n"
WRITE_FOR_LONG = (
    "with fence.replacing(5) as file:\n file.write(b'5')\n print('ready', flush=True)\n input()\n"
)


def test_a_text_is_refused_before_anything_is_touched(fence: FileFence, path: Path) -> None:
    with pytest.raises(TypeError, match="takes bytes, not str; encode"):
        fence.write("text", token=3)  # type: ignore[arg-type]
    assert list(path.parent.iterdir()) == []


def test_a_writer_that_is_stale_already_does_no_work(fence: FileFence) -> None:
    fence.write(b"new", 7)
    with pytest.raises(StaleFencingToken), fence.replacing(5):
        pytest.fail("it was let in")


def test_a_block_that_fails_changes_nothing(fence: FileFence, path: Path) -> None:
    fence.write(b"old", 5)
    with pytest.raises(RuntimeError), fence.replacing(7) as file:  # noqa: PT012
        file.write(b"half")
        raise RuntimeError
    assert (fence.read(), fence.seen()) == (b"old", 5)
    assert not list(path.parent.glob(".*"))


def test_a_caller_may_close_the_file(fence: FileFence) -> None:
    with fence.replacing(5) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        text.write("whole")
    assert fence.read() == b"whole"


def test_a_writer_interrupted_after_its_change_leaves_another_s_file_alone(
    fence: FileFence, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence.claim(6)
    replace = Path.replace
    others = []

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        source.touch(exist_ok=False)
        others.append(source)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fence.write(b"new", 6)
    assert (fence.read(), others[0].exists()) == (b"new", True)


def test_several_writers_prepare_their_content_at_the_same_time(fence: FileFence) -> None:
    with fence.replacing(6) as second, fence.replacing(5) as first:
        first.write(b"first")
        second.write(b"second")
    assert fence.read() == b"second"


def test_a_writer_that_wakes_too_late_is_refused(fence: FileFence, path: Path) -> None:
    with other_process(path, WRITE_FOR_LONG) as process:
        process.send_signal(signal.SIGSTOP)
        fence.write(b"new", 7)
        process.send_signal(signal.SIGCONT)
        process.communicate("\n")
        assert process.returncode == 1
    assert fence.read() == b"new"


def test_a_lock_that_is_kept_is_waited_for_so_long(path: Path) -> None:
    with (
        other_process(path, HOLD_THE_LOCK),
        pytest.raises(TimeoutError, match=r"data\.redlock-lock"),
    ):
        FileFence(path, lock_timeout=0.05).write(b"new", 7)


def test_the_lock_ends_with_its_process(fence: FileFence, path: Path) -> None:
    with other_process(path, HOLD_THE_LOCK) as process:
        process.kill()
        fence.write(b"new", 7)


def test_a_child_forked_in_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    record = TokenFile(tmp_path / "data", "data", 5.0, fsync=False)
    read, write = os.pipe()
    with record.locked():
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    os.close(read)
    with record.locked():
        os.close(write)
    os.waitpid(child, 0)


def test_threads_exclude_each_other(fence: FileFence) -> None:
    refused: list[StaleFencingToken] = []

    def write(token: int) -> None:
        try:
            fence.write(b"%d" % token, token)
        except StaleFencingToken as exc:
            refused.append(exc)

    threads = [threading.Thread(target=write, args=(token,)) for token in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fence.read() == b"16"


def test_the_mode_of_the_file_stays(fence: FileFence, path: Path) -> None:
    fence.write(b"old", 5)
    path.chmod(0o640)
    fence.write(b"new", 6)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_open_gives(fence: FileFence, path: Path) -> None:
    fence.write(b"new", 5)
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_symbolic_link_stays_one(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    FileFence(link).write(b"new", 5)
    assert (link.is_symlink(), path.read_bytes()) == (True, b"new")


def test_a_link_and_its_file_have_one_token(fence: FileFence, path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    FileFence(link).write(b"new", 7)
    with pytest.raises(StaleFencingToken):
        fence.write(b"stale", 5)


@pytest.mark.parametrize(
    "garbage", [b"", b"seven", b"07\n", b"-7\n", b"7\n7\n", b"7 \n", b"0\n", b"9007199254740992\n"]
)
def test_garbage_in_the_token_s_file_is_named(fence: FileFence, path: Path, garbage: bytes) -> None:
    record = path.with_name("data.redlock-token")
    record.write_bytes(garbage)
    with pytest.raises(FenceRecordCorrupt, match=str(record)):
        fence.write(b"new", 7)


def test_a_reader_never_meets_a_part(fence: FileFence) -> None:
    size = 100_000
    fence.write(b"0" * size, 1)
    done = threading.Event()

    def write_on() -> None:
        for token in range(2, 30):
            fence.write(b"%d" % (token % 10) * size, token)
        done.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    met: set[int] = set()
    wait_until(lambda: met.add(len(set(fence.read()))) or done.is_set(), interval=0.0)
    writer.join()
    assert met == {1}


def test_a_guard_in_a_directory_tells_resources_apart(tmp_path: Path) -> None:
    guard = FileTokenStore(tmp_path)
    guard.claim("/a", 7)
    guard.claim("/b", 5)
    with pytest.raises(StaleFencingToken, match="'/a' has seen"):
        FileTokenStore(tmp_path).claim("/a", 6)
