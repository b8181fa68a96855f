"""Puts of a writer on a local disk: a directory stays open, a marker is known again (rule R11)."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.errors import BookieUnavailableError, CookieMismatchError
from spark_bookkeeper.storage import new_file
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.slotlog import BOOKIE_ID

KEY = LedgerKey(7, "n1")
ENCODING = LedgerEncoding()


class Writer:
    """Of one ledger on one partition, after its first add."""

    def __init__(self, root: Path, token: Callable[[], str]) -> None:
        self.root = root
        self.storage = LocalStorage(root)
        self._token = token
        marker = self.format()
        self.log = LedgerLog(self.storage, LedgerRef(KEY, marker, ENCODING))
        self.log.prepare()
        self.slots = root / self.log.paths.slots
        self._next = 0
        self.add()
        self.add()

    def format(self) -> str:
        """As somebody else does, in a process of his own."""
        self.root.mkdir(exist_ok=True)
        storage = LocalStorage(self.root)
        return (
            Partition(storage)
            .format(BOOKIE_ID, "cluster", token=self._token, is_probe_required=False)
            .incarnation
        )

    def add(self) -> None:
        number = self._next
        entry = NewEntry(number, number + 1, b"x")
        self.log.add(number, encode_add(KEY, ENCODING, "w", number, -1, [entry]), (number, number))
        self._next += 1

    @property
    def added(self) -> int:
        """Slots in the directory that the path names now."""
        return len(list(self.slots.glob("*.arrow")))


@pytest.fixture(params=[True, False], ids=["disk", "network"])
def has_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether one ``stat`` shows what others did, wherever the test's directory is."""
    monkeypatch.setattr(new_file, "shows_changes_at_once", lambda device: request.param)
    return bool(request.param)


@pytest.fixture
def writer(tmp_path: Path, token: Callable[[], str], has_disk: bool) -> Writer:
    return Writer(tmp_path / "bookie", token)


def _wiped(writer: Writer) -> None:
    Partition(LocalStorage(writer.root)).wipe()


def _wiped_and_formatted(writer: Writer) -> None:
    Partition(LocalStorage(writer.root)).wipe()
    writer.format()


def _formatted_and_fenced(writer: Writer) -> None:
    Partition(LocalStorage(writer.root)).wipe()
    writer.format()
    LocalStorage(writer.root).make_directory(writer.log.paths.slots)


def _moved_away(writer: Writer) -> None:
    writer.root.rename(writer.root.with_name("away"))


def _another_in_its_place(writer: Writer) -> None:
    """The very same files, restored from a backup say; nobody has what is put into the first."""
    away = writer.root.with_name("away")
    writer.root.rename(away)
    shutil.copytree(away, writer.root)


def _ledgers_moved_away(writer: Writer) -> None:
    (writer.root / "ledgers").rename(writer.root / "ledgers.old")


def _another_directory_in_its_place(writer: Writer) -> None:
    away = writer.slots.with_name("away")
    writer.slots.rename(away)
    shutil.copytree(away, writer.slots)


def _marker_deleted(writer: Writer) -> None:
    (writer.root / MARKER_PATH).unlink()


def _marker_overwritten(writer: Writer) -> None:
    """In place and as long as it was: neither the inode nor the size tells."""
    path = writer.root / MARKER_PATH
    _overwrite(path, path.read_bytes()[::-1])


def _overwrite(path: Path, data: bytes) -> None:
    """So that it shows: the clock of a file system goes on every few milliseconds only."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.write_bytes(data)


LOSSES = (
    _wiped, _wiped_and_formatted, _formatted_and_fenced, _moved_away, _another_in_its_place,
    _ledgers_moved_away, _another_directory_in_its_place, _marker_deleted, _marker_overwritten,
)  # fmt: skip


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("moment", ["between two puts", "within a put"])
def test_r11_no_add_counts_on_a_partition_that_is_not_the_one_it_was(
    writer: Writer, lose: Callable[[Writer], None], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if moment == "between two puts":
        lose(writer)
    else:
        _before_the_next(monkeypatch, "link", lambda: lose(writer))

    try:
        writer.add()
    except (BookieUnavailableError, CookieMismatchError):
        return

    is_there = writer.added == 3
    assert is_there, "an add counts only in the directory that the path names"
    copies = (_another_in_its_place, _another_directory_in_its_place)
    assert lose in copies, "an add counts only with its marker"
    assert moment == "between two puts", "an add counts only where it was put"


def test_what_failed_is_opened_anew_by_the_next(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _before_the_next(monkeypatch, "link", lambda: _another_directory_in_its_place(writer))
    with pytest.raises(BookieUnavailableError):
        writer.add()

    writer.add()  # the same bytes again, in the directory that is there now

    assert writer.added == 3


def test_the_descriptor_is_closed_with_the_session(writer: Writer, has_disk: bool) -> None:
    def descriptors() -> list[str]:
        paths = []
        for name in os.listdir("/proc/self/fd"):
            try:
                paths.append(os.readlink(f"/proc/self/fd/{name}"))
            except OSError:  # the one of the listing itself
                continue
        return [path for path in paths if path == str(writer.slots)]

    assert len(descriptors()) == has_disk

    del writer.log

    assert descriptors() == []


def test_an_add_makes_eight_calls_of_the_system(
    tmp_path: Path, token: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_file, "shows_changes_at_once", lambda device: True)
    writer = Writer(tmp_path / "bookie", token)

    with _counted(monkeypatch) as calls:
        writer.add()

    assert calls == {
        "open": 1, "write": 1, "sync_content": 1, "link": 1, "fsync": 1, "close": 1, "stat": 2
    }  # fmt: skip


def test_a_marker_that_is_read_while_it_changes_is_read_again(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writer.root / MARKER_PATH
    storage = LocalStorage(writer.root)
    old = path.read_bytes()
    new = old[::-1]
    _before_the_next(monkeypatch, "read", lambda: _overwrite(path, new))

    assert storage.read_again(MARKER_PATH) == new
    _overwrite(path, old)

    assert storage.read_again(MARKER_PATH) == old
    assert storage.read_again(MARKER_PATH) == old


def _before_the_next(
    monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], object]
) -> None:
    """Before the next call of ``os.<name>`` in this thread, something happens."""
    function = getattr(os, name)
    thread = threading.get_ident()

    def first(*args: Any, **options: Any) -> Any:
        if threading.get_ident() == thread:
            monkeypatch.setattr(os, name, function)
            happens()
        return function(*args, **options)

    monkeypatch.setattr(os, name, first)


class _counted:  # noqa: N801  (a context manager, used as a function)
    """Calls of the system that this thread makes meanwhile, where a file system is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __enter__(self) -> Counter[str]:
        calls: Counter[str] = Counter()
        own = threading.get_ident()

        def count(place: Any, name: str) -> None:
            function = getattr(place, name)

            def counted(*args: Any, **options: Any) -> Any:
                if threading.get_ident() == own:
                    calls[name] += 1
                return function(*args, **options)

            self._monkeypatch.setattr(place, name, counted)

        for name in ("open", "read", "write", "close", "link", "unlink", "stat", "fstat", "fsync",
                     "listdir", "mkdir"):  # fmt: skip
            count(os, name)
        count(new_file, "sync_content")
        return calls

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()
