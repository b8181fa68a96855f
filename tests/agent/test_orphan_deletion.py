"""Ledgers that nobody owns are deleted when a person says so, and no others."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_bookkeeper.agent.orphan_deletion import delete_orphans
from spark_bookkeeper.agent.orphans import orphans_table
from spark_bookkeeper.agent.space import space_table
from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.ledger import LOG, LOG_LABEL
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import write_local
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError, LedgerFencedError
from spark_bookkeeper.logs import atomic, truncation
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.staged_writes import StagedWrite, note_of
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import ARCHIVE, NONCE
from spark_bookkeeper.replication.report import Outcome, Report
from spark_bookkeeper.testing.ground import Ground
from tests.worlds import USUAL, there

EVER = 1 << 60
"""Later than any ledger was created."""


def made(
    ground: Ground, *, close: bool = True, made_for: str | None = None, **labels: bytes
) -> LedgerWriter:
    """A ledger with one entry; its writer has a session of its own."""
    writer = lifecycle.create_ledger(ground.client(), USUAL, labels=labels, log=made_for)
    writer.append(b"0")
    if close:
        writer.close()
    return writer


def outcomes(report: Report) -> dict[int, Outcome]:
    return {row.ledger_id: row.status for row in report.rows}


def test_what_nobody_owns_goes_and_nothing_else(ground: Ground) -> None:
    unnamed, named = made(ground), made(ground, name=b"a")
    lives = made(ground, close=False)

    planned = delete_orphans(ground.context, EVER)
    assert outcomes(planned) == {unnamed.ledger_id: Outcome.PLANNED}
    done = delete_orphans(ground.context, EVER, dry_run=False)

    assert outcomes(done) == {unnamed.ledger_id: Outcome.DELETED}
    assert done.is_complete
    assert list(ground.context.store.ledger_ids()) == [named.ledger_id, lives.ledger_id]
    lives.append(b"1")
    garbage = {
        r["ledger_id"] for r in space_table(ground.context).to_pylist() if r["garbage_bytes"]
    }
    assert garbage == {unnamed.ledger_id}


def test_one_that_is_not_closed_stays_until_it_was_recovered(ground: Ground) -> None:
    """Whoever seems to be gone may be cut off from the metadata store alone."""
    writer = made(ground, close=False)
    ground.cluster.writers.clear()  # its session has ended, which it does not know
    assert orphans_table(ground.context)["ledger_id"].to_pylist() == [writer.ledger_id]

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {}
    assert writer.append(b"1") == 1
    recover_ledger(ground.context, LedgerId(writer.ledger_id))
    with pytest.raises(LedgerFencedError):
        writer.append(b"2")

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {
        writer.ledger_id: Outcome.DELETED
    }


def test_another_ledger_that_has_its_id_by_then_stays(ground: Ground) -> None:
    """As after the metadata were brought back by another tool."""
    first, judged = made(ground), made(ground)
    store, known = ground.context.store, ground.cluster.ledgers
    judged_id = LedgerId(judged.ledger_id)

    def replace_it(place: str, operation: str, path: str) -> None:
        if operation == "delete_ledger" and path == str(first.ledger_id):
            old = known[judged_id]
            custom = {**old.value.custom_metadata, NONCE: b"another"}
            known[judged_id] = replace(old, value=replace(old.value, custom_metadata=custom))

    report = delete_orphans(ground.client(None, replace_it), EVER, dry_run=False)

    assert outcomes(report) == {first.ledger_id: Outcome.DELETED, judged.ledger_id: Outcome.GONE}
    assert store.read_ledger(judged_id).value.nonce == b"another"


def test_one_that_a_user_gave_the_label_of_logs_is_his(ground: Ground) -> None:
    log = create_log(ground.context, "orders", LogOptions(USUAL))
    labelled, stray = made(ground, log=b"orders"), made(ground, made_for="orders")
    otherwise = made(ground, made_for="orders")
    metadata = otherwise.metadata.with_custom(log=b"another")
    store = ground.context.store
    found = store.read_ledger(LedgerId(otherwise.ledger_id))
    store.write_ledger(LedgerId(otherwise.ledger_id), metadata, found)

    log.write(numbered_payloads(1))
    assert outcomes(delete_orphans(ground.context, EVER)) == {stray.ledger_id: Outcome.PLANNED}
    truncation.delete(ground.context, "orders")

    assert outcomes(delete_orphans(ground.context, EVER)) == {stray.ledger_id: Outcome.PLANNED}
    assert store.read_ledger(LedgerId(labelled.ledger_id)).value.custom_metadata["log"] == b"orders"


def test_what_a_log_names_is_the_logs_whatever_it_was_made_for(ground: Ground) -> None:
    create_log(ground.context, "orders", LogOptions(USUAL))
    staged = sealed(ground)
    atomic.add_sealed(ground.context, "orders", staged.nonce, staged.ledger_id, None)
    store = ground.context.store
    found = store.read_ledger(staged.ledger_id)
    custom = {k: v for k, v in found.value.custom_metadata.items() if k not in (LOG, LOG_LABEL)}
    store.write_ledger(staged.ledger_id, replace(found.value, custom_metadata=custom), found)

    assert outcomes(delete_orphans(ground.context, EVER)) == {}


def test_what_was_created_later_stays(ground: Ground) -> None:
    writer = made(ground)
    created_ms = there(writer.metadata.ctime_ms)

    assert outcomes(delete_orphans(ground.context, created_ms, dry_run=False)) == {}
    assert outcomes(delete_orphans(ground.context, created_ms + 1)) == {
        writer.ledger_id: Outcome.PLANNED
    }


def test_one_that_is_changed_before_it_goes_stays(ground: Ground) -> None:
    """As when it is released to a table in this very moment."""
    first, released = made(ground), made(ground)
    store = ground.context.store

    def release(place: str, operation: str, path: str) -> None:
        if operation == "delete_ledger" and path == str(moment):
            found = store.read_ledger(LedgerId(released.ledger_id))
            custom = {**found.value.custom_metadata, ARCHIVE: b"a table"}
            changed = replace(found.value, custom_metadata=custom)
            store.write_ledger(LedgerId(released.ledger_id), changed, found)

    moment = first.ledger_id  # before it is read
    report = delete_orphans(ground.client(None, release), EVER, dry_run=False)
    assert outcomes(report) == {
        first.ledger_id: Outcome.DELETED,
        released.ledger_id: Outcome.NO_LONGER_NEEDED,
    }

    released = made(ground)
    moment = released.ledger_id  # between its being read and its being deleted
    report = delete_orphans(ground.client(None, release), EVER, dry_run=False)
    assert outcomes(report) == {released.ledger_id: Outcome.NO_LONGER_NEEDED}


def test_only_those_that_were_shown_go(ground: Ground) -> None:
    shown, other = made(ground), made(ground)

    report = delete_orphans(ground.context, EVER, ledger_ids=[shown.ledger_id], dry_run=False)

    assert outcomes(report) == {shown.ledger_id: Outcome.DELETED}
    assert list(ground.context.store.ledger_ids()) == [other.ledger_id]


def test_while_a_restore_is_under_way_nothing_goes(ground: Ground) -> None:
    """Its ledgers are there before the logs that own them."""
    made(ground)
    store, runtime = ground.context.store, ground.context.runtime
    with (
        restores.restoring(store.ballots, "a job", runtime),
        pytest.raises(InvalidArgumentError, match="a restore is under way"),
    ):
        delete_orphans(ground.context, EVER, dry_run=False)
    restores.begin(store.registers, LedgerId(7), b"nonce")
    with pytest.raises(InvalidArgumentError, match="begun and not there: 1 ledger"):
        delete_orphans(ground.context, EVER, dry_run=False)
    restores.end(store.registers, LedgerId(7))

    assert delete_orphans(ground.context, EVER, dry_run=False).is_complete


def test_a_ledger_whose_restore_begins_while_ledgers_are_listed_stays(ground: Ground) -> None:
    writer = made(ground)
    store, ledger_id = ground.context.store, LedgerId(writer.ledger_id)
    metadata = store.read_ledger(ledger_id).value
    del ground.cluster.ledgers[ledger_id]  # as in another cluster, which never had it

    def restore(place: str, operation: str, path: str) -> None:
        if operation == "ledger_ids" and not restores.begun(store.registers):
            restores.begin(store.registers, ledger_id, there(metadata.nonce))
            ground.cluster.recreate_by_another_tool(ledger_id, metadata)

    with pytest.raises(InvalidArgumentError, match="begun and not there: 1 ledger"):
        delete_orphans(ground.client(None, restore), EVER, dry_run=False)

    assert list(store.ledger_ids()) == [ledger_id]


def test_a_ledger_whose_restore_has_not_ended_when_its_turn_comes_stays(ground: Ground) -> None:
    first, second = made(ground), made(ground)
    store, ledger_id = ground.context.store, LedgerId(second.ledger_id)

    def restore(place: str, operation: str, path: str) -> None:
        if operation == "delete_ledger" and path == str(first.ledger_id):
            restores.begin(store.registers, ledger_id, second.metadata.nonce or b"")

    report = delete_orphans(ground.client(None, restore), EVER, dry_run=False)

    assert outcomes(report) == {first.ledger_id: Outcome.DELETED, second.ledger_id: Outcome.LEFT}
    assert list(store.ledger_ids()) == [ledger_id]


def test_a_write_that_is_ready_to_be_entered_stays_until_its_log_has_gone_past_it(
    ground: Ground,
) -> None:
    log = create_log(ground.context, "orders", LogOptions(USUAL))
    staged = sealed(ground)

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {}
    atomic.add_sealed(ground.context, "orders", staged.nonce, staged.ledger_id, None)
    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {}

    late = sealed(ground)
    written = log.write(numbered_payloads(1))
    assert written.ledger_id is not None

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {
        late.ledger_id: Outcome.DELETED
    }
    assert log.ledgers() == [staged.ledger_id, written.ledger_id]


def sealed(ground: Ground) -> StagedWrite:
    """A write that is ready to be entered into the log ``orders``."""
    staged = atomic.stage(ground.context, "orders")
    results = write_local(staged.plan, numbered_payloads(2), ground.context)
    note = note_of("orders", staged.nonce, None, None)
    staging.seal(ground.context, staged.plan, results, {staging.STAGED: note})
    return staged


def numbered_payloads(count: int) -> pa.Table:
    return pa.table({"payload": [b"%d" % number for number in range(count)]})
