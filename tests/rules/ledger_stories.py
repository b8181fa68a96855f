"""Stories of a ledger: what readers see, how copies are made, ids used again, and deletion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.agent import formatting
from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client import context, deletion, lifecycle
from spark_bookkeeper.client.fencing import Fencing
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read import reader as client_reader
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.client.recover.recovery import flag, recover_ledger
from spark_bookkeeper.client.write import ensemble_change
from spark_bookkeeper.client.write.bulk import FanOut, write_local
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookieError,
    InvalidArgumentError,
    LedgerExistsError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.metadata import refusals, update
from spark_bookkeeper.metadata.store import LedgerStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import refill_ledger as refilling
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_one
from spark_bookkeeper.replication.refill_ledger import RefillWork, refill_ledger
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing import memory_store
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from spark_bookkeeper.testing.memory_store import MemoryCluster
from tests.rules.story import needs, put, without
from tests.support.slotlog import log_of
from tests.worlds import USUAL, payloads, written

# R10


def without_r10(patch: pytest.MonkeyPatch) -> None:
    def all_there_is(context: Any, ledger: Ledger, *kept: Any) -> EntryId:
        confirmed = read_last_add_confirmed(context, ledger, *kept)
        for bookie in ledger.metadata.last_fragment.ensemble:
            try:
                found = log_of(context, bookie, ledger).tail().entries
            except BookieError:
                continue
            confirmed = EntryId(max([confirmed, *found]))
        return confirmed

    patch.setattr(client_reader, "read_last_add_confirmed", all_there_is)


@needs("R10", without_r10)
def a_reader_stops_at_what_is_confirmed(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    members = writer.metadata.last_fragment.ensemble
    release = threading.Event()

    def hold(place: str, operation: str, path: str) -> None:
        if place in members[1:] and operation == "put_if_absent":
            assert release.wait(120)

    ground.before.append(hold)
    future = writer.append_async(b"x")
    ground.until(lambda: len(ground.files(members[0], "slots")) == 1)
    try:
        reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)
        assert reader.last_add_confirmed == -1, "entry 0 has one copy"
    finally:
        release.set()
        future.result(60)
        writer.close()


# R13


def without_rw_closed_only(patch: pytest.MonkeyPatch) -> None:
    ranges = LedgerMetadata.fragment_ranges

    def with_ends(self: LedgerMetadata) -> Iterator[FragmentRange]:
        for fragment in ranges(self):
            last = fragment.last_entry_id
            yield replace(fragment, last_entry_id=EntryId(0) if last is None else last)

    patch.setattr(LedgerMetadata, "fragment_ranges", with_ends)


@needs("rw_closed_only", without_rw_closed_only)
def an_ensemble_that_is_written_to_is_left_alone(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost)
    work = FragmentWork(writer.ledger_id, EntryId(0), (lost,), None, False, None)

    (row,) = rereplicate_fragment(ground.client(), work)

    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.state is LedgerState.OPEN
    assert metadata.last_fragment.ensemble == writer.metadata.last_fragment.ensemble
    assert row.status == "left"


def refill(ground: Ground, ledger_id: LedgerId, bookie: BookieId) -> None:
    client = ground.client()
    incarnation = client.bookies.registrations()[bookie].incarnation
    refill_ledger(client, RefillWork(ledger_id, bookie, incarnation, None))


def without_refill_fixed_only(patch: pytest.MonkeyPatch) -> None:
    without_rw_closed_only(patch)
    patch.setattr(refilling, "_why_not_fixed", lambda metadata, bookie: None)


@needs("refill_fixed_only", without_refill_fixed_only, bookies=3)
def a_wiped_bookie_has_no_say_in_a_recovery(ground: Ground) -> None:
    """An entry is on two bookies, one of which is wiped; the other is away when it is asked for."""
    writer = written(ground, 1, close=False)
    wiped, away, _ = writer.metadata.last_fragment.ensemble
    for position in range(2):
        put(ground, writer, position, 1, 1)
    ground.format(wiped)

    refill(ground, writer.ledger_id, wiped)
    ground.stop(away)
    with suppress(RecoveryUndecidedError):
        recover_ledger(ground.client(InlineRuntime()), writer.ledger_id)
    ground.start(away)
    recover_ledger(ground.client(), writer.ledger_id)

    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.last_entry_id == 1, "what Qa bookies have stored is acknowledged"


@needs("refill_whole", without(refilling, "_is_whole", lambda shares: True), bookies=3)
def a_bookie_that_is_out_of_limbo_holds_everything(ground: Ground) -> None:
    writer = written(ground, 3)
    wiped, *others = writer.metadata.last_fragment.ensemble
    ground.format(wiped)
    for other in others:
        ground.stop(other)
    refill(ground, writer.ledger_id, wiped)
    for other in others:
        ground.start(other)

    refill(ground, writer.ledger_id, wiped)  # now there is somebody to copy from
    for other in others:
        ground.stop(other, destroy=True)

    assert payloads(ground, writer) == [b"0", b"1", b"2"]


@needs("replaced_empty_only", without(formatting, "_check_replaced", lambda _: None), bookies=3)
def a_disk_that_holds_data_was_not_replaced(ground: Ground) -> None:
    writer = written(ground, 1)
    kept, *others = writer.metadata.last_fragment.ensemble
    ground.stop(kept)
    for other in others:
        ground.stop(other, destroy=True)

    with suppress(InvalidArgumentError):
        format_bookie(
            ground.context.store,
            Partition(LocalStorage(ground.root(kept), kept)),
            kept,
            token=ground.runtime.token,
            is_replaced=True,
        )
    ground.start(kept)

    assert payloads(ground, writer) == [b"0"]


# R14


def without_r14(patch: pytest.MonkeyPatch) -> None:
    def hopeful(store: Any, ledger_id: Any, transform: Any, *, known: Any = None) -> Any:
        current = known if known is not None else store.read_ledger(ledger_id)
        intended = transform(current.value)
        assert intended is not None
        try:
            return store.write_ledger(ledger_id, intended, current)
        except MetadataUnavailableError:
            return Versioned(intended, current.version + 1, current.own_writes + 1)

    patch.setattr(ensemble_change, "update_ledger", hopeful)


@needs("R14", without_r14)
def a_change_that_may_have_been_lost_is_looked_for(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
    victim = writer.metadata.last_fragment.ensemble[0]
    lost: list[str] = []

    def lose_the_request(place: str, operation: str, path: str) -> None:
        if operation == "write_ledger" and not lost:
            lost.append(path)
            raise MetadataUnavailableError("no answer")

    ground.before.append(lose_the_request)
    ground.format(victim)
    ground.until(
        lambda: writer.append(b"x") > 0 and victim not in writer.metadata.last_fragment.ensemble
    )

    stored = ground.context.store.read_ledger(writer.ledger_id).value
    assert stored.last_fragment == writer.metadata.last_fragment
    writer.close()


# R15, R16


@needs("R15", without(FanOut, "_name", lambda self, c: f"{self._task:05d}-{c}.arrow"))
def two_attempts_of_a_task_do_not_meet(ground: Ground) -> None:
    table = pa.table({"n": range(5000)})
    writer = lifecycle.create_ledger(
        ground.context, USUAL, schema=table.schema, entry_target_bytes=2000
    )
    plan = writer._pipeline.begin_bulk("this one", None)
    loser = write_local(plan, table.slice(0, 100), ground.context)
    winner = write_local(plan, table, ground.context)
    assert not any(result.failures for result in (*loser, *winner)), "names are unique"
    writer._pipeline.end_bulk(plan, winner).result(60)
    writer.close()
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(table)


@needs("R16 nonces", without(ThreadRuntime, "token", lambda self: "0" * 32), bookies=3)
def a_ledger_made_again_under_an_old_id_is_another_one(ground: Ground) -> None:
    for payload in (b"old", b"new"):
        with lifecycle.create_ledger(ground.context, USUAL, ledger_id=5) as writer:
            writer.append(payload)
        if payload == b"old":
            lifecycle.delete_ledger(ground.context, 5)
            ground.cluster.used_ids.clear()  # it was made by a version that left no mark
    (entry,) = lifecycle.open_ledger(ground.client(), 5).entries()
    assert entry.payload == b"new"


forgetful = property(lambda _: set(), lambda *_: None)


@needs("R16 used ids", without(MemoryCluster, "used_ids", forgetful))
def an_id_that_was_used_is_refused(ground: Ground) -> None:
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    lifecycle.delete_ledger(ground.client(), 5, even_if_alive=True)
    try:
        new = lifecycle.create_ledger(ground.client(), USUAL, ledger_id=5)
    except LedgerExistsError:
        return
    new.append(b"new")
    old.close()
    found = ground.context.store.read_ledger(LedgerId(5)).value
    assert found.last_entry_id != -1, "acked-entries-are-readable"


def read_anew(store: LedgerStore, ledger_id: LedgerId, _: object) -> Versioned[LedgerMetadata]:
    """Whichever ledger has the id now."""
    return store.read_ledger(ledger_id)


def made_again_by_another_tool(ground: Ground) -> LedgerWriter:
    """A writer of another ledger with the id 5, which has appended an entry."""
    metadata = lifecycle.create_ledger(ground.client(), USUAL).metadata
    found = ground.cluster.recreate_by_another_tool(LedgerId(5), metadata)
    writer = LedgerWriter(ground.client(), Ledger.of(LedgerId(5), found.value), found)
    writer.append(b"new")
    return writer


def without_r16_own_writes(patch: pytest.MonkeyPatch) -> None:
    def by_version(ledger_id: LedgerId, found: Versioned[Any], known: Versioned[Any]) -> None:
        if found.version != known.version:
            raise refusals.ledger_conflict(ledger_id, known.version, found.version)

    patch.setattr(memory_store, "_check_unchanged", by_version)


@needs("R16 own writes", without_r16_own_writes)
@needs("R16 nonces compared", without(update, "read_again", read_anew))
def an_old_writer_means_its_own_ledger(ground: Ground) -> None:
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    made_again_by_another_tool(ground)
    with suppress(NoSuchLedgerError):
        old.close()
    found = ground.context.store.read_ledger(LedgerId(5)).value
    assert found.last_entry_id != -1, "acked-entries-are-readable"


@needs("R16 nonces read", without(context, "read_again", read_anew))
def a_reader_stays_with_its_ledger(ground: Ground) -> None:
    lifecycle.create_ledger(ground.context, USUAL, ledger_id=5).append(b"old")
    reader = lifecycle.open_ledger_no_recovery(ground.client(), 5)
    made_again_by_another_tool(ground).close()
    with suppress(NoSuchLedgerError):
        reader.refresh()
    assert [entry.payload for entry in reader.entries()] == [], "the LAC of the old one is -1"


@needs("R16 nonces of plans", without(update, "read_again", read_anew))
def planned_work_is_for_the_ledger_it_was_planned_for(ground: Ground) -> None:
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    work = RecoverWork(LedgerId(5), ground.context.store.read_ledger(LedgerId(5)))
    new = made_again_by_another_tool(ground)

    (row,) = recover_one(ground.client(), work)

    assert row.status == "gone"
    assert new.append(b"it was not fenced") == 1
    old.abandon()


# Deletion


def stopped_without_a_fence(
    context: Any, ledger_id: LedgerId, found: Versioned[LedgerMetadata]
) -> tuple[Versioned[LedgerMetadata], Fencing]:
    flagged = update.update_ledger(context.store, ledger_id, flag, known=found)
    return flagged, Fencing(ledger_id, "OPEN")


@needs("delete_fence", without(deletion, "stop_writer", stopped_without_a_fence))
def a_writer_that_was_frozen_appends_nothing_to_a_ledger_deleted_meanwhile(ground: Ground) -> None:
    frozen = ground.client()
    writer = written(frozen, 1, close=False)
    frozen.store.close()  # its session ends, and nothing tells it of anything

    lifecycle.delete_ledger(ground.context, writer.ledger_id)

    try:
        writer.append(b"after")
    except LedgerFencedError:
        return
    raise AssertionError("an entry of a ledger that is gone was acknowledged")


@needs("delete_coverage", without(Quorum, "has_coverage", lambda self, answered: True))
def a_ledger_is_not_deleted_while_a_frozen_writer_could_go_on(ground: Ground) -> None:
    frozen = ground.client()
    writer = written(frozen, 1, close=False)
    frozen.store.close()
    for bookie in writer.metadata.last_fragment.ensemble[:2]:  # an ack quorum
        ground.stop(bookie)

    with suppress(RecoveryUndecidedError):
        lifecycle.delete_ledger(ground.context, writer.ledger_id)

    assert writer.ledger_id in ground.cluster.ledgers
