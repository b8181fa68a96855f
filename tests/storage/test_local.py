"""Files and directories: the conformance suite with real processes, and what a disk does."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest

from spark_bookkeeper.errors import BookieFullError, BookieUnavailableError, ProcessLimitError
from spark_bookkeeper.storage import local, new_file
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.storage import Content, Storage
from spark_bookkeeper.testing.conformance.storage import (
    RACERS,
    StorageConformance,
    Storages,
    race_for_names,
)


def _race(root: str, unnamed_files: bool, line: Barrier, racer: int, finish: Connection) -> None:
    storage = LocalStorage(root)
    storage._unnamed_files &= unnamed_files
    line.wait()
    finish.send(race_for_names(storage, racer))


class LocalStorages:
    """Handles on one directory."""

    def __init__(self, root: Path, unnamed_files: bool) -> None:
        self.root = root
        self.unnamed_files = unnamed_files

    def open(self) -> Storage:
        """A handle with files that have no name until they are finished, or hidden ones."""
        storage = LocalStorage(self.root)
        storage._unnamed_files &= self.unnamed_files
        return storage

    def race(self, run: Callable[[Storage, int], list[bool]]) -> list[list[bool]]:
        """Racers as processes."""
        assert run is race_for_names
        # The quick way has a socket in a temporary directory, whose path must be short.
        is_short = len(tempfile.gettempdir()) < 60
        context = get_context("forkserver") if is_short else get_context("spawn")
        # Imported once, and not by each of them.
        context.set_forkserver_preload([race_for_names.__module__, local.__name__])
        line = context.Barrier(RACERS)
        racers, finishes = [], []
        for number in range(RACERS):
            finish, end = context.Pipe(duplex=False)
            args = (str(self.root), self.unnamed_files, line, number, end)
            racers.append(context.Process(target=_race, args=args))
            finishes.append(finish)
            racers[-1].start()
            end.close()
        try:
            return [finish.recv() for finish in finishes]
        finally:
            for racer in racers:
                racer.join()

    def vanish(self) -> None:
        """A file stands where the partition was, so that no answer says "absent"."""
        shutil.rmtree(self.root)
        self.root.write_text("not a directory")


class TestUnnamedFiles(StorageConformance):
    """Files that have no name until they are finished."""

    unnamed_files = True

    @pytest.fixture
    def storages(self, tmp_path: Path) -> Storages:
        root = tmp_path / "root"
        root.mkdir()
        return LocalStorages(root, self.unnamed_files)


class TestHiddenFiles(TestUnnamedFiles):
    """Files under a hidden name, where the file system has no others."""

    unnamed_files = False


@pytest.fixture(params=[True, False], ids=["unnamed", "hidden"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    storage._unnamed_files &= request.param
    return storage


def test_r9_content_is_synced_before_the_name_and_the_name_before_the_answer(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    link, fsync = os.link, os.fsync

    own = threading.get_ident()  # agents of other tests' clusters may be at work in this process

    def note(step: str) -> None:
        if threading.get_ident() == own:
            steps.append(step)

    def noted_content(descriptor: int) -> None:
        note(f"content of {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def noted_link(*args: object, **options: object) -> None:
        note("link")
        link(*args, **options)  # type: ignore[arg-type]  # passed on as it came

    def noted_name(descriptor: int) -> None:
        note("directory" if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)) else "?")
        fsync(descriptor)

    monkeypatch.setattr(new_file, "sync_content", noted_content)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "fsync", noted_name)

    storage.put_if_absent("a", b"12345")

    assert steps == ["content of 5 bytes", "link", "directory"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "sync_file_range"), reason="a call of Linux")
def test_a_large_file_is_on_its_way_to_the_disk_while_it_is_written(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    begin, sync = new_file.begin_writing_out, new_file.sync_content

    def noted(descriptor: int, offset: int, length: int) -> None:
        steps.append((offset, length))
        begin(descriptor, offset, length)

    def noted_sync(descriptor: int) -> None:
        steps.append("sync")
        sync(descriptor)

    monkeypatch.setattr(local, "_BEGUN_BYTES", 10)
    monkeypatch.setattr(local, "begin_writing_out", noted)
    monkeypatch.setattr(new_file, "sync_content", noted_sync)
    sink = storage.create("a")
    for piece in (b"1234", b"567890ab", b"cde", b"f" * 7, b"g"):
        sink.write(piece)
    sink.finish()

    assert steps == [(0, 12), (12, 10), "sync"]  # which is what its durability rests on
    assert (tmp_path / "a").read_bytes() == b"1234567890abcde" + b"f" * 7 + b"g"


def test_a_system_that_cannot_begin_to_write_a_file_out_writes_it_all_the_same(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_BEGUN_BYTES", 1)
    monkeypatch.setattr(new_file, "_sync_file_range", None)
    sink = storage.create("a")
    sink.write(b"12345")
    sink.finish()

    assert (tmp_path / "a").read_bytes() == b"12345"


def _synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that this thread syncs from now on."""
    paths: list[str] = []
    fsync, own = os.fsync, threading.get_ident()

    def noted(descriptor: int) -> None:
        if threading.get_ident() == own:
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


def test_r9b_names_that_were_found_are_synced_once_for_each_directory(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.make_directory("d")
    for path in ("a", "d/a", "d/b"):
        storage.put_if_absent(path, b"x")
    synced = _synced(monkeypatch)

    storage.sync("d/a", "a", "d/b")

    assert synced == [str(tmp_path / "d"), str(tmp_path)]


def test_r9_a_directory_is_durable_with_all_its_parents(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    synced = _synced(monkeypatch)

    storage.make_directory("a/b")
    storage.make_directory("a/b")

    assert synced == [str(tmp_path), str(tmp_path / "a")]


@pytest.mark.parametrize("how", ["another process made it", "made anew", "its sync failed"])
def test_r9b_a_directory_that_may_not_be_durable_is_synced_before_it_is_relied_on(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "another process made it":
        (tmp_path / "a").mkdir()
    elif how == "made anew":  # it is not taken for the durable one
        storage.make_directory("a")
        (tmp_path / "a").rename(tmp_path / "away")
        (tmp_path / "a").mkdir()
    else:
        with monkeypatch.context() as failing:
            failing.setattr(os, "fsync", _fail_with(errno.EIO))
            with pytest.raises(BookieUnavailableError):
                storage.make_directory("a")
    synced = _synced(monkeypatch)

    storage.make_directory("a")

    assert synced == [str(tmp_path)]


def test_r9_directories_and_contents_are_durable_before_the_names_in_two_syncs_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []

    class Whole:
        """A file system that can be synced by one call; what is named in it then is noted."""

        def has_all(self, devices: Iterable[int]) -> bool:
            return all(device == os.stat(tmp_path).st_dev for device in devices)

        def check_has(self, descriptor: int) -> None:
            assert self.has_all([os.fstat(descriptor).st_dev])

        def sync(self) -> None:
            synced.append(sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")))

    monkeypatch.setattr(local, "file_system", lambda _: nullcontext(Whole()))
    storage = LocalStorage(tmp_path)
    if not storage._unnamed_files:
        pytest.skip("files without a name are not supported here")
    (tmp_path / "d").mkdir()
    directories = [f"d/{number}" for number in range(8)]
    files = [(f"{directory}/a", b"x") for directory in directories]

    storage.put_all(files, directories=directories)
    storage.make_directories(directories)

    made = ["d", *directories]
    assert synced == [made, sorted([*made, *(path for path, _ in files)])]


def test_r9_a_deleted_name_stays_deleted(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_if_absent("a", b"x")
    synced = _synced(monkeypatch)

    storage.delete("a")

    assert synced == [str(tmp_path)]


def test_many_names_are_removed_by_several_threads_and_their_directories_synced_once(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"{directory}/{number}" for directory in "ab" for number in range(200)]
    for directory in "ab":
        (tmp_path / directory).mkdir()
    for path in paths[1:]:
        (tmp_path / path).write_bytes(b"x")
    synced = _synced(monkeypatch)
    unlink, threads = os.unlink, set()

    def noted(path: str) -> None:
        threads.add(threading.get_ident())
        unlink(path)

    monkeypatch.setattr(os, "unlink", noted)

    storage.delete(*paths)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(synced) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert threading.get_ident() not in threads


def test_many_names_are_removed_where_no_thread_can_be_started(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(number) for number in range(200)]
    for path in paths:
        (tmp_path / path).touch()
    monkeypatch.setattr(threading.Thread, "start", _no_thread)

    storage.delete(*paths)

    assert list(tmp_path.iterdir()) == []


def test_what_some_threads_have_removed_is_synced_where_others_cannot_be_started(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"{'ab'[number % 8 > 0]}/{number}" for number in range(200)]
    for directory in "ab":
        (tmp_path / directory).mkdir()
    for path in paths:
        (tmp_path / path).touch()
    synced = _synced(monkeypatch)
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def only_one(thread: threading.Thread) -> None:
        if started:
            _no_thread(thread)
        started.append(thread)
        start(thread)
        while any((tmp_path / "a").iterdir()):  # its share is done
            pass

    monkeypatch.setattr(threading.Thread, "start", only_one)

    storage.delete(*paths)

    assert sorted(synced) == [str(tmp_path / "a"), str(tmp_path / "b")]


@pytest.mark.parametrize(
    ("free", "total", "found"),
    [(5, 9, (5, 9)), (0, 9, (0, 9)), (0, 0, None), (-1, 9, None), (2**64 - 1, 9, None)],
)
def test_inodes_that_nothing_limits_are_not_counted(
    storage: LocalStorage,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    total: int,
    found: tuple[int, int] | None,
) -> None:
    usage = SimpleNamespace(f_favail=free, f_files=total)
    monkeypatch.setattr(os, "statvfs", lambda _: usage)

    assert storage.inodes() == found


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_many_names_of_which_one_cannot_be_removed_are_an_error(
    storage: LocalStorage, tmp_path: Path
) -> None:
    paths = [str(number) for number in range(200)]
    (tmp_path / paths[77]).mkdir()

    with pytest.raises(BookieUnavailableError, match="directory"):
        storage.delete(*paths)


def test_a_disk_without_inodes_is_full_and_says_so(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "inodes", lambda _: (0, 1_000))
    monkeypatch.setattr(os, "write", _fail_with(errno.ENOSPC))

    with pytest.raises(BookieFullError, match="no inode is free"):
        storage.put_if_absent("a", b"x")


def test_a_full_disk_leaves_nothing_behind(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", _fail_with(errno.ENOSPC))

    with pytest.raises(BookieFullError, match="No space left"):
        storage.put_if_absent("a", b"x")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_process_that_may_open_no_more_files_says_so_of_itself(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    storage.put_if_absent("a", b"x")
    monkeypatch.setattr(os, "open", _fail_with(number))

    for operation in (lambda: storage.read("a"), lambda: storage.put_if_absent("b", b"x")):
        with pytest.raises(ProcessLimitError, match=r"more files .*ulimit -n") as caught:
            operation()
        assert "may or may not" not in caught.value.message


def test_a_full_disk_ends_a_file_in_pieces_without_a_trace(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = storage.create("a")
    monkeypatch.setattr(new_file, "sync_content", _fail_with(errno.ENOSPC))

    with pytest.raises(BookieFullError):
        sink.finish()

    assert os.listdir(tmp_path) == []


def test_an_error_of_the_disk_names_the_path_and_the_cause(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_if_absent("a", b"x")
    monkeypatch.setattr(os, "open", _fail_with(errno.EIO))

    with pytest.raises(BookieUnavailableError, match="Input/output error") as caught:
        storage.read("a")

    assert str(tmp_path / "a") in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert pickle.loads(pickle.dumps(caught.value)).path == str(tmp_path / "a")


@pytest.mark.parametrize(
    "read",
    [
        lambda storage: storage.read("a"),
        lambda storage: storage.read_again("a"),
        lambda storage: storage.read_range("a", 0, 1),
        lambda storage: storage.read_through("a", 0, 1, print),
        lambda storage: storage.size("a"),
        lambda storage: storage.modified_ms("a"),
        lambda storage: storage.list(""),
        lambda storage: storage.temporary_files(""),
        lambda storage: storage.space(),
    ],
)
def test_only_what_changes_something_may_or_may_not_have_taken_effect(
    storage: LocalStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[LocalStorage], object],
) -> None:
    storage.put_if_absent("a", b"x")
    storage.read_again("a")
    for name in ("open", "stat", "listdir", "statvfs"):
        monkeypatch.setattr(os, name, _fail_with(errno.EIO))

    with pytest.raises(BookieUnavailableError) as caught:
        read(storage)
    with pytest.raises(BookieUnavailableError, match="may or may not have taken effect"):
        storage.put_if_absent("b", b"x")

    assert caught.value.message.endswith(": Input/output error")


def test_what_a_readonly_file_system_refuses_has_taken_no_effect(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it became read-only behind what was written, and its sync says so."""
    with monkeypatch.context() as failing:
        failing.setattr(new_file, "sync_content", _fail_with(errno.EROFS))
        with pytest.raises(BookieUnavailableError, match="may or may not have taken effect"):
            storage.put_if_absent("a", b"x")

    def refuse(path: str, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BookieUnavailableError) as caught:
        storage.put_if_absent("b", b"x")

    assert caught.value.message.endswith(": Read-only file system")


def test_files_of_killed_writers_are_not_listed_and_can_be_collected(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage._unnamed_files = False
    sink = storage.create("part")  # and the process is killed here
    sink.write(b"x")

    assert storage.list("") == []
    assert len(storage.temporary_files("")) == 1
    sink.abandon()
    assert storage.temporary_files("") == []


@pytest.mark.parametrize("bookie_id", ["10.0.0.1:3181", None])
def test_an_error_says_whose_partition_it_is(tmp_path: Path, bookie_id: str | None) -> None:
    storage = LocalStorage(tmp_path, bookie_id)

    with pytest.raises(BookieUnavailableError) as caught:
        storage.put_if_absent("missing/file", b"x")

    assert caught.value.bookie_id == (bookie_id or storage.uri)
    assert caught.value.message.startswith(f"bookie {bookie_id}: " if bookie_id else str(tmp_path))


def test_no_descriptor_stays_open(storage: LocalStorage) -> None:
    storage.make_directory("d")
    before = len(os.listdir("/proc/self/fd"))

    for number in range(5):
        storage.put_if_absent(f"d/{number}", b"x")
        storage.put_if_absent("d/0", b"x")
        storage.read(f"d/{number}")
        storage.create(f"d/p{number}").abandon()
        storage.sync(f"d/{number}")

    assert len(os.listdir("/proc/self/fd")) == before


def _fail_with(number: int) -> Callable[..., int]:
    def fail(*args: object, **options: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("unnamed_files", [True, False])
def test_content_that_holds_secrets_is_its_owners_alone(
    tmp_path: Path, unnamed_files: bool
) -> None:
    storage = LocalStorages(tmp_path, unnamed_files).open()

    storage.put_if_absent("secret", Content([b"a"], is_private=True))
    storage.put_if_absent("shared", Content([b"a"]))

    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "shared").stat().st_mode & 0o044, "as the umask of the process says"
