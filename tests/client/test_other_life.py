"""A ledger is deleted, and another tool makes another with its id, while clients of it live.

This library never uses an id twice. Other tools may, and their new ledger has version 0 again, as
the old one had: nobody who means the old one may change the new one, or take it for the old.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from spark_bookkeeper.agent.takeover import claim_partition
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    EntryUnreadableError,
    LedgerExistsError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.metadata.codec import encode_ledger
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.update import delete_ledger
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_one, check_works
from spark_bookkeeper.replication.pieces import copy_piece, pieces_of
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_one
from spark_bookkeeper.replication.repair_ledgers import RepairWork, repair_one
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.replication.targets import Targets
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.testing.ground import Ground, Hook
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.hooks import At
from tests.support.slotlog import log_of
from tests.worlds import USUAL

ID = LedgerId(50)


@contextmanager
def another_is_there() -> Iterator[pytest.ExceptionInfo[NoSuchLedgerError]]:
    with pytest.raises(NoSuchLedgerError) as caught:
        yield caught
    assert caught.value.facts.get("is_another"), caught.value.message


class StoreWorld:
    """A ground, whose metadata is in memory or in a ZooKeeper."""

    def __init__(self, directory: Path, address: str | None) -> None:
        self.ground = Ground(directory, bookies=5)
        self._uri = f"zk://{address}/{secrets.token_hex(4)}/ledgers"
        self._in_zookeeper = address is not None
        self._stores: list[ZooKeeperStore] = []
        if self._in_zookeeper:
            store = self._session()
            store.initialize_cluster()
            for registration in self.ground.context.store.registrations():
                store.register(registration)
            for cookie in self.ground.context.store.cookies():
                store.write_cookie(cookie.value, None)
        self.context = self.client()

    def client(self, *hooks: Hook) -> ClientContext:
        """Another client; hooks are called before what it asks of bookies."""
        context = self.ground.client(None, *hooks)
        if not self._in_zookeeper:
            return context
        store = self._session()
        bookies = Bookies(store, context.bookies._open_bookie, context.runtime)
        return replace(context, store=store, bookies=bookies)

    def stop(self, bookie: BookieId) -> None:
        self.ground.stop(bookie)
        if self._in_zookeeper:
            self._stores[0].unregister(bookie)

    def make_again(self, metadata: LedgerMetadata) -> Versioned[LedgerMetadata]:
        """As another tool does it."""
        if self._in_zookeeper:
            path = paths.ledger(self._stores[0]._root, ID)
            self._stores[0]._zk.delete(path)
            self._stores[0]._zk.create_below_parents(path, encode_ledger(metadata))
        else:
            self.ground.cluster.recreate_by_another_tool(ID, metadata)
        return self.context.store.read_ledger(ID)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _session(self) -> ZooKeeperStore:
        store = ZooKeeperStore(self._uri, token=lambda: secrets.token_hex(16))
        self._stores.append(store)
        return store


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.integration)])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StoreWorld]:
    address = None
    if request.param == "zookeeper":
        address = request.getfixturevalue("host").address
    world = StoreWorld(tmp_path, address)
    yield world
    world.close()


class Lives:
    """The old ledger, whose writer still lives; and the new one, once it is made."""

    def __init__(self, world: StoreWorld) -> None:
        self.world = world
        self.old = lifecycle.create_ledger(world.context, USUAL, ledger_id=ID)
        self.known = self.old._pipeline.versioned
        self.old.append(b"old 0")
        self.second: Versioned[LedgerMetadata] | None = None
        self._form = lifecycle.create_ledger(world.context, USUAL).metadata

    def close_old(self) -> Versioned[LedgerMetadata]:
        self.old.close()
        return self.old._pipeline.versioned

    def make_again(self, *, without: BookieId | None = None) -> LedgerWriter:
        """The second life of the id, on other bookies than this one; a writer of it, which has
        appended two entries.
        """
        while without in self._form.last_fragment.ensemble:
            self._form = lifecycle.create_ledger(self.world.context, USUAL).metadata
        self.second = self.world.make_again(self._form)
        client = self.world.client()
        writer = LedgerWriter(client, Ledger.of(ID, self.second.value), self.second)
        writer.append(b"new 0")
        writer.append(b"new 1")
        return writer

    def check_untouched(self, new: LedgerWriter) -> None:
        """The new ledger is as its writer left it, and goes on."""
        assert self.world.context.store.read_ledger(ID) == self.second
        new.append(b"new 2")
        new.close()
        reader = lifecycle.open_ledger(self.world.client(), ID)
        assert [e.payload for e in reader.entries()] == [b"new 0", b"new 1", b"new 2"]


@pytest.fixture
def lives(world: StoreWorld) -> Lives:
    return Lives(world)


# Writers


def test_an_old_writer_does_not_close_the_new_ledger(lives: Lives) -> None:
    new = lives.make_again()
    assert lives.second is not None
    assert lives.known.version == lives.second.version == 0

    with pytest.raises(NoSuchLedgerError) as caught:
        lives.old.close()

    assert caught.value.ledger_id == ID
    assert "created another with the same id" in caught.value.message
    assert "Open the ledger again" in caught.value.message
    lives.check_untouched(new)


def test_what_an_old_writer_appends_is_not_in_the_new_ledger(lives: Lives) -> None:
    new = lives.make_again()

    with suppress(NoSuchLedgerError):  # it hears of the deletion before, or soon after
        lives.old.append(b"old 1")

    lives.check_untouched(new)
    lives.old.abandon()


def test_an_old_writer_does_not_change_the_ensemble_of_the_new_ledger(lives: Lives) -> None:
    lost = lives.old.metadata.last_fragment.ensemble[0]
    new = lives.make_again(without=lost)  # whose writer would replace it

    def append_on() -> None:
        lives.world.ground.until(lambda: lives.old.append(b"old") < 0)

    lives.world.stop(lost)
    # By the metadata, or by the message of the deletion, whichever comes first.
    with pytest.raises(NoSuchLedgerError):
        append_on()

    assert lives.world.context.store.read_ledger(ID) == lives.second
    lives.old.abandon()
    new.abandon()


# Recoveries


def test_an_old_recovery_does_not_flag_the_new_ledger(lives: Lives) -> None:
    new = lives.make_again()

    with another_is_there():
        recover_ledger(lives.world.client(), ID, lives.known)

    lives.check_untouched(new)


def test_an_old_recovery_does_not_close_the_new_ledger(lives: Lives) -> None:
    made: list[LedgerWriter] = []
    first_fence = At("put_if_absent", lambda: made.append(lives.make_again()), only=[0])

    with another_is_there():
        recover_ledger(lives.world.client(first_fence), ID)

    lives.check_untouched(made[0])


def test_an_old_recovery_that_must_wait_does_not_adopt_the_end_of_the_new_ledger(
    lives: Lives,
) -> None:
    def make_again() -> None:
        for bookie in lives.old.metadata.last_fragment.ensemble:
            lives.world.stop(bookie)
        lives.second = lives.world.make_again(lives._form.closed(EntryId(-1), 0))

    with another_is_there():
        recover_ledger(lives.world.client(At("put_if_absent", make_again, only=[0])), ID)

    assert lives.world.context.store.read_ledger(ID) == lives.second
    lives.old.abandon()


# Deletion


def test_a_repeated_delete_does_not_delete_the_new_ledger(lives: Lives) -> None:
    new = lives.make_again()

    delete_ledger(lives.world.client().store, ID, known=lives.known)

    lives.check_untouched(new)
    lifecycle.delete_ledger(lives.world.client(), ID)
    with pytest.raises(NoSuchLedgerError):
        lives.world.context.store.read_ledger(ID)
    with pytest.raises(LedgerExistsError) as caught:
        lifecycle.create_ledger(lives.world.client(), USUAL, ledger_id=ID)
    assert caught.value.facts.get("was_used")
    lifecycle.delete_ledger(lives.world.client(), ID)


def test_a_ledger_of_another_client_can_be_deleted_as_it_is(world: StoreWorld) -> None:
    metadata = lifecycle.create_ledger(world.context, USUAL).metadata
    lifecycle.create_ledger(world.context, USUAL, ledger_id=ID).close()
    world.make_again(replace(metadata, custom_metadata={}))

    lifecycle.delete_ledger(world.client(), ID, even_if_alive=True)

    with pytest.raises(NoSuchLedgerError):
        world.context.store.read_ledger(ID)


# Readers


def test_an_old_reader_does_not_slide_over_into_the_new_ledger(lives: Lives) -> None:
    lives.old.append(b"old 1")
    reader = lifecycle.open_ledger_no_recovery(lives.world.client(), ID)
    following = reader.tail()
    assert next(following).payload == b"old 0"
    lives.make_again().close()

    with another_is_there():
        reader.refresh()
    with another_is_there():
        list(following)
    assert [entry.payload for entry in reader.entries()] == [b"old 0"]
    lives.old.abandon()


def test_an_old_reader_whose_files_are_gone_reads_nothing_of_the_new_ledger(lives: Lives) -> None:
    key = lives.old._pipeline.ledger.key
    lives.close_old()
    reader = lifecycle.open_ledger(lives.world.client(), ID)
    lives.make_again().close()
    for bookie in lives.world.ground.bookie_ids:
        shutil.rmtree(
            lives.world.ground.root(bookie) / LedgerPaths(key).directory, ignore_errors=True
        )

    with pytest.raises((NoSuchLedgerError, EntryUnreadableError)):
        list(reader.entries())
    with another_is_there():
        reader._context.ledger(ID, reader.metadata.nonce)


def test_what_was_listed_before_does_not_show_the_new_ledger(lives: Lives) -> None:
    info = LedgerInfo.of(ID, lives.known.value, lives.world.client(), lambda table: table)
    lives.make_again().close()

    with another_is_there():
        info.fragments_arrow()
    with another_is_there():
        info.slots_arrow()
    lives.old.abandon()


# Replication


class Ended(Protocol):
    """The result of any piece of work."""

    @property
    def status(self) -> Outcome: ...

    @property
    def reason(self) -> str | None: ...


def _fragment_work(lives: Lives, known: Versioned[LedgerMetadata]) -> FragmentWork:
    lost = known.value.last_fragment.ensemble[0]
    lives.world.stop(lost)
    return FragmentWork(ID, EntryId(0), (lost,), None, False, None, nonce=known.value.nonce)


def _copied(lives: Lives, known: Versioned[LedgerMetadata]) -> Callable[[], Sequence[Ended]]:
    work = _fragment_work(lives, known)
    return lambda: rereplicate_fragment(lives.world.client(), work)


def _copied_piece(lives: Lives, known: Versioned[LedgerMetadata]) -> Callable[[], Sequence[Ended]]:
    context = lives.world.client()
    work = replace(_fragment_work(lives, known), size_bytes=2)
    alive = context.bookies.registrations()
    targets = Targets(context.bookies, alive, work.lost, None)
    piece = next(iter(pieces_of(work, known.value, targets.choose, 1)))
    return lambda: copy_piece(context, piece)


def _repaired(lives: Lives, known: Versioned[LedgerMetadata]) -> Callable[[], Sequence[Ended]]:
    (check,) = check_works(lives.world.client(), [ID], 100)
    return lambda: repair_one(lives.world.client(), RepairWork(check, dry_run=False))


def _checked(lives: Lives, known: Versioned[LedgerMetadata]) -> Callable[[], Sequence[Ended]]:
    (check,) = check_works(lives.world.client(), [ID], 100)
    return lambda: check_one(lives.world.client(), check)


@pytest.mark.parametrize("plan", [_copied, _copied_piece, _repaired, _checked])
def test_work_that_was_planned_before_ends_as_gone(
    lives: Lives, plan: Callable[[Lives, Versioned[LedgerMetadata]], Callable[[], Sequence[Ended]]]
) -> None:
    lives.old.append(b"old 1")
    carry_out = plan(lives, lives.close_old())
    second = lives.world.make_again(lives._form)

    rows = carry_out()

    assert [row.status for row in rows] == ["gone"]
    assert lives.world.context.store.read_ledger(ID) == second


def test_a_recovery_that_was_planned_before_ends_as_gone(lives: Lives) -> None:
    work = RecoverWork(ID, lives.known)
    new = lives.make_again()

    (row,) = recover_one(lives.world.client(), work)

    assert row.status == "gone"
    lives.check_untouched(new)


def test_copies_for_the_old_ledger_are_not_published_in_the_new_one(lives: Lives) -> None:
    closed = lives.close_old()
    work = _fragment_work(lives, closed)
    made: list[Versioned[LedgerMetadata]] = []
    # With the same end, so that nothing but the nonce tells one from the other.
    form = closed.value.with_custom(**{NONCE: lives._form.custom_metadata[NONCE]})
    copying = At(
        None, lambda: made.append(lives.world.make_again(form)), within="/copies/", only=[0]
    )

    (row,) = rereplicate_fragment(lives.world.client(copying), work)

    assert row.status == "gone"
    assert lives.world.context.store.read_ledger(ID) == made[0]


def test_a_recovery_of_a_bookie_reports_the_old_ledger_as_gone_and_goes_no_further(
    lives: Lives,
) -> None:
    lost = lives.old.metadata.last_fragment.ensemble[0]
    lives.world.stop(lost)
    # The lost bookie is in the new one as well, and its end is fixed: there would be work.
    form = lives.known.value.closed(EntryId(0), 5).with_custom(
        **{NONCE: lives._form.custom_metadata[NONCE]}
    )

    first = threading.Lock()

    def make_again() -> None:
        with first:  # another fence waits as well: it may not close the old ledger meanwhile
            if lives.second is None:
                lives.second = lives.world.make_again(form)

    client = lives.world.client(At("put_if_absent", make_again))
    wish = BookieRecovery((lost,), ledger_ids=(ID,))
    report = recover_bookie(client, LocalRunner(client), wish)

    assert [(row.action, row.status) for row in report.rows] == [("recover", "gone")]
    assert lives.world.context.store.read_ledger(ID) == lives.second
    lives.old.abandon()


# Files


def test_fences_copies_and_entries_of_two_lives_never_mix(lives: Lives) -> None:
    old_key = lives.old._pipeline.ledger.key
    old = Ledger.of(ID, lives.known.value)
    new = lives.make_again()
    new_key = new._pipeline.ledger.key
    for bookie in old.metadata.last_fragment.ensemble:  # of five, so some have both
        log_of(lives.world.context, bookie, old).fence()

    lives.check_untouched(new)  # the fences of the old one are none of its own

    for bookie in lives.world.ground.bookie_ids:
        for path in lives.world.ground.files(bookie):
            key = new_key if new_key.nonce in str(path) else old_key
            payloads = path.read_bytes()
            assert (b"new 0" in payloads) <= (key is new_key)
            assert (b"old 0" in payloads) <= (key is old_key)
    with pytest.raises(NoSuchLedgerError):
        lives.old.close()


def test_what_lies_in_the_directory_of_another_life_is_not_read(lives: Lives) -> None:
    old_key = lives.old._pipeline.ledger.key
    lives.close_old()
    new = lives.make_again()
    new.close()
    new_key = new._pipeline.ledger.key
    holder = lives.known.value.last_fragment.ensemble[0]
    source = lives.world.ground.root(holder) / LedgerPaths(old_key).directory
    for bookie in new.metadata.last_fragment.ensemble:
        root = lives.world.ground.root(bookie)
        shutil.rmtree(root / LedgerPaths(new_key).directory)
        shutil.copytree(source, root / LedgerPaths(new_key).directory)

    reader = lifecycle.open_ledger(lives.world.client(), ID)
    with pytest.raises(EntryUnreadableError):
        list(reader.entries())
    assert reader.metadata.state is LedgerState.CLOSED


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
            self.store,
            Partition(storage),
            bookie,
            token=self.runtime.token,
            moved_from=lambda uri: Partition(open_storage(uri)),
        )
        self.store.register(Registration(bookie, storage.uri, marker.incarnation))

    def client(self) -> ClientContext:
        def opened(uri: str, bookie_client: BookieClient) -> FileBookie:
            return FileBookie(
                BoundedStorage(open_storage(uri, None, bookie_client.bookie_id), bookie_client)
            )

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

    def opened(_: str, bookie_client: BookieClient) -> FileBookie:
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
