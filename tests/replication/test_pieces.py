"""Large shares are copied ahead in pieces, and the fragment's own work has little left to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import fragments
from spark_bookkeeper.replication.pieces import PieceCopied, PieceWork, copy_piece
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import LocalRunner, Progress, no_progress
from spark_bookkeeper.replication.shares import in_order
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.whole import assert_whole

SIZES = [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(3, 2, 2)]
WHOLE = pa.table({"id": pa.array(range(20_000), pa.int64())})
SHARE = 20_000 * 8
"""Bytes of a ledger, about; and of a share where the ensemble is not striped."""


def in_parts(ground: Ground, quorum: Quorum) -> LedgerWriter:
    """Sixteen entries, in the parts of one bulk append."""
    with lifecycle.create_ledger(
        ground.context, quorum, schema=WHOLE.schema, entry_target_bytes=10_000
    ) as writer:
        writer.append(WHOLE)
    return writer


def in_slots(ground: Ground, quorum: Quorum) -> LedgerWriter:
    """Sixteen entries, in a slot each."""
    with lifecycle.create_ledger(ground.context, quorum, schema=WHOLE.schema) as writer:
        for start in range(0, 20_000, 1_250):
            writer.append(WHOLE.slice(start, 1_250))
        writer._pipeline.drain()
    return writer


def recovered(
    ground: Ground, lost: BookieId, piece_bytes: int, progress: Progress = no_progress
) -> RecoveryReport:
    client = ground.client(InlineRuntime())
    wish = BookieRecovery((lost,), piece_bytes=piece_bytes)
    return recover_bookie(client, LocalRunner(client), wish, progress=progress)


def assert_whole_and_read(ground: Ground, writer: LedgerWriter) -> None:
    assert_whole(ground, writer)
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(WHOLE)


def lose(ground: Ground, writer: LedgerWriter) -> BookieId:
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)
    return lost


def test_copies_are_read_from_this_machine_first_and_from_lost_bookies_last() -> None:
    ensemble = [*map(BookieId, ("localhost:1", "x.invalid:1", "x.invalid:2", "localhost:2"))]
    assert in_order(ensemble, range(4), ensemble[:1]) == [3, 1, 2, 0]


@pytest.mark.parametrize("write", [in_parts, in_slots], ids=["parts", "slots"])
@pytest.mark.parametrize("quorum", SIZES, ids=str)
def test_a_share_copied_in_pieces_is_reported_as_one_share(
    tmp_path: Path, quorum: Quorum, write: object
) -> None:
    assert callable(write)
    told = []
    for name, piece_bytes in (("pieces", SHARE // 10), ("whole", 100 * SHARE)):
        ground = Ground(tmp_path / name, bookies=6)
        writer = write(ground, quorum)
        seen: list[tuple[str, int]] = []
        report = recovered(
            ground,
            lose(ground, writer),
            piece_bytes,
            lambda phase, done, of, size, seen=seen: seen.append((phase, of)),  # type: ignore[misc]  # this turn's list
        )
        (row,) = report.rows
        assert row.status == "replicated"
        told.append((row.ledger_id, row.first_entry_id, row.last_entry_id, row.entries, row.bytes))
        pieces = max(of for phase, of in seen if phase == "copying fragments")
        assert pieces > 3 if name == "pieces" else pieces == 1
        assert_whole_and_read(ground, writer)
    assert told[0] == told[1]


@pytest.mark.parametrize("quorum", SIZES, ids=str)
def test_a_part_is_copied_once_by_the_piece_in_which_it_begins(
    tmp_path: Path, quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer = in_parts(ground, quorum)
    owned: list[int] = []

    def piece(context: ClientContext, work: PieceWork) -> Sequence[PieceCopied]:
        (row,) = copy_piece(context, work)
        assert {*work.sources} == {*writer.metadata.last_fragment.ensemble} - {*work.lost}
        owned.append(row.entries)
        return [row]

    monkeypatch.setattr(fragments, "copy_piece", piece)
    lost = lose(ground, writer)

    (row,) = recovered(ground, lost, SHARE // 16).rows

    assert row.target is not None
    parts = len(ground.files(BookieId(row.target), "parts"))
    assert 0 < parts < len(owned), "a part has entries that several pieces would have to copy"
    assert 0 < sum(entries > 0 for entries in owned) <= parts
    assert sum(owned) == row.entries, "no entry is left out, and none is in two pieces"
    made = [s for s in ground.steps if s.place == row.target and s.operation == "finish"]
    assert len(made) == parts


def test_what_the_pieces_have_read_back_is_not_read_once_more(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = in_slots(ground, Quorum(3, 3, 2))
    lost = lose(ground, writer)
    looked: list[int] = []
    real = Retrieval.verify

    def verify(self: Retrieval, *, with_files: bool = False) -> Verdict:
        looked.append(len(self._entries))
        return real(self, with_files=with_files)

    monkeypatch.setattr(Retrieval, "verify", verify)

    recovered(ground, lost, SHARE // 4)

    assert sum(looked) == 16, "every entry by its piece, and none by the fragment's own work"


@pytest.mark.parametrize("problem", ["fails", "does too little"])
def test_what_a_piece_did_not_do_is_done_by_the_fragments_own_work(
    ground: Ground, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = in_slots(ground, Quorum(3, 3, 2))
    lost = lose(ground, writer)
    met: list[PieceWork] = []

    def piece(context: ClientContext, work: PieceWork) -> Sequence[PieceCopied]:
        met.append(work)
        if len(met) != 2:
            return copy_piece(context, work)
        if problem == "fails":
            raise BookieUnavailableError("no answer", bookie_id=work.target)
        (row,) = copy_piece(context, replace(work, end=work.start))
        return [row]

    monkeypatch.setattr(fragments, "copy_piece", piece)

    report = recovered(ground, lost, SHARE // 4)

    assert len(met) > 2
    assert report.counts == {"replicated": 1}
    assert report.rows[0].bytes == writer.metadata.length_bytes
    assert_whole_and_read(ground, writer)


def test_a_target_that_was_wiped_after_the_pieces_is_given_everything_again(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = in_slots(ground, Quorum(3, 3, 2))
    lost = lose(ground, writer)
    (target,) = set(ground.bookie_ids) - writer.metadata.bookies()

    def wipe(phase: str, done: int, of: int, size_bytes: int) -> None:
        if phase == "replacing bookies" and not done:
            assert ground.files(target, "copies")
            ground.format(target)

    report = recovered(ground, lost, SHARE // 4, wipe)

    assert report.counts == {"replicated": 1}
    assert_whole_and_read(ground, writer)


def test_pieces_find_the_ledger_deleted_or_its_fragment_replaced(ground: Ground) -> None:
    writer = in_slots(ground, Quorum(3, 3, 2))
    lost = lose(ground, writer)
    work = PieceWork(
        writer.ledger_id,
        writer.metadata.last_fragment.first_entry_id,
        lost,
        writer.metadata.last_fragment.first_entry_id,
        writer.metadata.last_fragment.first_entry_id,
        ground.bookie_ids[3],
        (lost,),
        None,
        1,
    )
    assert recovered(ground, lost, 100 * SHARE).is_complete

    (row,) = copy_piece(ground.client(), work)

    assert (row.status, row.reason) == ("left", "the fragment was changed meanwhile")
