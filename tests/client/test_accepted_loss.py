"""Closing a ledger without bookies that are gone for good: what is certain first, what is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.verdict import Refusal, RefusalKind, Verdict
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.recover.recovery import LedgerRecovery, recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnreadableError,
    InvalidArgumentError,
    LedgerFencedError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss, accepted_loss_of
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import Decision
from spark_bookkeeper.replication.lost_entries import lost_entries
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed
from tests.client.test_recovery import half_written, left, undecided
from tests.hooks import silent
from tests.snapshots import Snapshot
from tests.worlds import USUAL, first_of


def accepting(*gone: str) -> AcceptedLoss:
    return AcceptedLoss("ann@host", 7, tuple(map(BookieId, gone)), ((EntryId(0), None),))


def recovered(ground: Ground, writer: LedgerWriter, *gone: str) -> LedgerMetadata:
    return recover_ledger(ground.client(), writer.ledger_id, accepting=accepting(*gone)).value


@pytest.mark.parametrize("bookies", first_of(3, 5))
def test_what_a_bookie_that_is_left_has_is_kept_and_the_rest_is_named(
    tmp_path: Path, bookies: int
) -> None:
    ground = Ground(tmp_path, bookies=bookies)
    writer = left(ground, 3)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)

    closed = recovered(ground, writer)

    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 2)
    loss = accepted_loss_of(closed.custom_metadata)
    assert loss is not None
    assert (loss.missing, loss.gone) == (((3, None),), (a, b))
    assert (loss.accepted_by, loss.accepted_at_ms) == ("ann@host", 7)
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2"]


def test_more_than_was_shown_is_not_given_up(ground: Ground) -> None:
    writer = left(ground, 3)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)
    shown = replace(accepting(), missing=((EntryId(4), None),))

    with pytest.raises(RecoveryUndecidedError, match="may be missing now"):
        recover_ledger(ground.client(), writer.ledger_id, accepting=shown)

    assert ground.client().store.read_ledger(writer.ledger_id).value.state.name == "IN_RECOVERY"


def test_without_that_the_error_names_the_way_out(ground: Ground) -> None:
    writer = left(ground, 1)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)

    error = undecided(ground, writer)

    assert f"ledger recover {writer.ledger_id} --accept-loss" in error.message


def test_what_can_be_decided_is_decided_and_no_loss_is_noted(ground: Ground) -> None:
    writer = left(ground, 2)
    ground.format(writer.metadata.last_fragment.ensemble[0])

    closed = recovered(ground, writer)

    assert closed.last_entry_id == 1
    assert accepted_loss_of(closed.custom_metadata) is None


def test_a_bookie_that_is_merely_away_has_to_be_named(ground: Ground) -> None:
    writer = left(ground, 2)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.stop(a, destroy=True)
    ground.stop(b, destroy=True)

    with pytest.raises(RecoveryUndecidedError) as caught:
        recovered(ground, writer, a)

    assert f"{b}: it may be away only" in caught.value.message
    assert f"--gone {b}" in caught.value.message
    assert recovered(ground, writer, a, b).last_entry_id == 1


def test_a_bookie_that_is_registered_is_not_given_up_even_if_it_is_named(ground: Ground) -> None:
    writer = left(ground, 2)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.before.append(silent(b))

    with pytest.raises(RecoveryUndecidedError) as caught:
        recovered(ground, writer, a, b)

    assert f"{b}: it is registered and may answer yet" in caught.value.message


def test_one_that_is_named_and_answers_is_asked_first(ground: Ground) -> None:
    writer = left(ground, 2)
    ensemble = writer.metadata.last_fragment.ensemble

    closed = recovered(ground, writer, *ensemble)

    assert closed.last_entry_id == 1
    assert accepted_loss_of(closed.custom_metadata) is None


@pytest.mark.parametrize("is_silent", [True, False])
def test_one_that_cannot_say_just_now_what_it_has_may_answer_yet(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Damage there may be given up, silence and a file that cannot be read now may not."""
    writer = half_written(ground, USUAL, 0, [1])
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.format(b)
    verify = Replica.verify

    def unable(replica: Replica, entries: Sequence[int], *arguments: Any) -> Verdict:
        if replica.bookie_id == a and is_silent:
            raise BookieUnavailableError("no answer", bookie_id=a)
        if replica.bookie_id == a:
            return Verdict({}, dict.fromkeys(entries, Refusal(RefusalKind.UNREADABLE, "EIO")))
        return verify(replica, entries, *arguments)

    with monkeypatch.context() as for_now:
        for_now.setattr(Replica, "verify", unable)
        with pytest.raises(RecoveryUndecidedError, match=f"{a}: it is registered and may answer"):
            recovered(ground, writer, a)

    assert recovered(ground, writer, a).last_entry_id == 0


def test_a_bookie_that_registers_while_entries_are_copied_is_given_up_no_more(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = left(ground, 2)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.stop(a)
    ground.stop(b)
    write_back = LedgerRecovery.write_back

    def long(recovery: LedgerRecovery, decision: Decision) -> tuple[BookieId, ...]:
        ground.start(a)
        return write_back(recovery, decision)

    monkeypatch.setattr(LedgerRecovery, "write_back", long)
    with pytest.raises(RecoveryUndecidedError, match=f"{a}: it is registered and may answer"):
        recovered(ground, writer, a, b)


def test_the_mark_names_those_that_something_was_lost_with(ground: Ground) -> None:
    writer = left(ground, 1)
    a, b, c = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)

    loss = accepted_loss_of(recovered(ground, writer, c).custom_metadata)

    assert loss is not None
    assert loss.gone == (a, b)


def test_what_two_bookies_have_the_halves_of_is_kept_behind_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has its record, the other its bytes."""
    ground = Ground(tmp_path, bookies=5)
    writer = half_written(ground, Quorum(5, 3, 2), 0, [2, 3])
    a, b, c, *_ = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)

    def half(replica: Replica, entries: Sequence[int], *arguments: Any) -> Verdict:
        damaged = Refusal(RefusalKind.DAMAGED, "its record" if replica.bookie_id == c else "file")
        return Verdict({}, dict.fromkeys(entries, damaged))

    monkeypatch.setattr(Replica, "verify", half)
    closed = recovered(ground, writer)

    loss = accepted_loss_of(closed.custom_metadata)
    assert loss is not None
    assert (closed.last_entry_id, loss.missing) == (1, ((0, 0),))


def test_a_writer_that_comes_back_appends_nothing_to_what_was_closed(ground: Ground) -> None:
    writer = left(ground, 1)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)
    recovered(ground, writer)

    with pytest.raises(BookKeeperError):
        writer.append(b"late")

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert [entry.payload for entry in reader.entries()] == [b"0"]


def test_a_bookie_given_up_that_turns_up_again_changes_nothing(ground: Ground) -> None:
    writer = left(ground, 4)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.stop(a)
    ground.stop(b)
    closed = recovered(ground, writer, a, b)

    ground.start(a)
    ground.start(b)

    assert recover_ledger(ground.client(), writer.ledger_id).value == closed
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert len(list(reader.entries())) == 4


def test_a_hole_is_a_lost_entry_and_what_is_behind_it_is_kept(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=7)
    writer = half_written(ground, Quorum(5, 3, 2), 0, [2, 3])
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)  # all that had entry 0

    closed = recovered(ground, writer)

    loss = accepted_loss_of(closed.custom_metadata)
    assert loss is not None
    assert (closed.last_entry_id, loss.missing) == (1, ((0, 0),))
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert [entry.payload for entry in reader.entries(1)] == [b"1"]
    with pytest.raises(EntryUnreadableError, match="Nobody looks for it any more"):
        list(reader.entries())


def test_a_reader_says_that_a_loss_was_accepted(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = left(ground, 1)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)
    recovered(ground, writer)

    with caplog.at_level(logging.WARNING):
        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert reader.accepted_loss is not None
    assert reader.accepted_loss.missing == ((1, None),)
    assert all(s in caplog.text for s in ("entries 1.. may be missing", "skip_lost=True"))


def test_a_cookie_tells_that_a_bookie_was_formatted_again(ground: Ground) -> None:
    """Its agent need not run."""
    writer = left(ground, 1)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.format(bookie)
        ground.stop(bookie)

    assert recovered(ground, writer).last_entry_id == 0


def test_a_registration_that_its_cookie_does_not_bear_out_proves_nothing(ground: Ground) -> None:
    """An agent may serve another disk by mistake, and the right one be in a drawer."""
    writer = left(ground, 1)
    a, b, _ = writer.metadata.last_fragment.ensemble
    store = ground.context.store
    cookies = {bookie: store.read_cookie(bookie) for bookie in (a, b)}
    for bookie, before in cookies.items():
        ground.format(bookie)
        now = store.read_cookie(bookie)
        assert before is not None
        assert now is not None
        store.write_cookie(before.value, now.version)

    with pytest.raises(RecoveryUndecidedError, match="away only"):
        recovered(ground, writer)


def test_a_last_confirmed_entry_that_is_lost_ends_the_ledger_all_the_same(tmp_path: Path) -> None:
    """Another bookie knows that it was acknowledged: it is a lost entry of a closed ledger."""
    ground = Ground(tmp_path, bookies=4, config=ClientConfig(explicit_lac_ms=1))
    writer = lifecycle.create_ledger(ground.context, Quorum(4, 2, 2))
    writer.append(b"0")
    *lost, third, _ = writer.metadata.last_fragment.ensemble
    ledger, _ = ground.context.ledger(writer.ledger_id)
    replica = ground.context.bookies.replica(third, ledger)
    ground.until(lambda: replica.tail().last_add_confirmed == 0)
    writer.abandon()
    for bookie in lost:
        ground.format(bookie)

    closed = recovered(ground, writer)

    assert (closed.last_entry_id, closed.length_bytes) == (0, 0)


def test_of_a_thousand_lost_entries_not_each_is_asked_for_the_length(inline_ground: Ground) -> None:
    ground = inline_ground
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for _ in range(1000):
        writer.append(b"lost")
    a, *_ = writer.metadata.last_fragment.ensemble
    ground.stop(a)
    for _ in range(3):
        writer.append(b"of another fragment")
    writer.abandon()
    assert len(writer.metadata.fragments) == 2
    ground.start(a)
    for bookie in writer.metadata.bookies():
        ground.format(bookie)
    ground.forget()
    closed = recover_ledger(
        ground.client(InlineRuntime()), writer.ledger_id, accepting=accepting()
    ).value

    before = writer.metadata.last_fragment.first_entry_id - 1
    assert (closed.last_entry_id, closed.length_bytes) == (before, 0)
    assert len(ground.steps) < 1000


def test_a_writer_that_reaches_what_was_given_up_is_stopped_by_a_fence(tmp_path: Path) -> None:
    """They were not gone, so what it has acknowledged until then is lost: that was vouched for."""
    ground = Ground(tmp_path, bookies=3)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    a, b, _ = writer.metadata.last_fragment.ensemble
    for bookie in (a, b):
        ground.end_agent(bookie)
    client = ground.client(None, silent(a), silent(b))
    closed = recover_ledger(client, writer.ledger_id, accepting=accepting(a, b)).value

    def append_on() -> None:
        for _ in range(1000):
            writer.append(b"late")

    with pytest.raises(LedgerFencedError):
        append_on()

    assert client.store.read_ledger(writer.ledger_id).value == closed


@pytest.mark.parametrize("step", first_of(7, 1))
def test_killed_between_any_two_operations_it_comes_to_the_same_end(
    tmp_path: Path, step: int
) -> None:
    """At some operations, and in the full run at each."""
    begun = Ground(tmp_path / "begun", bookies=6, runtime=InlineRuntime())
    writer = half_written(begun, Quorum(5, 3, 2), 0, [2, 3])
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        begun.format(bookie)
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        loss, client = accepting(), ground.client(InlineRuntime(), kill)
        with suppress(Killed):
            recover_ledger(client, writer.ledger_id, accepting=loss)
        closed = recover_ledger(ground.client(), writer.ledger_id, accepting=loss).value
        told = accepted_loss_of(closed.custom_metadata)
        assert told is not None
        assert (closed.last_entry_id, told.missing) == (1, ((0, 0),)), at
    assert at > 20


ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"row {n}" for n in range(10)]})


def reader_of(
    ground: Ground, quorum: Quorum, entries: int = 6, compression: str | None = None
) -> LedgerReader:
    writer = lifecycle.create_ledger(
        ground.context, quorum, schema=ROWS.schema, compression=compression
    )
    for _ in range(entries):
        writer.append(ROWS)
    writer.close()
    return lifecycle.open_ledger(ground.context, writer.ledger_id)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_only_the_columns_that_are_wanted_are_decoded(
    ground: Ground, compression: str | None
) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2), compression=compression)

    assert reader.read_arrow(0, 0, columns=["name"]).equals(ROWS.select(["name"]))
    assert reader.read_arrow(0, 0, columns=["name", "id"]).equals(ROWS.select(["name", "id"]))
    with pytest.raises(InvalidArgumentError, match="the columns are id, name"):
        reader.read_arrow(columns=["colour"])
    with pytest.raises(InvalidArgumentError, match="no column was named"):
        reader.read_arrow(columns=[])


def test_what_is_lost_everywhere_is_passed_over_and_told(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(4, 2, 2))  # entry n is on the bookies n and n + 1
    ensemble = reader.metadata.last_fragment.ensemble
    for bookie in ensemble[1:3]:
        ground.stop(bookie, destroy=True)

    with pytest.raises(EntryUnreadableError):
        reader.read_arrow()
    found = reader.read_arrow(skip_lost=True)

    assert found.num_rows == 40
    told = reader.skipped.to_pylist()
    assert [(row["first_entry_id"], row["entries"], row["bookie_id"]) for row in told] == [
        (entry, 1, bookie) for entry in (1, 5) for bookie in sorted(ensemble[1:3])
    ]
    assert all(row["reason"] for row in told)
    everywhere = lost_entries(ground.context, LocalRunner(ground.context))
    assert everywhere.equals(reader.skipped)
    assert reader.read_arrow(0, 0, skip_lost=True).num_rows == 10
    assert reader.skipped.num_rows == 0


def test_a_loss_names_what_it_is_and_the_ways_on(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(4, 2, 2), log="orders")
    for number in range(8):
        writer.append(b"%d" % number)
    writer.close()
    ledger, ensemble = writer.ledger_id, writer.metadata.last_fragment.ensemble
    for bookie in ensemble[1:3]:
        ground.stop(bookie, destroy=True)

    with pytest.raises(EntryUnreadableError) as told:
        list(lifecycle.open_ledger(ground.context, ledger).entries(0, 6))

    named = (
        f"entry 1 of ledger {ledger} of log 'orders'",
        *(f"{bookie}: " for bookie in ensemble[1:3]),
        "Entries 1 to 6",
        f"bk.lost_entries([{ledger}])",
        "skip_lost=True",
        "failOnDataLoss=false",
    )
    assert [each for each in named if each not in told.value.message] == []


def test_when_all_is_lost_a_long_run_is_one_row_for_each_bookie(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2), 40)
    for bookie in reader.metadata.last_fragment.ensemble:
        ground.stop(bookie, destroy=True)

    assert reader.read_arrow(skip_lost=True).num_rows == 0
    assert sum(row["entries"] for row in reader.skipped.to_pylist()) == 3 * 40
    assert reader.skipped.num_rows == 3


def test_nothing_is_lost_where_all_can_be_read(ground: Ground) -> None:
    reader_of(ground, Quorum(3, 3, 2))

    assert lost_entries(ground.context, LocalRunner(ground.context)).num_rows == 0


def test_a_ledger_that_is_not_there_is_told(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(3, 3, 2))
    lifecycle.delete_ledger(ground.context, reader.ledger_id)

    (row,) = lost_entries(
        ground.context, LocalRunner(ground.context), [reader.ledger_id]
    ).to_pylist()

    assert (row["ledger_id"], row["bookie_id"]) == (reader.ledger_id, None)
    assert "deleted" in row["reason"]


def test_one_bookie_alone_is_read_or_not_at_all(ground: Ground) -> None:
    reader = reader_of(ground, Quorum(4, 2, 2))
    chosen = reader.metadata.last_fragment.ensemble[0]

    fetcher = Fetcher(ground.context, reader.ledger, only=chosen)
    own = [entry.entry_id for entry in fetcher.fetch(EntryId(0), EntryId(5))]
    assert own == [0, 3, 4]  # position 0 has the entries n and n - 1 of each stripe of 4

    ground.stop(chosen, destroy=True)
    with pytest.raises(EntryUnreadableError, match="only this one was to be read"):
        list(Fetcher(ground.context, reader.ledger, only=chosen).scan(EntryId(0), EntryId(5)))
