"""Formatting, the marker, and the probe that refuses unsuitable file systems (rule R18)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.marker import Marker, check_marker, decode_marker, read_marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.probe import probe
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    CookieMismatchError,
    InvalidArgumentError,
    UnsuitableStorageError,
)
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.storage.storage import Content, FileSink
from spark_bookkeeper.testing.memory_storage import Faults, MemoryDisk, MemoryStorage, Moment
from tests.support.slotlog import BOOKIE_ID

Token = Callable[[], str]


def race_in_turn(functions: Sequence[Callable[[], None]]) -> None:
    """For the in-memory twin, whose order belongs to the simulator."""
    for function in functions:
        function()


def test_a_formatted_partition_says_who_it_is(tmp_path: Path, token: Token) -> None:
    storage = LocalStorage(tmp_path)

    marker = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    assert read_marker(storage) == marker == check_marker(storage, marker.incarnation)
    assert (marker.bookie_id, marker.instance_id) == (BOOKIE_ID, "cluster")
    assert storage.list("") == ["BOOKIE", "ledgers", "retired"]


def test_the_marker_is_written_last_and_deleted_first(token: Token) -> None:
    steps: list[tuple[str, str]] = []

    def note(operation: str, path: str, moment: Moment) -> None:
        if moment == "before" and operation in (
            "put",
            "make_directory",
            "delete_directory",
            "delete",
        ):
            steps.append((operation, path))

    storage = MemoryStorage(MemoryDisk(), note)
    Partition(storage).format(BOOKIE_ID, "cluster", token=token, race=race_in_turn)
    assert steps[-1] == ("put", "BOOKIE")
    steps.clear()

    Partition(storage).wipe()

    assert steps[0] == ("delete", "BOOKIE")
    assert storage.list("") == []


def test_every_formatting_is_another_incarnation(token: Token) -> None:
    storage = MemoryStorage(MemoryDisk())
    first = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    Partition(storage).wipe()
    second = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    assert first.incarnation != second.incarnation
    with pytest.raises(CookieMismatchError) as caught:
        check_marker(storage, first.incarnation, BOOKIE_ID)
    assert first.incarnation in caught.value.message
    assert second.incarnation in caught.value.message


def test_a_partition_that_holds_something_is_not_formatted(token: Token) -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    marker = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    with pytest.raises(CookieMismatchError, match="not empty") as caught:
        Partition(storage).format(BOOKIE_ID, "other", token=token)

    assert BOOKIE_ID in caught.value.message
    assert read_marker(storage) == marker


class Killed(BaseException):
    """The process that formats ends here."""


def killed_at(moment: int) -> Faults:
    """End the process at its so many-th step."""
    steps = itertools.count()

    def die(operation: str, path: str, when: Moment) -> None:
        if next(steps) == moment:
            raise Killed

    return die


@pytest.mark.parametrize("has_directories", [True, False])
def test_formatting_that_was_killed_at_any_moment_is_begun_again(
    has_directories: bool, token: Token
) -> None:
    for moment in itertools.count():
        disk = MemoryDisk(has_directories=has_directories)
        dying = MemoryStorage(disk, killed_at(moment))
        try:
            Partition(dying).format(BOOKIE_ID, "cluster", token=token, race=race_in_turn)
        except Killed:
            again = MemoryStorage(disk)
            marker = read_marker(again) or Partition(again).format(
                BOOKIE_ID, "cluster", token=token, race=race_in_turn
            )
            assert check_marker(again, marker.incarnation, BOOKIE_ID) == marker
        else:
            assert moment > 20  # or hardly anything was tried
            break


@pytest.mark.parametrize("held", ["ledgers/1-n/1.log", "retired/1-n", "photo.jpg"])
def test_a_partition_without_marker_that_holds_something_is_not_formatted(
    held: str, token: Token
) -> None:
    storage = MemoryStorage(MemoryDisk(has_directories=False))
    storage.put_if_absent(held, b"x")

    with pytest.raises(CookieMismatchError, match=held.split("/")[0]):
        Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    assert storage.read(held) == b"x"
    assert read_marker(storage) is None


def test_two_who_format_at_once_do_not_both_believe_in_their_incarnation(token: Token) -> None:
    disk = MemoryDisk()

    def another_is_quicker(operation: str, path: str, moment: Moment) -> None:
        if (operation, path, moment) == ("put", "BOOKIE", "before"):
            other = Marker("10.0.0.2:3181", "theirs", "cluster")
            disk.files.setdefault("BOOKIE", other.encode())

    with pytest.raises(CookieMismatchError, match="theirs"):
        Partition(MemoryStorage(disk, another_is_quicker)).format(
            BOOKIE_ID,
            "cluster",
            token=token,
            is_probe_required=False,
        )


def test_a_marker_that_is_none_is_told_apart_from_no_answer() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    assert read_marker(storage) is None
    with pytest.raises(CookieMismatchError, match="no marker"):
        check_marker(storage, "x")
    disk.files["BOOKIE"] = b"{}"
    with pytest.raises(CookieMismatchError, match="not a bookie's marker"):
        read_marker(storage)

    def down(operation: str, path: str, moment: Moment) -> None:
        raise BookieUnavailableError("down", bookie_id="b:1")

    with pytest.raises(BookieUnavailableError):
        read_marker(MemoryStorage(disk, down))


def test_a_marker_of_a_newer_format_is_refused() -> None:
    with pytest.raises(CookieMismatchError, match="upgrade"):
        decode_marker(
            Marker("b:1", "i", "c", format_version=99).encode(), MemoryStorage(MemoryDisk())
        )


def test_a_suitable_file_system_passes_the_probe_and_keeps_nothing_of_it(
    tmp_path: Path, token: Token
) -> None:
    probe(LocalStorage(tmp_path), token)
    probe(MemoryStorage(MemoryDisk()), token)

    assert list(tmp_path.iterdir()) == []


def test_each_check_is_told_when_it_ends_and_none_after_one_that_failed(token: Token) -> None:
    told: list[str] = []
    disk = MemoryDisk()

    def note(operation: str, path: str, moment: Moment) -> None:
        if operation == "delete" and moment == "before" and path.endswith("/file"):
            told.append("(a file is deleted)")

    probe(MemoryStorage(disk, note), token, on_check=told.append)
    assert told[-2:] == ["(a file is deleted)", "a deleted file is gone"]
    assert len(told) == len(set(told)) == 9

    told.clear()
    with pytest.raises(UnsuitableStorageError, match="listing"):
        probe(CachedListing(MemoryDisk()), token, on_check=told.append)
    assert told[-1] == "a file can be synced, read back in part and whole, and has the right size"
    assert "a new file is in the listing at once" not in told


class SeveralWinners(MemoryStorage):
    """Looks first and creates afterwards."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._both_looked = threading.Barrier(2)

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        if path in self.disk.files:
            return False
        with suppress(threading.BrokenBarrierError):  # a third is too late, or alone
            self._both_looked.wait(60)
            self._both_looked.abort()
        self.disk.files[path] = bytes(data)
        return True


class NoWinner(MemoryStorage):
    """Takes its own name for another's."""

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        super().put_if_absent(path, data)
        return False


class Pieces(MemoryStorage):
    """Creates the name first and writes afterwards."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._piece_was_seen = threading.Event()

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        if not super().put_if_absent(path, bytes(data)[: len(data) // 2]):
            return False
        self._piece_was_seen.wait(60)
        self.disk.files[path] = bytes(data)
        return True

    def read(self, path: str) -> bytes | None:
        data = super().read(path)
        if data is not None:
            self._piece_was_seen.set()
        return data


class Overwrites(MemoryStorage):
    """Knows one creator only while the race goes on."""

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        created = super().put_if_absent(path, data)
        if path.endswith("race") and not created:
            self.disk.files[path] = bytes(data)
        return created


class CreatesAgain(MemoryStorage):
    """Forgets that a name is taken when those who raced for it have been told."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self._asked = itertools.count(1)

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        created = super().put_if_absent(path, data)
        return created or (path.endswith("race") and next(self._asked) > 7)


class VisibleUploads(MemoryStorage):
    """Shows a file while it is still written."""

    def create(self, path: str) -> FileSink:
        sink = super().create(path)
        self.disk.files[path] = b"pie"
        return sink


class CachedListing(MemoryStorage):
    """Lists what it listed before."""

    def list(self, directory: str) -> list[str]:
        return []


class NoSync(MemoryStorage):
    """Cannot make a file durable."""

    def sync(self, *paths: str) -> None:
        raise BookieUnavailableError("sync is not supported", bookie_id="b:1")


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (SeveralWinners, "told that they won"),
        (NoWinner, "told that they won"),
        (Pieces, "piece"),
        (Overwrites, "content is not that"),
        (CreatesAgain, "created again"),
        (VisibleUploads, "visible while it is still being written"),
        (CachedListing, "listing"),
    ],
)
def test_r18_an_unsuitable_file_system_is_refused_with_the_reason(
    storage: type[MemoryStorage], reason: str, token: Token
) -> None:
    disk = MemoryDisk()

    with pytest.raises(UnsuitableStorageError, match=reason):
        Partition(storage(disk)).format(BOOKIE_ID, "cluster", token=token)

    assert "BOOKIE" not in disk.files


class LosesAnswers(MemoryStorage):
    """Of the first put that created each kind of file; its client repeats the put by itself."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.lost: set[str] = set()

    def put_if_absent(self, path: str, data: bytes | Content) -> bool:
        is_new = super().put_if_absent(path, data)
        kind = path.rpartition("/")[2].rpartition("-")[2]
        if is_new and kind not in self.lost:
            self.lost.add(kind)
            return False
        return is_new


def test_an_answer_that_was_lost_says_nothing_against_a_file_system(token: Token) -> None:
    storage = LosesAnswers(MemoryDisk())

    marker = Partition(storage).format(BOOKIE_ID, "cluster", token=token)

    assert read_marker(storage) == marker
    assert storage.lost == {"race", "file", "BOOKIE"}


def test_r18_a_file_system_that_cannot_sync_is_refused(token: Token) -> None:
    disk = MemoryDisk()

    with pytest.raises((UnsuitableStorageError, BookieUnavailableError)):
        Partition(NoSync(disk)).format(BOOKIE_ID, "cluster", token=token)

    assert "BOOKIE" not in disk.files


def test_a_root_uri_says_which_storage_is_behind_it(tmp_path: Path) -> None:
    assert isinstance(open_storage(str(tmp_path)), LocalStorage)
    storage = open_storage(f"file://{tmp_path}/with%20space")
    assert storage.uri == f"file://{tmp_path}/with%20space"
    for wrong in ("memory://x", "relative/path", "file://host/path"):
        with pytest.raises(InvalidArgumentError):
            open_storage(wrong)
