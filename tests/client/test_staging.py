"""Ledgers that tasks write and one process lists and closes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.presence import writer_of, writer_state
from spark_bookkeeper.client.write.bulk import BulkPlan, TaskResult, write_local
from spark_bookkeeper.errors import BookieUnavailableError, LedgerFencedError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import NO_ENTRY, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.hooks import NO_ANSWER, At

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, bookies=5)


@pytest.fixture
def plan(ground: Ground) -> BulkPlan:
    return staging.stage(ground.context, Quorum(4, 2, 2), b"note", schema=SCHEMA)


def id_of(plan: BulkPlan) -> LedgerId:
    return LedgerId(plan.key.ledger_id)


def table(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def read(ground: Ground, ledger_id: int) -> list[int]:
    reader = lifecycle.open_ledger(ground.client(), ledger_id)
    ids: list[int] = reader.read_arrow().column("id").to_pylist()
    return ids


def test_a_staged_ledger_is_open_and_nobodys_until_it_is_sealed_with_all_of_its_rows(
    ground: Ground, plan: BulkPlan
) -> None:
    written = write_local(plan, table(*range(100)), ground.context)
    found = ground.context.store.read_ledger(id_of(plan)).value
    reader = lifecycle.open_ledger_no_recovery(ground.client(), id_of(plan))

    assert (found.state.name, found.custom_metadata[staging.STAGED]) == ("OPEN", b"note")
    assert writer_state(ground.context, id_of(plan), found) == "unknown"
    assert ground.context.writer is not None
    assert writer_of(found) == ground.context.writer
    assert reader.last_add_confirmed == NO_ENTRY

    sealed = staging.seal(ground.client(), plan, written)

    assert sealed.is_closed
    assert read(ground, id_of(plan)) == list(range(100))


def test_one_without_rows_is_sealed_empty(ground: Ground, plan: BulkPlan) -> None:
    assert staging.seal(ground.context, plan, [TaskResult(0, 0, ())]).last_entry_id == NO_ENTRY


def test_a_ledger_is_sealed_once(ground: Ground, plan: BulkPlan) -> None:
    written = write_local(plan, table(1), ground.context)
    staging.seal(ground.context, plan, written)

    with pytest.raises(LedgerFencedError, match="somebody else seals it"):
        staging.seal(ground.client(), plan, written)

    assert read(ground, id_of(plan)) == [1]


def test_a_lost_answer_to_the_claim_is_no_claim_of_somebody_else(
    ground: Ground, plan: BulkPlan
) -> None:
    written = write_local(plan, table(1), ground.context)
    ground.after.append(At("write_ledger", NO_ANSWER, only=[0]))

    staging.seal(ground.context, plan, written)

    assert read(ground, id_of(plan)) == [1]


def test_a_ledger_that_was_discarded_is_sealed_by_nobody(ground: Ground, plan: BulkPlan) -> None:
    written = write_local(plan, table(1), ground.context)
    staging.discard(ground.client(), id_of(plan))
    staging.discard(ground.client(), id_of(plan))

    with pytest.raises(NoSuchLedgerError):
        staging.seal(ground.context, plan, written)


def test_a_ledger_discarded_between_claim_and_close_is_not_closed(
    ground: Ground, plan: BulkPlan
) -> None:
    """Whoever has closed one knows that it was not removed."""
    writer = staging._claim(ground.context, plan, {})
    writer.append_written(write_local(plan, table(1), ground.context))
    staging.discard(ground.client(), id_of(plan))

    with pytest.raises(NoSuchLedgerError):
        writer.close()
    writer.abandon()


def test_rows_are_staged_anew_in_a_ledger_with_a_higher_id(ground: Ground, plan: BulkPlan) -> None:
    written = write_local(plan, table(*range(50)), ground.context)

    new, copied = staging.restage(ground.client(), plan, written, b"again")
    staging.seal(ground.context, new, copied)

    assert id_of(new) > id_of(plan)
    assert read(ground, id_of(new)) == list(range(50))
    assert new.encoding == plan.encoding


def test_rows_whose_files_are_gone_everywhere_are_not_staged_anew(
    ground: Ground, plan: BulkPlan
) -> None:
    written = write_local(plan, table(1, 2, 3), ground.context)
    for bookie in ground.bookie_ids:
        for part in ground.files(bookie, "parts"):
            part.unlink()

    with pytest.raises(BookieUnavailableError, match="could not be copied to any bookie"):
        staging.restage(ground.context, plan, written, b"again")

    assert list(ground.context.store.ledger_ids()) == [id_of(plan)]
