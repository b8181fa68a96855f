"""Garbage collection: what goes, and everything that has to stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from spark_bookkeeper.agent.collection import Collection, GarbageReport, collect_garbage
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import LedgerFencedError, MetadataUnavailableError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Cookie, Versioned
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.collection import (
    collections_of,
    may_be_named,
    with_collection,
    without_collection,
)
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import rereplicate
from spark_bookkeeper.replication.check_ledgers import CheckWork, check_one
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from tests import worlds
from tests.worlds import USUAL, failing, payloads, there

EVERY_STEP = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.full)])
"""Of a table of steps the plain run takes some, and ``full`` all."""


@pytest.fixture
def ground(inline_ground: Ground) -> Ground:
    return inline_ground


def written(ground: Ground, count: int = 3, *, close: bool = True) -> LedgerWriter:
    """By a client of its own, which may live on."""
    return worlds.written(ground.client(), count, close=close)


def directories(ground: Ground, ledger_id: int) -> list[Path]:
    return sorted(ground.directory.glob(f"*/ledgers/{ledger_id}-*"))


def assert_all_is_left(ground: Ground, writer: LedgerWriter, report: GarbageReport) -> None:
    assert {row.status for row in report.rows} == {Outcome.LEFT}
    assert len(directories(ground, writer.ledger_id)) == 3


def deleted(report: GarbageReport) -> list[tuple[int, str | None]]:
    return [(row.ledger_id, row.source) for row in report.rows if row.status is Outcome.DELETED]


def moved(ground: Ground, ledger_id: int) -> tuple[BookieId, BookieId]:
    """Its first bookie's copies are made again on the spare one, and stay where they were."""
    (fragment,) = metadata(ground, ledger_id).fragments
    source = fragment.ensemble[0]
    (target,) = set(ground.bookie_ids) - set(fragment.ensemble)
    move(ground.context, source)
    return source, target


def move(context: ClientContext, source: BookieId) -> None:
    recover_bookie(context, LocalRunner(context), BookieRecovery((source,), even_if_alive=True))


def metadata(ground: Ground, ledger_id: int) -> LedgerMetadata:
    return ground.context.store.read_ledger(LedgerId(ledger_id)).value


# Deleted ledgers


def test_progress_is_of_one_bookie_and_counts_what_was_looked_at(ground: Ground) -> None:
    for _ in range(3):
        written(ground)
    told: dict[str, list[tuple[int, int]]] = {}

    collect_garbage(
        ground.context,
        progress=lambda phase, done, total, _: told.setdefault(phase, []).append((done, total)),
    )

    assert set(told) == {f"collecting garbage of {bookie}" for bookie in ground.bookie_ids}
    for counts in told.values():
        total = counts[0][1]
        assert counts == [(done, total) for done in range(total + 1)]


def test_a_deleted_ledger_goes_from_every_bookie_and_others_stay(ground: Ground) -> None:
    gone, open_, kept = written(ground), written(ground, close=False), written(ground)
    delete_ledger(ground.context, gone.ledger_id)
    planned = collect_garbage(ground.context, wish=Collection(dry_run=True))
    assert len(directories(ground, gone.ledger_id)) == 3

    report = collect_garbage(ground.context)

    assert {ledger_id for ledger_id, _ in deleted(report)} == {gone.ledger_id}
    assert [row.bytes for row in report.rows] == [row.bytes for row in planned.rows]
    assert all(row.status is Outcome.PLANNED for row in planned.rows)
    assert sum(row.bytes for row in report.rows) > 0
    assert directories(ground, gone.ledger_id) == []
    assert len(list(ground.directory.glob(f"*/retired/{gone.ledger_id}-*"))) == 3
    open_.append(b"more")
    open_.close()
    assert payloads(ground, open_.ledger_id) == [b"0", b"1", b"2", b"more"]
    assert payloads(ground, kept.ledger_id) == [b"0", b"1", b"2"]
    assert collect_garbage(ground.context).rows == ()


def test_a_writer_of_a_deleted_ledger_gets_nothing_stored_afterwards(ground: Ground) -> None:
    writer = written(ground, close=False)
    delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)
    collect_garbage(ground.context)

    # What it tells by itself of how far it is acknowledged may have met the fence before.
    with pytest.raises((NoSuchLedgerError, LedgerFencedError)):
        writer.append(b"late")

    assert ground.files(ground.bookie_ids[0], "slots") == []


def test_a_ledger_that_is_being_created_is_not_touched(ground: Ground) -> None:
    """At every operation of a create, an append and a close, the collector comes by."""
    collector = ground.client()

    def collect() -> None:
        assert deleted(collect_garbage(collector)) == []

    def create(number: int) -> At:
        meeting = At(number, collect)
        writer = lifecycle.create_ledger(ground.client(None, meeting), USUAL)
        writer.append(b"0")
        writer.close()
        assert payloads(ground, writer.ledger_id) == [b"0"]
        return meeting

    at_every_operation(create)


@EVERY_STEP
def test_killed_at_every_step_the_next_one_ends_it(ground: Ground, stride: int) -> None:
    number = 0
    while True:
        writer = written(ground, 2)
        delete_ledger(ground.context, writer.ledger_id)
        kill = KillAt(number)
        try:
            collect_garbage(ground.client(None, kill))
        except Killed:
            number += stride
        else:
            break
        slots = [len(list(d.glob("slots/*"))) for d in directories(ground, writer.ledger_id)]
        assert all(count in (0, 2, 3) for count in slots)
        collect_garbage(ground.context)
        assert directories(ground, writer.ledger_id) == []
    assert number > 20


class At:
    """A hook that does something at the n-th operation, counted from 1."""

    def __init__(self, number: int, act: Callable[..., object], *arguments: object) -> None:
        self._number, self._act = number, partial(act, *arguments)
        self.operations = 0

    def __call__(self, place: str, operation: str, path: str) -> None:
        self.operations += 1
        if self.operations == self._number:
            self._act()


def at_every_operation(run: Callable[[int], At], stride: int = 1) -> None:
    """Run something that is met at its first operation, and again at later ones, up to its end."""
    number = 1
    while run(number).operations >= number:
        number += stride
    assert number > 10


@pytest.mark.parametrize("operation", ["read_ledger", "instance_id", "read_cookie"])
def test_without_an_answer_of_the_metadata_store_nothing_goes(
    ground: Ground, operation: str
) -> None:
    writer = written(ground)
    delete_ledger(ground.context, writer.ledger_id)
    no_answer = failing(operation, lambda _: MetadataUnavailableError(f"no answer to {operation}"))

    report = collect_garbage(ground.client(None, no_answer))

    assert_all_is_left(ground, writer, report)


def test_a_server_that_lags_behind_is_made_to_catch_up_before_it_is_believed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells of no ledger, and of another life of it: neither deletes what is there."""
    writer = written(ground)
    store = ground.context.store
    now = store.read_ledger(writer.ledger_id)
    earlier = now.value.with_custom(**{"spark-bookkeeper.nonce": b"earlier"})
    for stale in (None, Versioned(earlier, 0)):
        monkeypatch.setattr(
            store, "read_ledgers", lambda ids, stale=stale: [(one, stale) for one in ids]
        )
        assert collect_garbage(ground.context).rows == ()
    assert payloads(ground, writer.ledger_id) == [b"0", b"1", b"2"]


def test_another_life_of_the_id_goes_and_the_one_that_is_there_stays(ground: Ground) -> None:
    writer = written(ground)
    other = [
        d.parent / f"{writer.ledger_id}-earlier" for d in directories(ground, writer.ledger_id)
    ]
    for directory in other:
        (directory / "slots").mkdir(parents=True)

    report = collect_garbage(ground.context)

    assert len(deleted(report)) == 3
    assert not any(directory.exists() for directory in other)
    assert payloads(ground, writer.ledger_id) == [b"0", b"1", b"2"]


def test_metadata_that_cannot_be_read_or_do_not_say_whose_they_are_keep_everything(
    ground: Ground,
) -> None:
    writer = written(ground)
    found = ground.cluster.ledgers[writer.ledger_id]
    custom = {k: v for k, v in found.value.custom_metadata.items() if not k.endswith("nonce")}
    ground.cluster.ledgers[writer.ledger_id] = Versioned(
        replace(found.value, custom_metadata=custom), found.version
    )

    report = collect_garbage(ground.context)

    assert_all_is_left(ground, writer, report)


@pytest.mark.parametrize("what", ["instance", "no cookie", "another incarnation"])
def test_a_partition_that_is_not_this_clusters_keeps_everything(ground: Ground, what: str) -> None:
    writer = written(ground)
    delete_ledger(ground.context, writer.ledger_id)
    store = ground.context.store
    for bookie in ground.bookie_ids:
        known = there(store.read_cookie(bookie))
        cookie = known.value
        if what == "no cookie":
            store.delete_cookie(bookie, known.version)
            continue
        changed = (
            Cookie(bookie, cookie.root_uri, cookie.incarnation, "another-cluster")
            if what == "instance"
            else Cookie(bookie, cookie.root_uri, "f" * 32, cookie.instance_id)
        )
        store.write_cookie(changed, known.version)

    report = collect_garbage(ground.context)

    assert_all_is_left(ground, writer, report)


def test_a_cluster_that_is_formatted_meanwhile_deletes_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ledgers are gone, and the cluster is another one by the time that is read."""
    writer = written(ground)
    store = ground.context.store
    ids = iter([store.instance_id()] * 4)
    monkeypatch.setattr(store, "instance_id", lambda: next(ids, "another-cluster"))
    ground.cluster.ledgers.clear()

    report = collect_garbage(ground.context, list(ground.bookie_ids) * 2)

    assert all(row.status is not Outcome.DELETED for row in report.rows[4:])
    assert directories(ground, writer.ledger_id) or report.rows


# Copies that nothing names


def test_copies_that_nothing_names_go_and_the_fence_stays(ground: Ground) -> None:
    writer = written(ground)
    source, target = moved(ground, writer.ledger_id)
    assert collect_garbage(ground.context, wish=Collection(dry_run=True)).counts == {"planned": 1}

    report = collect_garbage(ground.context)

    assert deleted(report) == [(writer.ledger_id, source)]
    assert [p.parent.name for p in ground.files(source)] == ["slots"]
    assert payloads(ground, writer.ledger_id) == [b"0", b"1", b"2"]
    assert ground.files(target)
    assert collect_garbage(ground.context).rows == ()
    said = collections_of(metadata(ground, writer.ledger_id), source, incarnation(ground, source))
    assert (said.tokens, said.ended) == ((), 1)
    # And the bookie can be named again afterwards.
    move(ground.context, target)
    assert source in metadata(ground, writer.ledger_id).bookies()
    assert payloads(ground, writer.ledger_id) == [b"0", b"1", b"2"]


def test_who_stops_an_agent_waits_for_no_limit_on_reading(ground: Ground) -> None:
    """One share of a large ledger is read at once, and waited for in hours then."""
    writer = written(ground, 30)
    source, _ = moved(ground, writer.ledger_id)
    runtime = StopsWhileItWaits()
    wish = Collection(bytes_per_second=1, is_stopping=lambda: runtime.is_stopping)

    report = collect_garbage(ground.client(runtime), [source], wish)

    assert runtime.is_stopping
    assert runtime.slept <= LOOK_SECONDS
    assert report.rows == ()
    assert deleted(collect_garbage(ground.context)) == [(writer.ledger_id, source)]


class StopsWhileItWaits(InlineRuntime):
    is_stopping = False

    @override
    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.is_stopping = True


def test_a_lock_is_released_also_where_nobody_said_whether_it_was_taken(ground: Ground) -> None:
    writer = written(ground)
    moved(ground, writer.ledger_id)
    lose = failing("lock", lambda _: MetadataUnavailableError("the answer was lost"))
    ground.after.append(lose)
    with suppress(MetadataUnavailableError):
        collect_garbage(ground.context)
    ground.after.remove(lose)

    assert ("metadata", "lock") in {(step.place, step.operation) for step in ground.steps}
    assert ground.context.store.underreplication.locks() == {}


def incarnation(ground: Ground, bookie: BookieId) -> str:
    return ground.context.bookies.registrations()[bookie].incarnation


def test_copies_stay_while_the_ledger_is_open_or_any_other_replica_is_not_whole(
    ground: Ground,
) -> None:
    writer = written(ground)
    source, target = moved(ground, writer.ledger_id)
    before = ground.files(source)
    ground.stop(target)
    assert deleted(collect_garbage(ground.context)) == []
    ground.start(target)
    (copy,) = ground.files(target, "copies")
    content = copy.read_bytes()
    copy.write_bytes(content.replace(b"1", b"7"))
    report = collect_garbage(ground.context)
    assert deleted(report) == []
    assert "not every replica is whole" in str([row.reason for row in report.rows])
    copy.write_bytes(content)
    ground.context.store.underreplication.mark(writer.ledger_id, [target], 1)
    assert deleted(collect_garbage(ground.context)) == []
    task = there(ground.context.store.underreplication.read(writer.ledger_id))
    ground.context.store.underreplication.remove(task)
    other = ground.client()
    holder = Holder("a worker")
    other.store.underreplication.lock(writer.ledger_id, holder)
    assert deleted(collect_garbage(ground.context)) == []
    other.store.underreplication.unlock(holder)
    assert ground.files(source) == before
    assert deleted(collect_garbage(ground.context)) == [(writer.ledger_id, source)]


def named_data_is_there(ground: Ground, ledger_id: int) -> None:
    """Every bookie that is named has all of its share, and it can be read."""
    report = check_one(ground.context, CheckWork(LedgerId(ledger_id), 100))
    assert {finding.status for finding in report} == {Outcome.HEALTHY}, report


@EVERY_STEP
@pytest.mark.parametrize("who", ["copier", "collector"])
def test_a_bookie_that_is_about_to_be_named_keeps_what_was_copied_to_it(
    tmp_path: Path, who: str, stride: int
) -> None:
    """The source's copies are moved away and back again; at every operation of the one that
    moves them back the collector comes by, and the other way round.
    """
    met_at_every_step(tmp_path, who, stride)


def met_at_every_step(tmp_path: Path, who: str, stride: int) -> None:
    def meet(number: int) -> At:
        ground = Ground(tmp_path / f"{number}", runtime=InlineRuntime())
        writer = written(ground, 2)
        source, target = moved(ground, writer.ledger_id)

        def collect(context: ClientContext) -> None:
            collect_garbage(context, [source])

        def back(context: ClientContext) -> None:
            move(context, target)

        first, second = (back, collect) if who == "copier" else (collect, back)
        meeting = At(number, second, ground.client())
        first(ground.client(None, meeting))
        named_data_is_there(ground, writer.ledger_id)
        assert payloads(ground, writer.ledger_id) == [b"0", b"1"]
        return meeting

    at_every_operation(meet, stride)


@pytest.mark.full
def test_without_gc_register_a_named_bookie_would_lose_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereplicate, "may_be_named", lambda *_: True)
    monkeypatch.setattr(rereplicate, "being_removed", lambda *_: {})

    with pytest.raises(AssertionError):
        met_at_every_step(tmp_path, "collector", 1)


@EVERY_STEP
def test_a_collector_that_was_killed_keeps_its_bookie_from_being_named(
    ground: Ground, stride: int
) -> None:
    number = 0
    while True:
        writer = written(ground, 2)
        source, target = moved(ground, writer.ledger_id)
        kill = KillAt(number)
        try:
            collect_garbage(ground.client(None, kill), [source])
        except Killed:
            number += stride
        else:
            break
        named_data_is_there(ground, writer.ledger_id)
        value = metadata(ground, writer.ledger_id)
        if not may_be_named(value, value, source):
            move(ground.context, target)
            assert source not in metadata(ground, writer.ledger_id).bookies()
        collect_garbage(ground.context)
        assert {p.parent.name for p in ground.files(source) if "slots" not in str(p)} == set()
        named_data_is_there(ground, writer.ledger_id)
        delete_ledger(ground.context, writer.ledger_id)
        collect_garbage(ground.context)
        for bookie in ground.bookie_ids:
            assert ground.files(bookie) == []
    assert number > 20


@EVERY_STEP
def test_a_recovery_that_copies_is_not_disturbed(tmp_path: Path, stride: int) -> None:
    """At every operation of a recovery that replaces a lost bookie, the collector comes by."""

    def recover(number: int) -> At:
        ground = Ground(tmp_path / f"{number}", runtime=InlineRuntime())
        writer = written(ground, 2, close=False)
        ground.stop(metadata(ground, writer.ledger_id).fragments[0].ensemble[0], destroy=True)
        meeting = At(number, collect_garbage, ground.client())
        closed = recover_ledger(ground.client(None, meeting), writer.ledger_id).value
        assert closed.last_entry_id == 1
        assert payloads(ground, writer.ledger_id) == [b"0", b"1"]
        return meeting

    at_every_operation(recover, stride)


def test_an_ensemble_change_is_not_disturbed(tmp_path: Path) -> None:
    """At every operation of a writer that loses a bookie, the collector comes by."""

    def write(number: int) -> At:
        ground = Ground(tmp_path / f"{number}", runtime=InlineRuntime())
        meeting = At(number, collect_garbage, ground.client())
        writer = lifecycle.create_ledger(ground.client(None, meeting), USUAL)
        writer.append(b"0")
        ground.stop(metadata(ground, writer.ledger_id).fragments[0].ensemble[1])
        writer.append(b"1")
        writer.close()
        assert payloads(ground, writer.ledger_id) == [b"0", b"1"]
        return meeting

    at_every_operation(write, 6)


def test_a_collector_gives_way_where_copies_come_to_be_lacking(ground: Ground) -> None:
    """It reads every replica under the lock that a replication worker waits for."""
    writer = written(ground)
    source, _ = moved(ground, writer.ledger_id)
    tree = ground.context.store.underreplication
    read: set[str] = set()
    has_lock = False

    def marks(place: str, operation: str, path: str) -> None:
        nonlocal has_lock
        has_lock |= operation == "lock"
        if has_lock and place in ground.bookie_ids:
            if not read:
                tree.mark(LedgerId(writer.ledger_id), [BookieId(place)], 1)
            read.add(place)

    report = collect_garbage(ground.client(InlineRuntime(), marks), [source])

    (row,) = report.rows
    assert (row.status, "under-replicated" in str(row.reason)) == (Outcome.LEFT, True)
    assert len(read) == 1, "the others are not read any more"
    assert tree.locks() == {}


# Leftovers


def aged(path: Path) -> None:
    os.utime(path, (1, 1))


def test_leftovers_go_when_they_are_old_and_only_from_closed_ledgers(ground: Ground) -> None:
    closed, open_ = written(ground), written(ground, close=False)
    made = []
    for writer in (closed, open_):
        for directory in directories(ground, writer.ledger_id):
            (directory / "parts").mkdir(exist_ok=True)
            for path in (directory / "parts/a-0-0.arrow", directory / "slots/.x.1-2.tmp"):
                path.write_bytes(b"left")
                made.append(path)
    assert deleted(collect_garbage(ground.context)) == []
    for path in made:
        aged(path)

    report = collect_garbage(ground.context)

    assert {ledger_id for ledger_id, _ in deleted(report)} == {closed.ledger_id}
    assert sum(row.bytes for row in report.rows) == 3 * 8
    there = [path for path in made if path.exists()]
    assert all(f"/{open_.ledger_id}-" in str(path) for path in there)
    assert len(there) == 6
    open_.append(b"more")
    open_.close()
    assert payloads(ground, closed.ledger_id) == [b"0", b"1", b"2"]


def test_leftovers_are_not_old_because_a_clock_is_ahead(ground: Ground) -> None:
    writer = written(ground)
    ground.cluster.clock_ms = ground.runtime.wall_ms
    for directory in directories(ground, writer.ledger_id):
        (directory / "slots/.x.1-2.tmp").write_bytes(b"on its way")
    ahead = InlineRuntime()
    ahead.sleep(30 * 86_400)

    assert deleted(collect_garbage(ground.client(ahead))) == []


def test_only_what_is_brought_now_counts_where_copies_were_removed_or_it_was_formatted(
    ground: Ground,
) -> None:
    """[copy_era] for him who is about to have a bookie named; whoever reads sees all."""
    writer = lifecycle.create_ledger(ground.context, Quorum(2, 2, 2))
    writer.close()
    ledger = Ledger.of(writer.ledger_id, writer.metadata)
    named = writer.metadata.last_fragment.ensemble[0]
    stranger = next(b for b in ground.bookie_ids if b not in writer.metadata.last_fragment.ensemble)
    bookies = ground.context.bookies

    def cleared(bookie: BookieId, incarnation: str) -> Ledger:
        begun = there(with_collection(ledger.metadata, bookie, incarnation, "token"))
        return ledger.with_metadata(without_collection(begun, bookie, incarnation, "token"))

    assert not bookies.ref(named, ledger).era_alone
    assert not bookies.ref(stranger, ledger, "fresh").era_alone
    assert bookies.ref(named, ledger, "formatted").era_alone
    after = cleared(stranger, "fresh")
    assert bookies.ref(stranger, after, "fresh").era_alone
    assert bookies.ref(stranger, after, "fresh").era != bookies.ref(stranger, ledger, "fresh").era
