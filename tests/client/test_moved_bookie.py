"""A bookie whose partition was moved while a client remembers where it was."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.bookie.storage.roots import open_storage
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.asking import Door
from spark_bookkeeper.client.bookies.bounded_storage import BoundedStorage
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.cluster.ownership import claim_partition
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import NotEnoughBookiesError, RecoveryUndecidedError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_store import MemoryCluster

BOOKIES = [BookieId(f"127.0.0.1:{3181 + n}") for n in range(3)]


@dataclass
class Moving:
    """Bookies in directories, that can be moved to others."""

    directory: Path

    def __post_init__(self) -> None:
        self.runtime = ThreadRuntime()
        self.cluster = MemoryCluster()
        self.store = self.cluster.session()
        self.store.initialize_cluster()
        for bookie in BOOKIES:
            self.serve(bookie, self.directory / bookie)

    def serve(self, bookie: BookieId, root: Path) -> None:
        root.mkdir(exist_ok=True)
        storage = LocalStorage(root)
        marker = claim_partition(
            self.store, storage, bookie, token=self.runtime.token, moved_from=open_storage
        )
        self.store.register(Registration(bookie, storage.uri, marker.incarnation))

    def client(self) -> ClientContext:
        def opened(uri: str, door: Door) -> FileBookie:
            return FileBookie(BoundedStorage(open_storage(uri, None, door.bookie_id), door))

        store = self.cluster.session()
        return ClientContext(
            store, Bookies(store, opened, self.runtime), self.runtime, ClientConfig()
        )


def test_a_reader_finds_a_moved_bookie_again(tmp_path: Path) -> None:
    moving = Moving(tmp_path)
    context = moving.client()
    with lifecycle.create_ledger(context, Quorum(1, 1, 1)) as writer:
        writer.append(b"kept")
    (bookie,) = writer.metadata.last_fragment.ensemble
    reader = lifecycle.open_ledger(context, writer.ledger_id)

    (tmp_path / bookie).rename(tmp_path / "elsewhere")
    moving.serve(bookie, tmp_path / "elsewhere")

    assert [entry.payload for entry in reader.entries()] == [b"kept"]


def test_a_copy_left_behind_by_a_moved_bookie_does_not_end_a_ledger_too_early(
    tmp_path: Path,
) -> None:
    moving = Moving(tmp_path)
    writing, recovering = moving.client(), moving.client()
    # The ledger is made before the move, so that the recovering client knows the old roots.
    writer = lifecycle.create_ledger(writing, Quorum(3, 3, 3))
    recovering.bookies.registrations()
    moved, *silent = writer.metadata.last_fragment.ensemble
    shutil.copytree(tmp_path / moved, tmp_path / "elsewhere")
    moving.serve(moved, tmp_path / "elsewhere")
    writing.bookies.registrations()
    writer.append(b"acknowledged by all three")
    writer.abandon()
    for bookie in silent:
        (tmp_path / bookie).rename(tmp_path / f"{bookie}-away")

    with pytest.raises(NotEnoughBookiesError, match="recovered entries 0 to 0"):
        lifecycle.open_ledger(recovering, writer.ledger_id)
    for bookie in silent:
        (tmp_path / f"{bookie}-away").rename(tmp_path / bookie)
    recovered = lifecycle.open_ledger(recovering, writer.ledger_id)

    assert [entry.payload for entry in recovered.entries()] == [b"acknowledged by all three"]


def test_a_client_that_still_asks_the_old_root_learns_nothing_from_it(tmp_path: Path) -> None:
    moving = Moving(tmp_path)
    writing, recovering = moving.client(), moving.client()
    writer = lifecycle.create_ledger(writing, Quorum(3, 3, 3))
    writer.append(b"acknowledged by all three")
    writer.abandon()
    recovering.bookies.registrations()
    moved, *silent = writer.metadata.last_fragment.ensemble
    shutil.copytree(tmp_path / moved, tmp_path / "elsewhere")
    moving.serve(moved, tmp_path / "elsewhere")
    for directory in ("elsewhere", *silent):
        (tmp_path / directory).rename(tmp_path / f"{directory}-away")

    with pytest.raises(RecoveryUndecidedError):
        lifecycle.open_ledger(recovering, writer.ledger_id)


def test_of_two_who_open_a_bookie_at_once_one_is_quicker_and_the_other_is_closed(
    tmp_path: Path,
) -> None:
    moving = Moving(tmp_path)
    (bookie, *_) = moving.store.last_registrations()
    closed: list[int] = []
    number = count()

    class Closing(LocalStorage):
        def __init__(self) -> None:
            super().__init__(tmp_path)
            self.number = next(number)

        def close(self) -> None:
            closed.append(self.number)

    def opened(_: str, door: Door) -> FileBookie:
        storage = Closing()
        if storage.number == 0:
            bookies.bookie(bookie.bookie_id)  # another task comes in between
        return FileBookie(storage)

    bookies = Bookies(moving.store, opened, moving.runtime)

    used = bookies.bookie(bookie.bookie_id)

    assert isinstance(used, FileBookie)
    assert isinstance(used.storage, Closing)
    assert used.storage.number == 1
    assert closed == [0]
    bookies.close()
    assert closed == [0, 1]
