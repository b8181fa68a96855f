"""A bookie whose disk was replaced is filled again in place, and is in limbo until then."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import incarnations_of
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.views import bookies_table
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import COLLECTED, without_collection
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.underreplication import SKIPPED
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.source.metadata_tables import view_table
from spark_bookkeeper.testing.ground import Ground, Hook, InlineRuntime, Killed
from tests.hooks import At
from tests.snapshots import Snapshot
from tests.whole import is_whole
from tests.worlds import USUAL, payloads, written


def refilled(
    ground: Ground, bookie: BookieId, *hooks: Hook, dry_run: bool = False, **wish: object
) -> RecoveryReport:
    client = ground.client(InlineRuntime(), *hooks)
    whole = Refill(bookie, **wish)  # type: ignore[arg-type]  # any field
    return refill_bookie(client, LocalRunner(client), whole, dry_run=dry_run)


def written_and_wiped(ground: Ground, *, close: bool = True) -> tuple[LedgerWriter, BookieId]:
    """The writer of a ledger, and one of its bookies, which has been formatted since."""
    writer = written(ground, close=close)
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.format(bookie)
    return writer, bookie


def metadata_of(ground: Ground, writer: LedgerWriter) -> LedgerMetadata:
    return ground.client().store.read_ledger(writer.ledger_id).value


def is_in_limbo(ground: Ground, writer: LedgerWriter, bookie: BookieId) -> bool:
    store = ground.client().store
    cookie = store.read_cookie(bookie)
    assert cookie is not None
    meant = incarnations_of(metadata_of(ground, writer))[bookie]
    return meant != cookie.value.incarnation


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 2), (5, 2, 2)])
def test_a_wiped_bookie_gets_back_all_that_it_should_hold(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=6)
    writers = [written(ground, quorum=Quorum(*sizes)) for _ in range(5)]
    empty = written(ground, 0, Quorum(*sizes))
    bookie = writers[0].metadata.last_fragment.ensemble[0]
    before = [metadata_of(ground, w).fragments for w in writers]
    ground.format(bookie)
    affected = {
        w.ledger_id for w in [*writers, empty] if bookie in metadata_of(ground, w).bookies()
    }

    report = refilled(ground, bookie)

    assert report.is_complete, report.unfinished
    assert {row.ledger_id for row in report.rows} == affected
    assert {(row.source, row.target) for row in report.rows} == {(bookie, bookie)}
    assert [metadata_of(ground, w).fragments for w in writers] == before
    assert is_whole(ground, [*writers, empty])


def test_gc_register_a_ledger_of_which_somebody_removes_files_there_stays_in_limbo(
    ground: Ground,
) -> None:
    """He may go on in the new partition, and remove what is copied back."""
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    former = incarnations_of(metadata_of(ground, writer))[bookie]
    store, ledger_id = ground.client().store, writer.ledger_id
    removing = json.dumps({f"{bookie}/{former}": [["a"], 0]}).encode()
    update_ledger(store, ledger_id, lambda old: old.with_custom(**{COLLECTED: removing}))
    ground.format(bookie)

    report = refilled(ground, bookie)

    assert "removed from" in str(report.unfinished[0].reason)
    assert is_in_limbo(ground, writer, bookie)
    update_ledger(store, ledger_id, lambda old: without_collection(old, bookie, former, "a"))
    assert refilled(ground, bookie).is_complete
    assert is_whole(ground, [writer])


def test_limbo_is_shown_at_once_and_no_more_when_it_has_ended(ground: Ground) -> None:
    """By incarnation: the bookie is registered, and has nothing of what was there before."""
    writer, bystander = written(ground), written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]

    def shown() -> tuple[int, set[str], set[str], set[str], set[str]]:
        client = ground.client()
        info = LedgerInfo.of(
            writer.ledger_id, client.store.read_ledger(writer.ledger_id).value, client, lambda t: t
        )
        rows = {row["bookie_id"]: row for row in bookies_table(client).to_pylist()}
        return (
            rows[bookie]["limbo_ledgers"],
            {b for row in info.fragments_arrow().to_pylist() for b in row["missing_bookies"]},
            {r["bookie_id"] for r in info.placement_arrow().to_pylist() if r["is_missing"]},
            {r["bookie_id"] for r in info.stripes_arrow().to_pylist() if r["is_missing"]},
            {
                b
                for table in view_table(client, "fragments", [writer.ledger_id])
                for row in table.to_pylist()
                for b in row["missing_bookies"]
            },
        )

    assert shown() == (0, set(), set(), set(), set())
    ground.format(bookie)
    limbo = sum(bookie in metadata_of(ground, w).bookies() for w in (writer, bystander))
    assert shown() == (limbo, {bookie}, {bookie}, {bookie}, {bookie})
    refilled(ground, bookie)
    assert shown() == (0, set(), set(), set(), set())


def test_run_again_there_is_nothing_to_do(ground: Ground) -> None:
    _, bookie = written_and_wiped(ground)
    refilled(ground, bookie)
    ground.forget()

    report = refilled(ground, bookie)

    assert report.rows == ()
    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0


def test_the_only_copies_left_are_then_those_that_were_brought_back(ground: Ground) -> None:
    writer = written(ground)
    bookie, *others = writer.metadata.last_fragment.ensemble
    ground.format(bookie)
    refilled(ground, bookie)

    for other in others:
        ground.stop(other, destroy=True)

    assert payloads(ground, writer) == [b"%d" % i for i in range(10)]


def test_several_fragments_leave_limbo_in_one_step(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    writer.flush()
    bookie, victim = writer.metadata.last_fragment.ensemble[:2]
    ground.stop(victim)
    ground.until(
        lambda: writer.append(b"") >= 0 and victim not in writer.metadata.last_fragment.ensemble
    )
    ground.start(victim)
    writer.close()
    fragments = [f for f in writer.metadata.fragments if bookie in f.ensemble]
    ground.format(bookie)
    ground.forget()

    report = refilled(ground, bookie)

    assert len(fragments) == len(report.rows) == 2
    assert ground.count()["write_ledger"] == 1
    assert is_whole(ground, [writer], of=bookie)


def test_a_dry_run_shows_what_the_run_then_does(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer, opened = (
        written(ground, quorum=Quorum(4, 3, 2)),
        written(ground, quorum=Quorum(4, 4, 2), close=False),
    )
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.format(bookie)
    ground.forget()

    plan = refilled(ground, bookie, dry_run=True)

    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0
    assert {row.status for row in plan.rows} == {"planned"}
    rows = {(r["ledger_id"], r["action"]): r for r in plan.to_arrow().to_pylist()}
    share = rows[writer.ledger_id, "copy"]
    assert (share["live_copies"], share["live_copies_after"], share["entries"]) == (2, 3, 7)
    assert bookie not in share["sources"]
    assert (opened.ledger_id, "recover") in rows
    done = refilled(ground, bookie)
    assert {(r.ledger_id, r.action) for r in done.rows} == {
        (r.ledger_id, r.action) for r in plan.rows
    }


def test_a_ledger_that_is_open_there_is_closed_first_or_skipped(ground: Ground) -> None:
    writer, bookie = written_and_wiped(ground, close=False)

    skipping = refilled(ground, bookie, skip_open_ledgers=True)

    assert [(r.status, r.reason) for r in skipping.rows] == [("left", SKIPPED)]
    assert metadata_of(ground, writer).state is LedgerState.OPEN
    assert refilled(ground, bookie).is_complete
    assert metadata_of(ground, writer).is_closed
    assert payloads(ground, writer) == [b"%d" % i for i in range(10)]
    assert is_whole(ground, [writer])


def test_earlier_fragments_of_an_open_ledger_are_filled_and_its_writer_goes_on(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = written(ground, 3, close=False)
    writer.flush()
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.format(bookie)  # the writer meets another incarnation, and leaves it
    ground.until(
        lambda: writer.append(b"") >= 0 and bookie not in writer.metadata.last_fragment.ensemble
    )

    report = refilled(ground, bookie)

    assert report.is_complete, report.unfinished
    assert not is_in_limbo(ground, writer, bookie)
    assert metadata_of(ground, writer).state is LedgerState.OPEN
    writer.append(b"last")
    writer.close()
    assert payloads(ground, writer)[-1] == b"last"
    assert is_whole(ground, [writer], of=bookie)


def test_one_entry_that_nobody_has_keeps_its_whole_ledger_in_limbo(ground: Ground) -> None:
    lost, whole = written(ground), written(ground)
    bookie, *others = lost.metadata.last_fragment.ensemble
    for other in others:
        for path in ground.files(other, "slots"):
            if path.parent.parent.name.startswith(f"{lost.ledger_id}-"):
                path.unlink()
    ground.format(bookie)

    report = refilled(ground, bookie)

    assert {(r.ledger_id, r.status) for r in report.unfinished} == {
        (lost.ledger_id, "unrecoverable")
    }
    assert is_in_limbo(ground, lost, bookie)
    if bookie in metadata_of(ground, whole).bookies():
        assert not is_in_limbo(ground, whole, bookie)


@pytest.mark.parametrize(
    ("is_closed", "step"),
    [
        (True, 4),
        pytest.param(True, 1, marks=pytest.mark.full),
        pytest.param(False, 1, marks=pytest.mark.full),
    ],
)
def test_killed_at_any_step_it_is_in_limbo_or_whole_and_the_next_run_ends_it(
    tmp_path: Path, is_closed: bool, step: int
) -> None:
    begun = Ground(tmp_path / "begun", bookies=3)
    writers = [written(begun, count=2, close=is_closed), written(begun, count=0)]
    bookie = writers[0].metadata.last_fragment.ensemble[0]
    begun.format(bookie)
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        with suppress(Killed):
            refilled(ground, bookie, kill)
        for writer in writers:
            if metadata_of(ground, writer).is_closed and not is_in_limbo(ground, writer, bookie):
                assert is_whole(ground, [writer]), f"killed at {at}"
        assert refilled(ground, bookie).is_complete, f"killed at {at}"
        assert is_whole(ground, writers), f"killed at {at}"
        assert payloads(ground, writers[0]) == [b"0", b"1"], f"killed at {at}"
    assert at > 20


def test_a_lost_answer_of_the_metadata_changes_nothing(ground: Ground) -> None:
    writer, bookie = written_and_wiped(ground)
    lost = At("write_ledger", ConnectionError("the answer was lost"), only=[0])

    ground.after.append(lost)
    refilled(ground, bookie)
    ground.after.clear()

    assert lost.met
    assert refilled(ground, bookie).is_complete
    assert is_whole(ground, [writer])


def test_formatted_once_more_meanwhile_it_stays_in_limbo(ground: Ground) -> None:
    """Copies went to one incarnation; metadata never name another for them."""
    writer, bookie = written_and_wiped(ground)
    write = At("write_ledger", lambda: ground.format(bookie), only=[0])

    refilled(ground, bookie, write)

    assert write.met
    assert is_in_limbo(ground, writer, bookie)
    assert refilled(ground, bookie).is_complete
    assert is_whole(ground, [writer])


def test_others_that_recover_the_bookie_meanwhile_win_or_lose_whole(ground: Ground) -> None:
    writer, bookie = written_and_wiped(ground)

    def recover() -> None:
        client = ground.client(InlineRuntime())
        recover_bookie(client, LocalRunner(client), BookieRecovery((bookie,), even_if_alive=True))

    write = At("write_ledger", recover, only=[0])
    report = refilled(ground, bookie, write)

    assert write.met
    assert report.is_complete
    assert bookie not in metadata_of(ground, writer).bookies()
    assert is_whole(ground, [writer])


def test_large_shares_are_copied_in_pieces(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    with lifecycle.create_ledger(ground.context, Quorum(4, 3, 2)) as writer:
        for i in range(40):
            writer.append(b"%d" % i * 500)
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.format(bookie)
    phases: list[str] = []
    client = ground.client(InlineRuntime())

    report = refill_bookie(
        client,
        LocalRunner(client),
        Refill(bookie, piece_bytes=4_000),
        progress=lambda phase, done, total, size: phases.append(phase),
    )

    assert report.is_complete, report.unfinished
    assert len(report.rows) == 1
    assert any(phase.startswith("finishing large ledgers") for phase in phases)
    assert sum(row.bytes for row in report.rows) > 0
    assert is_whole(ground, [writer])


def test_of_the_metadata_it_is_told_how_many_are_to_be_read(ground: Ground) -> None:
    for _ in range(3):
        written(ground)
    bookie = ground.bookie_ids[0]
    ground.format(bookie)
    told: list[tuple[int, int]] = []

    def progress(phase: str, done: int, total: int, size_bytes: int) -> None:
        if phase == "reading ledger metadata":
            told.append((done, total))

    refill_bookie(ground.context, LocalRunner(ground.context), Refill(bookie), progress=progress)

    assert told == [(done, 3) for done in (1, 2, 3)] * 2, "for what is open, and for all"


def test_what_cannot_be_refilled_is_refused_with_the_way(ground: Ground) -> None:
    written(ground)
    bookie = ground.bookie_ids[0]
    ground.stop(bookie, destroy=True)

    with pytest.raises(InvalidArgumentError, match="bookie format --replaced"):
        refilled(ground, bookie)
    with pytest.raises(InvalidArgumentError, match="is unknown"):
        refilled(ground, BookieId("127.0.0.1:9999"))
    ground.start(bookie)
    with pytest.raises(InvalidArgumentError, match="ledger 999 does not exist"):
        refilled(ground, bookie, ledger_ids=(LedgerId(999),))


def test_rows_of_a_bulk_append_are_brought_back(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    table = pa.table({"payload": [b"%d" % i for i in range(5_000)]})
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(table)
    writer.close()
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.format(bookie)

    assert refilled(ground, bookie).is_complete

    for other in writer.metadata.last_fragment.ensemble[1:]:
        ground.stop(other, destroy=True)
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().num_rows == 5_000


def test_a_ledger_that_changed_since_it_was_read_stays_in_limbo(ground: Ground) -> None:
    """Another client opened it again, which nobody of ours does: its end is not fixed."""
    writer, bookie = written_and_wiped(ground)

    def changed(old: LedgerMetadata) -> LedgerMetadata:
        first, second = old.last_fragment.first_entry_id, old.last_fragment.ensemble[1]
        return old.with_replaced_bookie(first, 0, second).with_replaced_bookie(first, 1, bookie)

    def change() -> None:
        update_ledger(ground.client().store, writer.ledger_id, changed)

    write = At("write_ledger", change, only=[0])
    report = refilled(ground, bookie, write)

    assert write.met
    assert [row.status for row in report.rows] == ["left"]
    assert is_in_limbo(ground, writer, bookie)


def test_a_ledger_that_was_named_and_is_deleted_meanwhile_ends_nothing(ground: Ground) -> None:
    """The others of which it is asked are told, and one of them was closed already."""
    is_open, gone = written(ground, close=False), written(ground)
    is_open.abandon()
    bookie = min(is_open.metadata.bookies() & gone.metadata.bookies())
    ground.format(bookie)
    left = [gone.ledger_id]

    def delete(place: str, operation: str, path: str) -> None:
        """When what was open is closed."""
        state = metadata_of(ground, is_open).state if left else None
        if state is LedgerState.CLOSED:
            lifecycle.delete_ledger(ground.client(), left.pop())

    named = (is_open.ledger_id, gone.ledger_id)
    report = refilled(ground, bookie, delete, ledger_ids=named)

    assert not left
    assert {row.ledger_id for row in report.rows} == {is_open.ledger_id}
    assert not is_in_limbo(ground, is_open, bookie)
