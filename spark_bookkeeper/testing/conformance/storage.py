"""Tests that every bookie's storage must pass: subclass once for each back end.

A back end's test module gives a fixture ``storages`` that returns ``Storages``, and

::

    class TestMyStorage(StorageConformance):
        pass
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pytest

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.retry_policy import Patience
from spark_bookkeeper.storage.storage import Content, FileSink, Request, Storage
from spark_bookkeeper.testing.hanging import OPERATIONS, Hang, HangingStorage

HANGING_CALLS: dict[str, Callable[[Storage], object]] = {
    "put_if_absent": lambda s: s.put_if_absent("d/b", b"late"),
    "create": lambda s: s.create("d/c").abandon(),
    "write": lambda s: _write_whole(s.create("d/b")),
    "finish": lambda s: _write_whole(s.create("d/b")),
    "read": lambda s: s.read("d/a"),
    "read_range": lambda s: s.read_range("d/a", 0, 1),
    "size": lambda s: s.size("d/a"),
    "list": lambda s: s.list("d"),
    "make_directory": lambda s: s.make_directory("e"),
    "sync": lambda s: s.sync("d/a"),
    "delete": lambda s: s.delete("d/a"),
    "delete_directory": lambda s: s.delete_directory("d"),
    "space": lambda s: s.space(),
    "inodes": lambda s: s.inodes(),
}
"""Each operation of a storage, as one call."""


BESIDE = ("a", "a1", "ab", "ac", "abc", "b")

ODD_NAMES = ("a*", "a?", "a[bc]", "[!a]", "{ab,ac}", "a%62", "a%", "a b", "a#1", "a+b", "**")
"""Patterns of fsspec or a shell that match some of ``BESIDE``, and characters of URIs."""

CHANGES: dict[str, tuple[Callable[[Storage, str], object], list[str]]] = {
    "put_if_absent": (lambda s, path: s.put_if_absent(f"{path}/b", b""), ["b", "file"]),
    "put_all": (
        lambda s, path: s.put_all([(f"{path}/{n}", b"") for n in "bcde"]),
        [*"bcde", "file"],
    ),
    "create": (lambda s, path: _write_whole(s.create(f"{path}/b")), ["b", "file"]),
    "sync": (lambda s, path: s.sync(f"{path}/file"), ["file"]),
    "delete": (lambda s, path: s.delete(f"{path}/file"), []),
    "delete_directory": (lambda s, path: s.delete_directory(path), []),
}
"""Operations on a directory with a ``file``, and the directory's content afterwards."""


OUTSIDE = ("../b", "d/../../b", "..", "d/..", "/b", "d//b", "d/", "./b", "d/.", "d/b\0", "")
"""Paths that name nothing below the root. A storage must refuse them, whatever exists there."""

OPERATIONS_BELOW: dict[str, Callable[[Storage, str], object]] = {
    "put_if_absent": lambda s, path: s.put_if_absent(path, b"x"),
    "put_all": lambda s, path: s.put_all([(path, b"x")] + [("d/z", b"z")] * 4),
    "put_all, relied on": lambda s, path: s.put_all([("d/z", b"z")] * 4, relied_on=[path]),
    "put_all, directories": lambda s, path: s.put_all([("d/z", b"z")] * 4, directories=[path]),
    "create": lambda s, path: s.create(path),
    "read": lambda s, path: s.read(path),
    "read_again": lambda s, path: s.read_again(path),
    "read_range": lambda s, path: s.read_range(path, 0, 1),
    "read_through": lambda s, path: s.read_through(path, 0, 1, lambda _: None),
    "size": lambda s, path: s.size(path),
    "exists": lambda s, path: s.exists(path),
    "modified_ms": lambda s, path: s.modified_ms(path),
    "list": lambda s, path: s.list(path or ".."),
    "make_directory": lambda s, path: s.make_directory(path),
    "make_directories": lambda s, path: s.make_directories([path]),
    "sync": lambda s, path: s.sync(path),
    "sync_all": lambda s, path: s.sync_all([path]),
    "delete": lambda s, path: s.delete(path),
    "delete_directory": lambda s, path: s.delete_directory(path),
    "temporary_files": lambda s, path: s.temporary_files(path or ".."),
}
"""Each operation on a path."""


def _write_whole(sink: FileSink) -> None:
    try:
        sink.write(b"late")
        sink.finish()
    finally:
        sink.abandon()


RACERS = 16

NAMES = 6
"""The number of names in the race, one after the other."""

RACE_BYTES = 200_000


class Storages(Protocol):
    """Handles on one partition that is empty at first."""

    def open(self) -> Storage:
        """Return a new handle, as another client has."""

    def race(self, run: Callable[[Storage, int], list[bool]]) -> list[list[bool]]:
        """Run ``run(handle, racer)`` for all racers at once, in processes where possible."""

    def vanish(self) -> None:
        """Make the partition stop answering."""


class ThreadRace:
    """Racers as threads, for back ends in this process."""

    racers = RACERS

    def open(self) -> Storage:
        """Return a handle, as in ``Storages``."""
        raise NotImplementedError

    def race(self, run: Callable[[Storage, int], list[bool]]) -> list[list[bool]]:
        """Run the race, as in ``Storages``."""
        results: list[list[bool]] = [[] for _ in range(self.racers)]
        errors: list[BaseException] = []

        def racer(number: int) -> None:
            try:
                results[number] = run(self.open(), number)
            except BaseException as error:  # noqa: BLE001  (handed to the caller below)
                errors.append(error)

        threads = [threading.Thread(target=racer, args=(n,)) for n in range(self.racers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


def content_of(racer: int) -> bytes:
    """Return content that shows its writer, and whether it is whole."""
    return bytes([racer + 1]) * RACE_BYTES


def race_for_names(storage: Storage, racer: int) -> list[bool]:
    """Put each name in turn, and check what a reader sees there; return which puts won."""
    won = []
    for number in range(NAMES):
        path = f"race/{number}"
        won.append(storage.put_if_absent(path, content_of(racer)))
        seen = storage.read(path)
        assert seen is not None, "a name that is taken can be read"
        assert len(seen) == RACE_BYTES, "nobody sees a piece"
        assert len(set(seen)) == 1, "nobody sees a mixture"
    return won


def answers_of(storage: Storage, requests: Sequence[Request]) -> Sequence[Any]:
    """Return an answer for each request, even if one error stands for all."""
    try:
        return storage.ask_all(requests)
    except BookieUnavailableError as error:
        return [error] * len(requests)


def as_value(answer: Any) -> Any:
    """Return an answer as a value that ``==`` compares by content."""
    if isinstance(answer, pa.Buffer):
        return answer.to_pybytes()
    return list(answer) if isinstance(answer, (list, tuple)) else answer


class StorageConformance:
    """Rules R1, R9, R15 and R18 of SLOT-LOG, and the difference between absent and unknown."""

    def directory(self, storages: Storages, name: str = "d") -> Storage:
        """Return a handle, and make a directory to work in."""
        storage = storages.open()
        storage.make_directory(name)
        return storage

    def test_of_many_who_create_a_name_one_wins_and_nobody_sees_a_piece(
        self, storages: Storages
    ) -> None:
        storage = self.directory(storages, "race")

        results = storages.race(race_for_names)

        for number in range(NAMES):
            winners = [racer for racer, won in enumerate(results) if won[number]]
            assert len(winners) == 1
            assert storage.read(f"race/{number}") == content_of(winners[0])

    def test_a_name_that_is_taken_keeps_its_content(self, storages: Storages) -> None:
        storage = self.directory(storages)
        assert storage.put_if_absent("d/a", b"first")

        assert not storages.open().put_if_absent("d/a", b"second")
        assert not storage.put_if_absent("d/a", b"first"), "a lost answer looks like this"
        assert storage.read("d/a") == b"first"

    def test_many_files_are_put_as_each_by_itself_is(self, storages: Storages) -> None:
        storage = self.directory(storages, "d")
        directories = [f"d/{number}" for number in range(10)]
        told: list[int] = []
        storage.make_directories(directories, lambda: told.append(1))
        storage.make_directories(directories)  # found, and made as durable as a new one
        storage.put_if_absent("d/3/a", b"first")
        files = [(f"{directory}/a", directory.encode()) for directory in directories]

        created = storage.put_all(files, lambda: told.append(1))
        again = storages.open().put_all(files)
        storage.sync_all([path for path, _ in files], lambda: told.append(1))

        assert list(created) == [number != 3 for number in range(10)]
        assert list(again) == [False] * 10
        assert storage.read("d/3/a") == b"first"
        for number, (path, data) in enumerate(files):
            assert number == 3 or storages.open().read(path) == data
            assert list(storage.list(directories[number])) == ["a"]
        assert isinstance(storage.syncs_as_one, bool)
        with pytest.raises(BookieUnavailableError):
            storage.sync_all([*(path for path, _ in files), "d/0/b"])
        above = [(f"{directory}/above", b"") for directory in directories]
        with pytest.raises(BookieUnavailableError):
            storage.put_all(above, relied_on=["d/0/b"])
        assert all(storage.size(path) is None for path, _ in above)
        assert list(storage.put_all(above, relied_on=["d/0/a", "d/1/a"])) == [True] * 10

    def test_many_files_are_put_into_directories_that_are_made_for_them(
        self, storages: Storages
    ) -> None:
        storage = self.directory(storages)
        storage.make_directory("d/3/copies")
        directories = [f"d/{number}/copies" for number in range(10)]
        files = [(f"{directory}/a", directory.encode()) for directory in directories]

        assert list(storage.put_all(files, directories=directories)) == [True] * 10
        assert list(storage.put_all(files, directories=directories)) == [False] * 10
        storage.make_directories(directories)  # found, and made as durable as a new one
        for path, data in files:
            assert storages.open().read(path) == data

    def test_many_files_that_hang_come_back_unknown(self, storages: Storages) -> None:
        storage = self.directory(storages)
        runtime = ThreadRuntime()
        hang = Hang.of(runtime, "put_if_absent")
        patience = Patience(give_up=0.1, hedge=0.05, retry=60.0, pages=0.0)
        bookie_client = BookieClient("b:1", storage.uri, runtime, patience)
        hanging = BoundedStorage(HangingStorage(storage, hang), bookie_client)

        with pytest.raises(BookieUnavailableError, match=r"b:1: no answer for .*not known"):
            hanging.put_all([(f"d/{number}", b"late") for number in range(6)])

        hang.release()
        while hang.stuck or hanging.bookie_client.calls:
            runtime.sleep(0.01)
        for number in range(6):
            assert storage.read(f"d/{number}") in (None, b"late")

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_what_hangs_comes_back_unknown_and_may_still_take_effect(
        self, storages: Storages, operation: str
    ) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"content")
        runtime = ThreadRuntime()
        hang = Hang.of(runtime, operation)
        patience = Patience(give_up=0.1, hedge=0.05, retry=60.0, pages=0.0)
        bookie_client = BookieClient("b:1", storage.uri, runtime, patience)
        hanging = BoundedStorage(HangingStorage(storage, hang), bookie_client)

        with pytest.raises(BookieUnavailableError, match=r"b:1: no answer for .*not known"):
            HANGING_CALLS[operation](hanging)
        with pytest.raises(BookieUnavailableError, match="b:1 hangs"):
            hanging.size("d/a")

        hang.release()
        while hang.stuck or hanging.bookie_client.calls:
            runtime.sleep(0.01)
        assert storage.read("d/b") in (None, b"late")  # whole or not at all (rules R1, R3)

    def test_what_is_not_there_is_certainly_absent(self, storages: Storages) -> None:
        storage = self.directory(storages)

        assert storage.read("d/a") is None
        assert storage.read_range("d/a", 0, 10) is None
        assert storage.size("d/a") is None
        assert not storage.exists("d/a")
        assert storage.modified_ms("d/a") is None
        assert list(storage.list("nowhere")) == []

    def test_what_does_not_answer_is_unknown_and_never_absent(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"content")
        storages.vanish()

        calls: Sequence[Callable[[], object]] = (
            lambda: storage.read("d/a"),
            lambda: storage.read_range("d/a", 0, 1),
            lambda: storage.read_through("d/a", 0, 1, lambda _: None),
            lambda: storage.size("d/a"),
            lambda: storage.exists("d/a"),
            lambda: storage.modified_ms("d/a"),
            lambda: storage.put_if_absent("d/b", b"x"),
            lambda: storage.sync("d/a"),
            lambda: storage.list("d"),
        )
        for call in calls:
            with pytest.raises(BookieUnavailableError):
                call()
        answers = answers_of(storage, [Request("read", "d/a"), Request("exists", "d/b")])
        assert [type(answer) for answer in answers] == [BookieUnavailableError] * 2

    def test_many_requests_are_answered_as_each_by_itself(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"content")
        storage.put_if_absent("d/empty", b"")
        requests = [
            Request("put_if_absent", "d/b", (b"b",)),
            Request("put_if_absent", "d/a", (b"other",)),
            Request("put_if_absent", "d/c", (Content([b"in ", b"pieces"]),)),
            Request("sync", "d/gone"),
            Request("sync", "d/a"),
            Request("read", "d/a"),
            Request("read", "d/empty"),
            Request("read", "d/gone"),
            Request("read_range", "d/a", (3, 2)),
            Request("read_range", "d/gone", (3, 2)),
            Request("size", "d/a"),
            Request("size", "d/gone"),
            Request("exists", "d/a"),
            Request("exists", "d/empty"),
            Request("exists", "d/gone"),
            Request("modified_ms", "d/gone"),
            Request("list", "nowhere"),
        ]
        came_back: list[None] = []

        answers = list(storage.ask_all(requests, lambda: came_back.append(None)))

        assert isinstance(answers.pop(3), BookieUnavailableError), "and keeps back no other"
        assert answers[:3] == [True, False, True]
        assert [as_value(answer) for answer in answers[3:]] == [
            *(None, b"content", b"", None, b"te", None, 7, None, True, True, False, None, []),
        ]
        assert storage.ask_all([Request("list", "d")]) == [["a", "b", "c", "empty"]]
        assert (storage.read("d/a"), storage.read("d/c")) == (b"content", b"in pieces")
        assert len(came_back) >= len(requests)
        assert list(storage.ask_all([])) == []

    def test_many_requests_that_hang_come_back_unknown(self, storages: Storages) -> None:
        storage = self.directory(storages)
        runtime = ThreadRuntime()
        hang = Hang.of(runtime, "put_if_absent")
        patience = Patience(give_up=0.1, hedge=0.05, retry=60.0, pages=0.0)
        bookie_client = BookieClient("b:1", storage.uri, runtime, patience)
        hanging = BoundedStorage(HangingStorage(storage, hang), bookie_client)

        answers = answers_of(
            hanging, [Request("put_if_absent", f"d/{n}", (b"late",)) for n in range(6)]
        )

        assert [type(answer) for answer in answers] == [BookieUnavailableError] * 6
        hang.release()
        while hang.stuck or hanging.bookie_client.calls:
            runtime.sleep(0.01)
        for number in range(6):
            assert storage.read(f"d/{number}") in (None, b"late")

    def test_ranges_end_with_the_file(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"0123456789")

        assert storage.read_range("d/a", 0, 4) == b"0123"
        assert storage.read_range("d/a", 4, 4) == b"4567"
        assert storage.read_range("d/a", 8, 100) == b"89"
        assert storage.read_range("d/a", 10, 5) == b""
        assert storage.read_range("d/a", 50, 5) == b""
        assert storage.size("d/a") == 10

    def test_a_range_that_is_handed_out_in_pieces_is_the_same(self, storages: Storages) -> None:
        storage = self.directory(storages)
        content = bytes(range(256)) * 4096  # more than one piece in any back end
        storage.put_if_absent("d/a", content)

        def handed(path: str, offset: int, length: int) -> bytes | None:
            seen = bytearray()
            is_there = storage.read_through(
                path, offset, length, lambda piece: seen.extend(bytes(piece))
            )
            return bytes(seen) if is_there else None

        assert handed("d/a", 0, len(content) + 1) == content
        assert handed("d/a", 3, 700_001) == content[3:700_004]
        assert handed("d/a", len(content) - 5, 100) == content[-5:]
        assert handed("d/a", len(content) + 5, 100) == b""
        assert handed("d/b", 0, 10) is None

    def test_a_content_in_pieces_is_put_as_one(self, storages: Storages) -> None:
        storage = self.directory(storages)
        for name, size in (("small", 10), ("large", 700_000)):
            content = Content([b"a" * size, memoryview(b""), pa.py_buffer(b"b" * size)])

            assert storage.put_if_absent(f"d/{name}", content)
            assert storage.read(f"d/{name}") == b"a" * size + b"b" * size
            assert not storages.open().put_if_absent(f"d/{name}", content)

    def test_a_file_is_as_old_as_its_content_or_of_unknown_age(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"first")
        moment = storage.modified_ms("d/a")
        assert moment is None or moment > 1_700_000_000_000  # every file here is written later

        storage.put_if_absent("d/a", b"second")

        assert storage.modified_ms("d/a") == moment

    def test_a_listing_shows_at_once_what_is_there(self, storages: Storages) -> None:
        storage, other = self.directory(storages), storages.open()
        assert list(other.list("d")) == []

        storage.put_if_absent("d/b", b"")
        storage.put_if_absent("d/a", b"x")

        assert list(other.list("d")) == ["a", "b"]
        storage.delete("d/a")
        assert list(other.list("d")) == ["b"]
        storage.make_directory("d/sub")
        storage.put_if_absent("d/sub/c", b"")
        assert list(other.list("d")) == ["b", "sub"]
        assert "d" in other.list("")

    def test_deleting_is_idempotent(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"x")

        for _ in range(2):
            storage.delete("d/a")
            assert storage.read("d/a") is None
        storage.put_if_absent("d/b", b"x")
        for _ in range(2):
            storage.delete_directory("d")
            assert storage.read("d/b") is None
            assert list(storage.list("d")) == []

    @pytest.mark.parametrize("operation", CHANGES)
    def test_a_name_is_no_pattern_and_nothing_changes_beside_it(
        self, storages: Storages, operation: str
    ) -> None:
        storage = self.directory(storages)
        names = [*ODD_NAMES, *BESIDE]
        storage.make_directories([f"d/{name}" for name in names])
        storage.put_all([(f"d/{name}/file", name.encode()) for name in names])
        change, left = CHANGES[operation]

        for name in ODD_NAMES:
            change(storage, f"d/{name}")

        assert {name: list(storage.list(f"d/{name}")) for name in names} == {
            name: ["file"] if name in BESIDE else left for name in names
        }
        for name in names if "file" in left else BESIDE:
            assert storage.read(f"d/{name}/file") == name.encode()

    def test_no_path_leads_out_of_the_root(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/b", b"content")

        for operation, call in OPERATIONS_BELOW.items():
            for path in OUTSIDE:
                with pytest.raises(BookieUnavailableError, match="is no path below"):
                    call(storage, path)
            assert storage.read("d/b") == b"content", operation
        asked = [Request("read", path) for path in OUTSIDE]
        answers = storage.ask_all([*asked, Request("put_if_absent", "../b", (b"x",))])
        assert {type(answer) for answer in answers} == {BookieUnavailableError}
        assert list(storage.list("d")) == ["b"]
        assert list(storage.list("")) == ["d"]

    def test_a_name_is_no_pattern_for_whoever_reads(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_all([(f"d/{name}", b"beside") for name in BESIDE])

        for name in ODD_NAMES:
            path = f"d/{name}"
            assert storage.read(path) is None
            assert storage.size(path) is None
            assert not storage.exists(path)
            assert list(storage.list(path)) == []
            storage.put_if_absent(path, name.encode())
            assert storage.read(path) == storage.read_range(path, 0, 99) == name.encode()
            assert storage.size(path) == len(name)
        assert list(storage.list("d")) == sorted([*ODD_NAMES, *BESIDE])

    def test_a_name_can_be_created_again_after_it_was_deleted(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/a", b"x")
        storage.delete("d/a")

        assert storage.put_if_absent("d/a", b"y")
        assert storage.read("d/a") == b"y"

    def test_a_file_in_pieces_appears_whole_when_it_is_finished(self, storages: Storages) -> None:
        storage = self.directory(storages)
        sink = storage.create("d/part")
        piece = b"0123456789abcdef" * 65_536

        sink.write(piece)
        sink.write(memoryview(piece)[:100])
        sink.write(pa.py_buffer(b"end"))
        assert storages.open().read("d/part") is None
        assert "part" not in storages.open().list("d")
        sink.finish()

        assert storages.open().read("d/part") == piece + piece[:100] + b"end"
        storages.open().sync("d/part")

    def test_a_file_that_was_abandoned_is_not_there(self, storages: Storages) -> None:
        storage = self.directory(storages)
        sink = storage.create("d/part")
        sink.write(b"x" * 100_000)

        sink.abandon()
        sink.abandon()

        assert storage.read("d/part") is None
        assert list(storage.list("d")) == []

    def test_a_file_in_pieces_does_not_replace_another(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.put_if_absent("d/part", b"first")

        with pytest.raises(BookieUnavailableError):  # noqa: PT012  (either step may refuse)
            sink = storage.create("d/part")
            sink.write(b"second")
            sink.finish()

        assert storage.read("d/part") == b"first"

    def test_what_has_vanished_cannot_be_synced(self, storages: Storages) -> None:
        storage = self.directory(storages)

        with pytest.raises(BookieUnavailableError):
            storage.sync("d/a")

    def test_a_put_does_not_make_the_directory_again(self, storages: Storages) -> None:
        storage = self.directory(storages)
        storage.delete_directory("d")

        if storage.has_directories:
            with pytest.raises(BookieUnavailableError):
                storage.put_if_absent("d/a", b"x")
            assert storage.read("d/a") is None
        else:
            assert storage.put_if_absent("d/a", b"x")

    def test_making_a_directory_makes_its_parents_and_can_be_repeated(
        self, storages: Storages
    ) -> None:
        storage = self.directory(storages, "a")

        for _ in range(2):
            storage.make_directory("a/b/c")

        assert storage.put_if_absent("a/b/c/d", b"x")

    def test_what_lies_below_the_root_is_made_only_by_its_own_name(
        self, storages: Storages
    ) -> None:
        storage = storages.open()

        refusal = ""
        try:
            storage.make_directory("gone/b")
        except BookieUnavailableError as error:
            refusal = error.message

        assert "gone is gone" in refusal or not storage.has_directories
        assert list(storage.list("")) == []

    def test_space_is_two_numbers_or_nothing(self, storages: Storages) -> None:
        space = storages.open().space()

        assert space is None or 0 <= space[0] <= space[1]
