"""Manual bookie recovery, step by step, on real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    InvalidArgumentError,
    LedgerFencedError,
    MetadataFormatError,
)
from spark_bookkeeper.metadata.store import LedgerStore, Registration, Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.underreplication import SKIPPED
from spark_bookkeeper.replication import rereplicate
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.pieces import PIECE_BYTES
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed
from spark_bookkeeper.testing.queue_bookie import BookieServer, QueueBookie
from tests.hooks import At
from tests.replication.recovering import recovered, with_fragments, written_and_lost
from tests.snapshots import Snapshot
from tests.support.rows import wait_for_every_copy
from tests.whole import assert_whole
from tests.worlds import USUAL, payloads, written


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 1), (5, 2, 2)])
def test_every_share_of_a_lost_bookie_is_made_again(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=6)
    writers = [written(ground, quorum=Quorum(*sizes)) for _ in range(4)]
    lost = writers[0].metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost)

    assert report.is_complete
    affected = {w.ledger_id for w in writers if lost in w.metadata.bookies()}
    assert {row.ledger_id for row in report.rows} == affected
    assert {row.status for row in report.rows} == {"replicated"}
    for writer in writers:
        assert_whole(ground, writer, without=[lost])
        assert payloads(ground, writer) == [b"%d" % i for i in range(10)]


def test_run_again_there_is_nothing_to_do(ground: Ground) -> None:
    _, lost = written_and_lost(ground)
    recovered(ground, lost)
    ground.forget()

    report = recovered(ground, lost)

    assert report.rows == ()
    assert report.is_complete
    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0


def test_one_cas_for_each_fragment(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = with_fragments(ground)
    lost = writer.metadata.last_fragment.ensemble[2]
    fragments = [f for f in writer.metadata.fragments if lost in f.ensemble]
    ground.stop(lost, destroy=True)
    ground.forget()

    report = recovered(ground, lost)

    assert len(fragments) >= 3
    assert ground.count()["write_ledger"] == len(fragments) == len(report.rows)
    made = {(row.first_entry_id, row.target) for row in report.rows}
    found = check_ledgers(ground.context, LocalRunner(ground.context), None, 100)
    status = {(row.first_entry_id, row.source): row.status for row in found.rows}
    assert {status[share] for share in made} == {"healthy"}


def test_two_bookies_lost_at_once_take_one_cas_too(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = written(ground, quorum=Quorum(4, 3, 2))
    lost = writer.metadata.last_fragment.ensemble[1:3]
    for bookie in lost:
        ground.stop(bookie, destroy=True)
    ground.forget()

    report = recovered(ground, *lost)

    assert [row.status for row in report.rows] == ["replicated", "replicated"]
    assert len({row.target for row in report.rows}) == 2
    assert ground.count()["write_ledger"] == 1
    assert_whole(ground, writer, without=lost)


class InOrder(LocalRunner):
    """Notes in which order fragments are worked on."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.order: list[int] = []

    @override
    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        self.order += [item.ledger_id for item in items if isinstance(item, FragmentWork)]
        yield from super().run(step, items, progress)


def test_what_has_the_fewest_copies_on_bookies_that_are_alive_goes_first(tmp_path: Path) -> None:
    """Also when those that are down were not named, or were formatted again since."""
    ground = Ground(tmp_path, bookies=3)
    safe, down, anew, named = (written(ground) for _ in range(4))
    assert safe.metadata.bookies() == set(ground.bookie_ids)
    lost, other, third = map(BookieId, ground.bookie_ids)
    for _ in range(4):
        ground.add_bookie()
    gone, formatted, fourth, spare = ground.bookie_ids[3:]

    def moved(writer: LedgerWriter, *moves: tuple[BookieId, BookieId]) -> None:
        for source, target in moves:
            assert recovered(
                ground, source, target=target, ledger_ids=(writer.ledger_id,), even_if_alive=True
            ).is_complete

    moved(down, (other, gone))  # two live copies less: the named one, and one that is down
    moved(anew, (other, formatted), (third, gone))  # none is left but on a partition that is new
    moved(named, (other, fourth))
    for bookie in (lost, gone):
        ground.stop(bookie)
    ground.format(formatted)
    client = ground.client()
    runner = InOrder(client)

    recover_bookie(client, runner, BookieRecovery((lost,), spare))

    assert runner.order == [writer.ledger_id for writer in (anew, down, safe, named)], (
        "none, one, two and two live copies"
    )


def test_a_given_target_takes_everything(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = written(ground)
    outside = sorted(set(ground.bookie_ids) - writer.metadata.bookies())
    lost = writer.metadata.last_fragment.ensemble[1]
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost, target=outside[-1])

    assert [row.target for row in report.rows] == [outside[-1]]
    assert_whole(ground, writer, without=[lost])


def test_what_is_no_fit_target_is_refused_before_anything_changes(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = written(ground)
    lost, inside, _ = writer.metadata.last_fragment.ensemble
    readonly, *_ = sorted(set(ground.bookie_ids) - writer.metadata.bookies())
    ground.stop(lost, destroy=True)
    ground.stop(readonly)
    ground.start(readonly, is_readonly=True)
    ground.forget()

    for target, why in {
        inside: "is already in the ensemble of ledger 0 fragment 0",
        readonly: "is read-only",
        "10.9.9.9:3181": "is not registered",
        lost: "is one of the bookies to recover",
    }.items():
        with pytest.raises(InvalidArgumentError, match=why):
            recovered(ground, lost, target=BookieId(target))
    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0


def test_a_bookie_that_is_alive_is_refused_unless_that_is_meant(ground: Ground) -> None:
    writer = written(ground)
    alive = writer.metadata.last_fragment.ensemble[0]

    with pytest.raises(InvalidArgumentError, match="--even-if-alive"):
        recovered(ground, alive)
    report = recovered(ground, alive, even_if_alive=True)

    assert [row.status for row in report.rows] == ["replicated"]
    assert_whole(ground, writer, without=[alive])


def test_a_bookie_that_nobody_knows_is_refused(ground: Ground) -> None:
    with pytest.raises(InvalidArgumentError, match="is unknown"):
        recovered(ground, "10.9.9.9:3181")


def test_only_the_ledgers_asked_for(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writers = [written(ground) for _ in range(3)]
    ground.add_bookie()
    lost = ground.bookie_ids[0]
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost, ledger_ids=(writers[1].ledger_id,))

    assert [row.ledger_id for row in report.rows] == [writers[1].ledger_id]
    assert_whole(ground, writers[1], without=[lost])
    with pytest.raises(InvalidArgumentError, match="ledger 99 does not exist"):
        recovered(ground, lost, ledger_ids=(99,))


# Open ledgers


def test_an_open_ledger_is_recovered_first(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer, lost = written_and_lost(ground, close=False)

    report = recovered(ground, lost)

    assert [(r.action, r.status) for r in report.rows] == [
        ("recover", "closed"),
        ("copy", "replicated"),
    ]
    assert ground.context.store.read_ledger(writer.ledger_id).value.is_closed
    assert_whole(ground, writer, without=[lost])
    assert payloads(ground, writer) == [b"%d" % i for i in range(10)]


def test_r13_open_ledgers_can_be_skipped_and_are_said_to_be_left(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer = with_fragments(ground, close=False)
    lost = writer.metadata.last_fragment.ensemble[2]
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost, skip_open_ledgers=True)

    assert not report.is_complete
    (left,) = report.unfinished
    assert left.reason == SKIPPED
    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.state is LedgerState.OPEN
    assert [lost in f.ensemble for f in metadata.fragments][-1]
    assert not any(lost in f.ensemble for f in metadata.fragments[:-1]), "fixed ones are copied"


def test_an_open_ledger_whose_last_fragment_is_elsewhere_stays_open(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = with_fragments(ground, close=False)
    earlier = writer.metadata.fragments[0].ensemble
    (lost, *_) = set(earlier) - set(writer.metadata.last_fragment.ensemble)
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost)

    assert {row.status for row in report.rows} == {"replicated"}
    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.state is LedgerState.OPEN
    assert lost not in metadata.bookies()


def test_a_ledger_that_must_wait_is_left_and_its_fixed_fragments_are_copied(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = with_fragments(ground, close=False)
    *_, other, lost = writer.metadata.last_fragment.ensemble
    assert lost in writer.metadata.fragments[0].ensemble
    ground.stop(lost, destroy=True)
    ground.stop(other)

    report = recovered(ground, lost)

    stuck = [row for row in report.unfinished if row.action == "recover"]
    assert len(stuck) == 1
    assert "must wait" in str(stuck[0].reason)
    assert {r.status for r in report.rows if r.action == "copy"} <= {"replicated"}


# Ends


def test_an_empty_ledger_is_settled_by_metadata_alone(ground: Ground) -> None:
    writer, lost = written_and_lost(ground, count=0)
    ground.forget()

    report = recovered(ground, lost)

    assert [(r.action, r.status, r.entries) for r in report.rows] == [("metadata", "replicated", 0)]
    assert ground.count()["put_if_absent"] == 0
    assert_whole(ground, writer, without=[lost])


def test_a_bookie_that_came_back_needs_nothing(ground: Ground) -> None:
    writer = written(ground)
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost)

    report = recovered(ground, lost, hooks=(At("read_ledger", lambda: ground.start(lost)),))

    assert [row.status for row in report.rows] == ["no longer needed"]
    assert report.is_complete


def test_a_ledger_deleted_meanwhile_is_gone(ground: Ground) -> None:
    for moment in ("copies", "write_ledger"):
        writer = written(ground)
        lost = writer.metadata.last_fragment.ensemble[0]
        ground.stop(lost)
        delete = partial(
            lifecycle.delete_ledger, ground.context, writer.ledger_id, even_if_alive=True
        )
        hooks = (At(moment, delete), At(None, delete, within=f"/{moment}/"))

        report = recovered(ground, lost, hooks=hooks)

        assert [row.status for row in report.rows] == ["gone"], moment
        assert report.is_complete
        ground.start(lost)


def test_a_share_without_a_source_is_unrecoverable_and_says_why(ground: Ground) -> None:
    writer = written(ground)
    for bookie in writer.metadata.last_fragment.ensemble:
        for path in ground.files(bookie, "slots"):
            path.write_bytes(path.read_bytes()[:50])
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)

    report = recovered(ground, lost)

    (row,) = report.unfinished
    assert (row.status, row.entries, row.bytes) == ("unrecoverable", 0, 0)
    assert "cannot be read from any bookie" in str(row.reason)
    assert lost in ground.context.store.read_ledger(writer.ledger_id).value.bookies()


def test_the_lost_bookies_own_storage_is_the_last_source(ground: Ground) -> None:
    writer = written(ground, quorum=Quorum(2, 2, 1))
    lost, other = writer.metadata.last_fragment.ensemble
    for path in ground.files(other, "slots"):
        path.unlink()
    ground.stop(lost)
    ground._down.discard(lost)  # its registration is gone, its disk still answers

    report = recovered(ground, lost)

    assert [row.status for row in report.rows] == ["replicated"]
    ground.stop(lost, destroy=True)
    assert payloads(ground, writer) == [b"%d" % i for i in range(10)]


def test_a_target_that_fails_is_passed_over_for_another(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer, lost = written_and_lost(ground)
    tried: list[str] = []

    def first_is_full(place: str, operation: str, path: str) -> None:
        if "/copies/" in path and operation == "put_if_absent":
            tried.append(place)
            if place == tried[0]:
                raise BookieFullError(f"bookie {place}: no space left", bookie_id=place)

    report = recovered(ground, lost, hooks=(first_is_full,))

    assert [row.status for row in report.rows] == ["replicated"]
    assert report.rows[0].target != tried[0]
    assert_whole(ground, writer, without=[lost])


def test_a_foreign_ledger_is_left_as_it_is(ground: Ground) -> None:
    writer = written(ground)
    lost = writer.metadata.last_fragment.ensemble[0]
    store = ground.context.store
    found = store.read_ledger(writer.ledger_id)
    store.write_ledger(writer.ledger_id, replace(found.value, custom_metadata={}), found)
    ground.stop(lost, destroy=True)

    plan = recovered(ground, lost, dry_run=True)
    report = recovered(ground, lost)

    for told in (plan, report):
        assert [row.status for row in told.rows] == ["left"]
        assert "written by another BookKeeper client" in str(told.rows[0].reason)


# Two at once


def test_a_share_that_somebody_else_gave_to_another_bookie_is_not_claimed(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer = written(ground, 4)
    ensemble = writer.metadata.last_fragment.ensemble
    one, other = (b for b in ground.bookie_ids if b not in ensemble)
    ground.stop(ensemble[0], destroy=True)
    work = FragmentWork(writer.ledger_id, EntryId(0), ensemble[:1], one, False, None)
    to_other = replace(work, target=other)
    meet = At("write_ledger", lambda: rereplicate_fragment(ground.client(), to_other), only=[0])

    rows = rereplicate_fragment(ground.client(None, meet), work)

    assert [(r.status, r.target) for r in rows] == [("no longer needed", None)]
    named = ground.context.store.read_ledger(writer.ledger_id).value.last_fragment.ensemble
    assert named[0] == other


def test_what_the_step_is_asked_about_other_values_changes_nothing_of_the_outcome(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who changes metadata may ask for a step as often as he likes, about whatever he has."""
    writer = written(ground, 4)
    lost = writer.metadata.last_fragment.ensemble[0]
    (free,) = set(ground.bookie_ids) - writer.metadata.bookies()
    ground.stop(lost, destroy=True)
    elsewhere = writer.metadata.with_replaced_bookie(EntryId(0), 0, BookieId("elsewhere:1"))
    joined = writer.metadata.with_replaced_bookie(EntryId(0), 1, free)
    real = update_ledger
    asked: list[LedgerMetadata] = []

    def update(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        stored = real(store, ledger_id, transform, known=known)
        for other in (elsewhere, joined):
            asked.append(other)
            with suppress(Exception):
                transform(other)
        return stored

    monkeypatch.setattr(rereplicate, "update_ledger", update)
    work = FragmentWork(writer.ledger_id, EntryId(0), (lost,), None, False, None)

    rows = rereplicate_fragment(ground.client(), work)

    assert asked == [elsewhere, joined]
    assert [(row.status, row.target) for row in rows] == [("replicated", free)]


def test_r11_a_target_formatted_again_since_somebody_else_chose_it_is_refused(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = with_fragments(ground)
    fragments = writer.metadata.fragments
    lost = fragments[0].ensemble[2]
    assert lost == fragments[1].ensemble[2]
    target = next(b for b in ground.bookie_ids if b not in writer.metadata.bookies())
    chosen = ground.context.bookies.registrations()[target].incarnation
    ground.stop(lost, destroy=True)
    work = FragmentWork(writer.ledger_id, EntryId(0), (lost,), target, False, None)

    def meet() -> None:
        second = replace(work, first_entry_id=fragments[1].first_entry_id)
        rows = rereplicate_fragment(ground.client(), second)
        assert [r.status for r in rows] == ["replicated"]
        ground.format(target)

    client = ground.client(None, At("registrations", meet, only=[0]))
    (row,) = rereplicate_fragment(client, work)

    assert row.status == "left"
    assert "formatted again" in str(row.reason)
    ledger, _ = ground.client().ledger(writer.ledger_id)
    assert ledger.incarnations[target] == chosen, "nobody believes the empty one to hold entries"


def test_two_who_copy_a_part_to_one_bookie_at_once_both_succeed(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    whole = pa.table({"id": pa.array(range(20_000), pa.int64())})
    with lifecycle.create_ledger(
        ground.context, USUAL, schema=whole.schema, entry_target_bytes=10_000
    ) as writer:
        writer.append(whole)
    lost = writer.metadata.last_fragment.ensemble[:1]
    ground.stop(lost[0], destroy=True)
    work = FragmentWork(writer.ledger_id, EntryId(0), lost, None, False, None)
    finish = At("finish", lambda: rereplicate_fragment(ground.client(), work), only=[0])

    rows = rereplicate_fragment(ground.client(None, finish), work)

    assert finish.met
    assert [r.status for r in rows] == ["replicated"]
    assert lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow().equals(whole)


def test_a_ledger_that_cannot_be_decoded_is_left_and_holds_up_no_other(ground: Ground) -> None:
    """It may name the lost bookie; nobody can say, so the report is not complete."""
    first, broken, last = (written(ground) for _ in range(3))
    lost = next(iter(first.metadata.bookies() & last.metadata.bookies()))
    ground.stop(lost, destroy=True)
    error = MetadataFormatError("its first line is b'garbage'", path=str(broken.ledger_id))
    undecodable = At("read_ledger", error, path=str(broken.ledger_id))

    plan = recovered(ground, lost, hooks=(undecodable,), dry_run=True)
    report = recovered(ground, lost, hooks=(undecodable,))

    assert plan.counts == {"left": 1, "planned": 2}
    assert report.counts == {"left": 1, "replicated": 2}
    (left,) = report.unfinished
    assert left.ledger_id == broken.ledger_id
    assert "garbage" in str(left.reason)


# Killed anywhere


KINDS = ("closed", "open", "striped", "in pieces")


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *(("closed", 7), ("open", 13), ("striped", 11), ("in pieces", 19)),
        *(pytest.param(kind, 1, marks=pytest.mark.full) for kind in KINDS),
    ],
)
def test_killed_at_any_operation_and_run_again_it_finishes_and_repeats_no_finished_work(
    tmp_path: Path, kind: str, step: int
) -> None:
    quorum = Quorum(4, 3, 2) if kind == "striped" else USUAL
    piece_bytes = 2 if kind == "in pieces" else PIECE_BYTES
    begun = Ground(tmp_path / "begun", bookies=5, runtime=InlineRuntime())
    writers = [written(begun, 4, quorum, close=kind != "open") for _ in range(2)]
    lost = writers[0].metadata.last_fragment.ensemble[0]
    begun.stop(lost, destroy=True)
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        with suppress(Killed):
            recovered(ground, lost, hooks=(kill,), piece_bytes=piece_bytes)
        finished = [
            w.ledger_id
            for w in writers
            if lost not in ground.context.store.read_ledger(w.ledger_id).value.bookies()
        ]
        copies = {p for b in ground.bookie_ids for p in ground.files(b, "copies")}
        ground.forget()

        report = recovered(ground, lost, piece_bytes=piece_bytes)

        assert report.is_complete, at
        assert not {row.ledger_id for row in report.rows} & set(finished)
        for writer in writers:
            assert_whole(ground, writer, without=[lost])
            assert payloads(ground, writer) == [b"%d" % i for i in range(4)]
        assert copies <= {p for b in ground.bookie_ids for p in ground.files(b, "copies")}
    assert at > step * max(3, 35 // step)


def test_fragments_and_recoveries_do_not_each_ask_who_is_alive(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go by what the metadata store told, which is as new as its last answer."""
    lost = written(ground).metadata.last_fragment.ensemble[0]
    for close in (True, True, False, False):
        written(ground, close=close)
    ground.stop(lost, destroy=True)
    asked: list[Bookies] = []
    real = Bookies.registrations

    def registrations(bookies: Bookies) -> Mapping[BookieId, Registration]:
        asked.append(bookies)
        return real(bookies)

    monkeypatch.setattr(Bookies, "registrations", registrations)

    report = recovered(ground, lost)

    assert report.counts["replicated"] >= 1
    assert report.is_complete
    assert len(asked) <= 2, "the job once, and once whoever looks for the lost storage"


SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Served(Ground):
    """A cluster whose clients reach every bookie through a queue."""

    def __init__(self, directory: Path, bookies: int, config: ClientConfig | None = None) -> None:
        self.servers: list[BookieServer] = []
        super().__init__(directory, bookies, config, open_bookie=self.serve)

    def serve(self, storage: Storage, bookie_client: BookieClient) -> Bookie:
        server = BookieServer(FileBookie(storage))
        self.servers.append(server)
        return QueueBookie(server, bookie_client)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    ground = Served(tmp_path, bookies=5)
    yield ground
    for server in ground.servers:
        server.close()


def table(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table([list(numbers), [f"row {n}" for n in numbers]], schema=SCHEMA)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_a_ledger_outlives_its_writer_and_one_of_its_bookies(
    served: Served, sizes: tuple[int, int, int]
) -> None:
    # Written in slots and in parts, by a writer that then is lost.
    writer = lifecycle.create_ledger(
        served.context, Quorum(*sizes), schema=SCHEMA, entry_target_bytes=1000
    )
    rows = [table(0, 10), table(10, 5_000), table(5_010, 3)]
    for piece in rows:
        writer.append(piece)
    wait_for_every_copy(writer)  # a fence would keep what is on its way from its bookie
    expected = pa.concat_tables(rows)

    # Recovered by another client: the first can add nothing more.
    client = served.client()
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    assert reader.metadata.is_closed
    assert reader.read_arrow().equals(expected)
    with pytest.raises(LedgerFencedError):
        writer.append(table(9_000, 1))
    writer.abandon()

    # A bookie is lost with all that it held, and its share made again on another.
    lost = reader.metadata.last_fragment.ensemble[0]
    served.stop(lost, destroy=True)
    wish = BookieRecovery((lost,))
    report = recover_bookie(client, LocalRunner(client), wish)
    assert {row.status for row in report.rows} == {"replicated"}

    # Everybody reads all of it, each entry in as many copies as before.
    again = served.client()
    reader = lifecycle.open_ledger(again, writer.ledger_id)
    assert lost not in reader.metadata.bookies()
    assert reader.read_arrow().equals(expected)
    assert pa.Table.from_batches(e.batch for e in reader.entries()).equals(expected)
    checked = check_ledgers(again, LocalRunner(again), [writer.ledger_id], 100)
    assert {row.status for row in checked.rows} == {"healthy"}
    last = reader.metadata.last_entry_id
    assert last is not None
    pieces = cut(again, reader.ledger, EntryId(0), last, 4)
    assert (pieces[0][0], pieces[-1][1]) == (0, last)
    found = again.store.read_ledger(writer.ledger_id).value
    shown = LedgerInfo.of(writer.ledger_id, found, again, lambda shown: shown).slots_arrow()
    assert shown.num_rows > 0

    asked = {request for server in served.servers for request in server.requests}
    assert asked >= {"add", "begin_part", "fence", "verify", "read_part", "write_copies", "scan"}


def test_what_is_damaged_behind_a_queue_is_found_and_made_again(served: Served) -> None:
    with lifecycle.create_ledger(served.context, Quorum(3, 3, 2)) as writer:
        for n in range(5):
            writer.append(b"entry %d" % n)
    damaged = writer.metadata.last_fragment.ensemble[1]
    file = served.files(damaged, "slots")[2]
    file.write_bytes(file.read_bytes().replace(b"entry 2", b"entry ?"))
    client = served.client()

    checked = check_ledgers(client, LocalRunner(client), [writer.ledger_id], 100)
    repaired = repair_ledgers(client, LocalRunner(client), [writer.ledger_id])

    assert [row.source for row in checked.rows if row.status == "damaged"] == [damaged]
    assert [row.status for row in repaired.rows] == ["replicated"]
    checked = check_ledgers(client, LocalRunner(client), [writer.ledger_id], 100)
    assert {row.status for row in checked.rows} == {"healthy"}


def test_a_queue_that_hangs_is_given_up_like_a_disk(tmp_path: Path) -> None:
    """The bound on silence is above the face too."""
    config = ClientConfig(bookie_timeout_ms=1_000, read_hedge_ms=50, explicit_lac_ms=0)
    ground = Served(tmp_path, bookies=4, config=config)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
        writer.append(b"kept")
    bookie = writer.metadata.last_fragment.ensemble[0]
    client = ground.client()
    replica = client.bookies.replica(bookie, writer._pipeline.ledger)
    assert replica.tail().last_add_confirmed == -1
    release = ground.runtime.condition()
    is_over = False

    def stuck(place: str, operation: str, path: str) -> None:
        if place == bookie:
            with release:
                while not is_over:
                    release.wait()

    ground.before.append(stuck)
    with pytest.raises(BookieUnavailableError, match="no answer") as caught:
        replica.tail()
    assert caught.value.bookie_id == bookie
    assert payloads(client, writer) == [b"kept"]
    with release:
        is_over = True
        release.notify_all()
    for server in ground.servers:
        server.close()
