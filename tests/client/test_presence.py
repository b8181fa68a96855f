"""Ledgers show who writes them, whether that process lives, and how far they have come."""

from __future__ import annotations

import json
import logging
import os
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from spark_bookkeeper.client import lifecycle, views
from spark_bookkeeper.client.ledger import WRITER, with_incarnations
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.presence import ENDED_FIRST
from spark_bookkeeper.client.read import reader
from spark_bookkeeper.client.read.newest import Newest, newest_entry
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import LedgerError
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing import ground as grounds
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.hooks import NO_ANSWER, At
from tests.support.rows import wait_for_every_copy
from tests.support.slotlog import log_of
from tests.worlds import USUAL


def written_by_the_dead(ground: Ground) -> LedgerWriter:
    """A ledger with two entries on every bookie, whose writer's session ended."""
    context = ground.client()
    writer = lifecycle.create_ledger(context, Quorum(3, 3, 3))
    writer.append(b"0")
    writer.append(b"1")
    context.store.close()
    return writer


def look(ground: Ground, ledger_id: int) -> LedgerInfo:
    context = ground.client()
    found = context.store.read_ledger(LedgerId(ledger_id)).value
    return LedgerInfo.of(LedgerId(ledger_id), found, context, lambda table: table)


def rewritten(ground: Ground, ledger_id: int, **custom: bytes | None) -> LedgerMetadata:
    """A ledger's custom metadata as another client leaves them; ``None`` takes a key away."""
    store = ground.context.store
    found = store.read_ledger(LedgerId(ledger_id))
    kept = {**found.value.custom_metadata, **custom}
    changed = {key: value for key, value in kept.items() if value is not None}
    value = replace(found.value, custom_metadata=changed)
    return store.write_ledger(LedgerId(ledger_id), value, found).value


def states(ground: Ground, *, ask_bookies: bool = False) -> dict[int, str | None]:
    table = views.ledgers_table(ground.client(), ask_bookies=ask_bookies)
    return {row["ledger_id"]: row["writer_state"] for row in table.to_pylist()}


def test_an_open_ledger_shows_its_writer_and_how_far_it_has_come(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    began_ms = ground.runtime.wall_ms()
    for payload in (b"0", b"1", b"2"):
        writer.append(payload)
    wait_for_every_copy(writer)

    shown = look(ground, writer.ledger_id)

    assert (shown.state, shown.writer, shown.writer_state) == ("OPEN", grounds.WRITER, "lives")
    assert shown.last_add_confirmed == 1, "the LAC in the record of entry 2"
    assert shown.newest_entry_ms is not None
    assert began_ms - 60_000 < shown.newest_entry_ms <= ground.runtime.wall_ms() + 60_000
    assert str(grounds.WRITER) in shown._repr_html_()
    writer.close()
    shown = look(ground, writer.ledger_id)
    assert (shown.writer, shown.writer_state) == (grounds.WRITER, None)
    assert (shown.last_add_confirmed, shown.newest_entry_ms) == (2, None)


def test_a_writer_that_is_dead_is_gone_and_one_that_left_no_note_is_unknown(ground: Ground) -> None:
    living = lifecycle.create_ledger(ground.context, USUAL)
    gone = written_by_the_dead(ground)
    older = lifecycle.create_ledger(ground.context, USUAL)
    rewritten(ground, older.ledger_id, **{WRITER: None})
    foreign = lifecycle.create_ledger(ground.context, USUAL)
    rewritten(ground, foreign.ledger_id, **{WRITER: None, "spark-bookkeeper.nonce": None})
    junk = lifecycle.create_ledger(ground.context, USUAL)
    rewritten(ground, junk.ledger_id, **{WRITER: b"\xff{", "spark-bookkeeper.nonce": b"/../\xff"})
    with lifecycle.create_ledger(ground.context, USUAL) as closed:
        pass

    wanted = {
        living.ledger_id: "lives",
        gone.ledger_id: "gone",
        older.ledger_id: "unknown",
        foreign.ledger_id: "unknown",
        junk.ledger_id: "unknown",
        closed.ledger_id: None,
    }
    assert states(ground) == states(ground, ask_bookies=True) == wanted
    assert {i: look(ground, i).writer_state for i in wanted} == wanted
    assert look(ground, junk.ledger_id).writer is None


def test_a_writer_that_gave_up_or_was_fenced_is_gone_though_its_process_lives(
    ground: Ground,
) -> None:
    abandoned = lifecycle.create_ledger(ground.context, USUAL)
    abandoned.append(b"0")
    abandoned.abandon()
    failed = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
    failed.append(b"0")
    fenced = lifecycle.create_ledger(ground.context, USUAL)
    fenced.append(b"0")
    other = ground.client()
    log = log_of(
        other, fenced.metadata.last_fragment.ensemble[0], other.ledger(fenced.ledger_id)[0]
    )
    log.fence()
    with pytest.raises(Exception, match="fenced by another client"):
        ground.until(lambda: fenced.append(b"1") < 0)
    for bookie in ground.bookie_ids[:2]:
        ground.stop(bookie)
    with pytest.raises(Exception, match="takes no more entries"):
        ground.until(lambda: failed.append(b"1") < 0)

    assert states(ground) == {writer.ledger_id: "gone" for writer in (abandoned, failed, fenced)}


def test_a_ledger_that_another_client_closed_leaves_nothing_behind(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
    writer.append(b"0")  # on all three when it returns, so that no put of it meets a fence
    lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert states(ground) == {writer.ledger_id: None}
    assert ground.cluster.writers

    with suppress(LedgerError):  # fenced or closed elsewhere, whichever it meets
        writer.close()

    assert not ground.cluster.writers
    assert not ground.cluster.deletion_watchers


def test_a_ledger_closed_during_the_listing_is_not_said_to_lack_a_writer(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)

    table = views.ledgers_table(ground.client(None, At("writers", writer.close)))

    (row,) = table.to_pylist()
    assert (row["state"], row["writer_state"]) == ("CLOSED", None)


def test_a_listing_asks_for_all_writers_at_once_and_for_no_bookie(ground: Ground) -> None:
    for _ in range(20):
        lifecycle.create_ledger(ground.context, USUAL)
    context = ground.client()
    ground.forget()

    table = views.ledgers_table(context)

    assert table.column("writer_state").to_pylist() == ["lives"] * 20
    assert set(table.column("writer").to_pylist()) == {str(grounds.WRITER)}
    assert table.column("last_add_confirmed").null_count == 20
    assert {step.place for step in ground.steps} == {METADATA}
    counted = ground.count()
    assert counted.pop("read_ledger") == 20
    assert counted == {"ledger_ids": 1, "writers": 1}


def test_a_listing_asks_the_bookies_of_open_ledgers_when_told_to(ground: Ground) -> None:
    gone = written_by_the_dead(ground)
    with lifecycle.create_ledger(ground.context, USUAL) as closed:
        closed.append(b"0")

    table = views.ledgers_table(ground.client(), ask_bookies=True)

    rows = {row["ledger_id"]: row for row in table.to_pylist()}
    assert rows[gone.ledger_id]["last_add_confirmed"] == 0
    assert rows[gone.ledger_id]["newest_entry_at"] is not None
    assert rows[closed.ledger_id]["last_add_confirmed"] == 0
    assert rows[closed.ledger_id]["newest_entry_at"] is None


def test_the_front_of_a_ledger_is_found_through_what_is_missing(ground: Ground) -> None:
    context = ground.client()
    empty = lifecycle.create_ledger(ground.context, USUAL)
    found = context.store.read_ledger(empty.ledger_id).value
    assert newest_entry(context, empty.ledger_id, found) == Newest(NO_ENTRY, None)

    writer = written_by_the_dead(ground)
    ensemble = writer.metadata.last_fragment.ensemble
    for bookie in ensemble[:2]:
        ground.stop(bookie)
    newest = newest_entry(context, writer.ledger_id, writer.metadata)
    assert newest.last_add_confirmed == 0
    ground.stop(ensemble[2])
    assert newest_entry(context, writer.ledger_id, writer.metadata) == Newest()
    foreign = rewritten(ground, writer.ledger_id, **{"spark-bookkeeper.schema": None})
    assert newest_entry(context, writer.ledger_id, foreign) == Newest()


def test_a_new_fragment_without_entries_is_as_old_as_the_one_before(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(1, 1, 1))
    writer.append(b"0")
    (old,) = writer.metadata.last_fragment.ensemble
    new = next(bookie for bookie in ground.bookie_ids if bookie != old)
    alive = ground.context.bookies.registrations()
    changed = with_incarnations(
        writer.metadata.with_new_ensemble(EntryId(1), (new,)), {new: alive[new].incarnation}
    )

    newest = newest_entry(ground.client(), writer.ledger_id, changed)

    assert newest.last_add_confirmed == 0, "a new fragment begins after what was confirmed"
    assert newest.stored_at_ms is not None


# Following


def test_who_follows_a_ledger_without_a_writer_is_told_once_what_to_do(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written_by_the_dead(ground)
    following = lifecycle.open_ledger_no_recovery(ground.client(InlineRuntime()), writer.ledger_id)

    with caplog.at_level(logging.WARNING):
        seen = [entry.payload for entry in following.tail(timeout_ms=60_000)]

    assert seen == [b"0"]
    (told,) = [r.getMessage() for r in caplog.records if r.name == reader.__name__]
    assert f"the writer of ledger {writer.ledger_id} ({grounds.WRITER}) is gone" in told
    assert f"{ENDED_FIRST}; then open_ledger({writer.ledger_id}) or recover_ledgers([" in told
    assert (following.writer, following.writer_state()) == (grounds.WRITER, "gone")


def test_who_follows_a_ledger_in_vain_for_a_moment_is_told_at_its_end(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written_by_the_dead(ground)
    following = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)

    assert len(list(following.tail(timeout_ms=0))) == 1

    assert "is gone" in caplog.text


def test_who_follows_a_ledger_whose_writer_lives_is_told_nothing_and_asks_seldom(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    following = lifecycle.open_ledger_no_recovery(ground.client(InlineRuntime()), writer.ledger_id)
    ground.forget()

    assert list(following.tail(timeout_ms=60_000)) == []

    assert caplog.text == ""
    assert ground.count()["has_writer"] <= 60_000 / reader.WRITER_LOOK_MS + 1
    assert following.writer_state() == "lives"
    writer.close()
    following.refresh()
    assert following.writer_state() is None


def test_a_metadata_store_that_is_away_does_not_end_the_following_by_its_own(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written_by_the_dead(ground)
    client = ground.client(InlineRuntime(), At("has_writer", NO_ANSWER))
    following = lifecycle.open_ledger_no_recovery(client, writer.ledger_id)

    assert len(list(following.tail(timeout_ms=60_000))) == 1
    assert caplog.text == ""


ADA = WriterInfo("host-1", 4711, "ada", "etl.py")


def test_what_is_written_is_read_back() -> None:
    assert WriterInfo.decode(ADA.encode()) == ADA
    assert str(ADA) == "ada@host-1, process 4711, etl.py"


def test_this_process_knows_itself() -> None:
    me = WriterInfo.of_this_process()

    assert me.pid == os.getpid()
    assert all((me.host, me.user, me.application))
    assert WriterInfo.decode(me.encode()) == me
    assert WriterInfo.of_this_process("nightly") == replace(me, application="nightly")


def test_junk_is_nobody() -> None:
    told = {"host": "h", "pid": 1, "user": "u", "application": "a"}
    junk = [b"", b"{", b"\xff\xfe", b"null", b"[]", b'"text"', b"7", b"[" * 100_000]
    junk += [json.dumps({k: v for k, v in told.items() if k != gone}).encode() for gone in told]
    for key in told:
        wrongs: tuple[object, ...] = (None, [], {}, 1.5, True)
        for wrong in wrongs:
            junk.append(json.dumps({**told, key: wrong}).encode())
    dice = random.Random(7)
    for _ in range(2_000):
        changed = bytearray(ADA.encode())
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        found = WriterInfo.decode(bytes(changed))  # raises nothing
        assert found is None or str(found).isprintable()
    assert [WriterInfo.decode(each) for each in junk] == [None] * len(junk)


def test_a_name_neither_moves_the_cursor_nor_fills_the_screen() -> None:
    told = {"host": "a\x1b[2J\n", "pid": 1, "user": "u" * 10_000, "application": "é"}

    found = WriterInfo.decode(json.dumps(told).encode())

    assert found == WriterInfo("a?[2J?", 1, "u" * 200, "é")
