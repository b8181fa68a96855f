"""Reading on real files: what may be read, and replicas that are dead, wiped or damaged."""

from __future__ import annotations

import random
import shutil
import struct
import threading
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import Buffer

from spark_bookkeeper.bookie import new_record, record
from spark_bookkeeper.bookie.decoding import read_batch
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.messages import EncodedEntries
from spark_bookkeeper.bookie.record import decode, encode_add
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read import fetch
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import storage_of
from spark_bookkeeper.errors import (
    EntryUnreadableError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.hanging import Hang
from tests.client.gates import hangs_at, hold_adds
from tests.spoiling import spoil_at_random
from tests.support.rows import wait_for_every_copy
from tests.support.slotlog import every_place, log_of
from tests.worlds import USUAL, rows_writer, written


def closed(ground: Ground, quorum: Quorum = USUAL, count: int = 10) -> LedgerWriter:
    return written(ground, count, quorum)


def payloads_from(reader: LedgerReader, first: int = 0, last: int | None = None) -> list[bytes]:
    return [entry.payload for entry in reader.entries(first, last)]


def test_a_range_includes_both_its_ends(ground: Ground) -> None:
    reader = lifecycle.open_ledger(ground.context, closed(ground).ledger_id)

    assert payloads_from(reader, 3, 5) == [b"3", b"4", b"5"]
    assert payloads_from(reader, 8) == [b"8", b"9"]
    assert payloads_from(reader, 9, 9) == [b"9"]
    assert [e.entry_id for e in reader.entries()] == list(range(10))
    assert reader.read_arrow(1, 2).to_pydict() == {"payload": [b"1", b"2"]}


def test_a_table_is_read_a_message_at_a_time_and_is_in_entry_order(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [b"%d" % n for n in range(200)]
    with lifecycle.create_ledger(ground.context, Quorum(3, 2, 2)) as writer:
        for payload in wanted:
            writer.append_async(payload)
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)

    def one_by_one(*_: object) -> pa.RecordBatch:
        raise AssertionError("small entries share a message")

    monkeypatch.setattr(StoredEntry, "batch", one_by_one)

    assert reader.read_arrow().column(0).to_pylist() == wanted
    assert reader.read_arrow(7, 150).column(0).to_pylist() == wanted[7:151]


@pytest.mark.parametrize(("first", "last"), [(0, 10), (10, 10), (-1, 3), (5, 4), (11, None)])
def test_an_entry_out_of_range_is_refused_with_the_range(
    ground: Ground, first: int, last: int | None
) -> None:
    reader = lifecycle.open_ledger(ground.context, closed(ground).ledger_id)

    with pytest.raises(NoSuchEntryError, match="entries 0 to 9 can be"):
        payloads_from(reader, first, last)


@pytest.mark.parametrize(("first", "last"), [("a", None), (0, 1.5), (True, None), (None, None)])
def test_a_range_that_is_no_numbers_is_refused(ground: Ground, first: Any, last: Any) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    with pytest.raises(InvalidArgumentError, match="is not a whole number"):
        list(reader.entries(first, last))


def test_a_waiting_time_that_is_no_number_is_refused(ground: Ground) -> None:
    reader = lifecycle.open_ledger(ground.context, closed(ground).ledger_id)
    wrong: Any = "1"
    with pytest.raises(InvalidArgumentError, match="timeout_ms='1'"):
        next(reader.tail(wrong))


def test_whoever_has_read_to_the_end_goes_on_with_nothing(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
        last = writer.append(b"a")
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)

    assert list(reader.entries(last + 1)) == []
    with pytest.raises(NoSuchEntryError):
        list(reader.entries(last + 1, last + 1))
    with pytest.raises(NoSuchEntryError):
        list(reader.entries(last + 2))


def test_a_reader_that_was_closed_says_so(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"a")
    with lifecycle.open_ledger_no_recovery(ground.context, writer.ledger_id) as reader:
        pass
    for use in (reader.read_arrow, reader.refresh, lambda: list(reader.tail(timeout_ms=0))):
        with pytest.raises(InvalidArgumentError, match=r"this reader .* was closed"):
            use()


def test_the_entries_of_an_empty_ledger_are_none(ground: Ground) -> None:
    reader = lifecycle.open_ledger(ground.context, closed(ground, count=0).ledger_id)

    assert payloads_from(reader) == []
    assert reader.read_arrow().num_rows == 0
    with pytest.raises(NoSuchEntryError):
        payloads_from(reader, 0, 0)


def test_a_wrong_password_reads_and_changes_nothing(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL, password=b"secret")
    writer.append(b"a")

    for opened in (lifecycle.open_ledger, lifecycle.open_ledger_no_recovery):
        with pytest.raises(UnauthorizedError):
            opened(ground.context, writer.ledger_id, b"wrong")
    assert writer.append(b"b") == 1, "nothing was fenced"
    assert payloads_from(lifecycle.open_ledger(ground.context, writer.ledger_id, b"secret")) == [
        b"a",
        b"b",
    ]


def test_a_ledger_that_does_not_exist(ground: Ground) -> None:
    with pytest.raises(NoSuchLedgerError):
        lifecycle.open_ledger(ground.context, 99)
    with pytest.raises(InvalidArgumentError):
        lifecycle.open_ledger(ground.context, -1)


def test_a_ledger_deleted_while_it_is_read(ground: Ground) -> None:
    reader = lifecycle.open_ledger(ground.context, closed(ground).ledger_id)
    lifecycle.delete_ledger(ground.context, reader.ledger_id)
    for bookie in ground.bookie_ids:
        shutil.rmtree(ground.root(bookie) / "ledgers", ignore_errors=True)

    with pytest.raises(NoSuchLedgerError):
        payloads_from(reader)


def test_a_payload_is_only_for_the_default_schema(ground: Ground) -> None:
    table = pa.table({"a": [1, 2]})
    with lifecycle.create_ledger(ground.context, USUAL, schema=table.schema) as writer:
        writer.append(table)
    (entry,) = lifecycle.open_ledger(ground.context, writer.ledger_id).entries()

    assert entry.batch.to_pydict() == {"a": [1, 2]}
    with pytest.raises(InvalidArgumentError, match=r"\.batch"):
        _ = entry.payload


def test_an_entry_equals_what_has_the_same_rows_however_they_came_to_it(ground: Ground) -> None:
    batch = pa.record_batch({"a": [[1], [2, 3]]})
    for rows, schema in ((b"payload", None), (batch, batch.schema)):
        writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=schema)
        writer.append(rows)
        writer.append(rows)
        writer.close()
        first, second = lifecycle.open_ledger(ground.context, writer.ledger_id).entries()
        (again, _) = lifecycle.open_ledger(ground.context, writer.ledger_id).entries()

        same = first.with_batch(first.batch)
        assert first == same == again
        assert first != second
        assert first != first.with_batch(first.batch.slice(0, 0))
        assert first != "something else"
        assert {first, same, again, second} == {first, second}


# While it is written


def test_without_recovery_a_reader_stops_at_the_lac_and_disturbs_nobody(ground: Ground) -> None:
    writer = written(ground, 5, close=False)
    writer.flush()

    reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)

    assert not reader.is_closed
    assert 0 <= reader.last_add_confirmed <= 4
    assert payloads_from(reader) == [b"%d" % i for i in range(reader.last_add_confirmed + 1)]
    with pytest.raises(NoSuchEntryError, match="last add confirmed"):
        payloads_from(reader, 0, reader.last_add_confirmed + 1)
    assert writer.append(b"5") == 5
    wait_for_every_copy(writer)
    assert reader.refresh() >= 4
    writer.close()
    assert reader.refresh() == 5
    assert reader.is_closed


def test_r10_no_record_says_more_than_was_confirmed_when_it_was_made(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    ensemble = writer.metadata.last_fragment.ensemble
    gate = hold_adds(ground, *ensemble[1:])
    futures = [writer.append_async(b"%d" % i) for i in range(3)]
    ground.until(lambda: len(ground.files(ensemble[0], "slots")) >= 1)
    client = ground.client()
    reader = lifecycle.open_ledger_no_recovery(client, writer.ledger_id)

    assert reader.last_add_confirmed == -1, "one copy is no ack quorum"
    assert payloads_from(reader) == []
    gate.open()
    futures[-1].result(60)
    writer.close()


def test_a_tail_follows_the_writer_until_it_closes(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    seen: list[bytes] = []
    reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)
    thread = threading.Thread(target=lambda: seen.extend(e.payload for e in reader.tail()))
    thread.start()
    for i in range(30):
        writer.append(b"%d" % i)
    ground.until(lambda: len(seen) > 0)
    writer.close()
    thread.join(60)

    assert seen == [b"%d" % i for i in range(30)]


def test_a_tail_without_news_ends_after_its_time(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)

    assert list(reader.tail(timeout_ms=50)) == []


def test_who_follows_a_ledger_asks_no_silent_bookie_while_another_answers(tmp_path: Path) -> None:
    config = ClientConfig(bookie_timeout_ms=600_000, read_hedge_ms=20)
    ground = Ground(tmp_path, bookies=3, config=config)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    wait_for_every_copy(writer)
    hang = Hang(ground.runtime)
    silent = writer.metadata.last_fragment.ensemble[0]
    client = ground.client(None, hangs_at(silent, hang))
    reader = lifecycle.open_ledger_no_recovery(client, writer.ledger_id)
    ground.until(lambda: client.bookies.is_silent(silent))
    before = hang.count
    for _ in range(20):
        reader.refresh()

    assert hang.count == before
    hang.release()
    ground.until(lambda: hang.stuck == 0)
    writer.close()


def test_silent_bookies_are_asked_for_the_lac_when_no_other_answers(tmp_path: Path) -> None:
    config = ClientConfig(bookie_timeout_ms=600_000, read_hedge_ms=20, explicit_lac_ms=0)
    ground = Ground(tmp_path, bookies=3, config=config)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    writer.append(b"1")
    wait_for_every_copy(writer)
    hang = Hang(ground.runtime, lambda operation, path: path == "bad")
    client = ground.client(None, lambda place, operation, path: hang.meet(operation, path))
    for bookie in ground.bookie_ids:
        bookie_client, storage = client.bookies.bookie_client(bookie), storage_of(client, bookie)
        bookie_client.begin(
            "reading a bad file", partial(storage.read, "bad"), ground.runtime.condition()
        )
    ground.until(lambda: all(client.bookies.is_silent(b) for b in ground.bookie_ids))

    reader = lifecycle.open_ledger_no_recovery(client, writer.ledger_id)
    assert reader.last_add_confirmed == 0
    hang.release()
    writer.close()


def test_the_lac_cannot_be_read_when_no_bookie_answers(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)
    for bookie in writer.metadata.last_fragment.ensemble:
        ground.stop(bookie)

    with pytest.raises(EntryUnreadableError, match="no bookie of its last fragment answered"):
        lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)


# Which replica is asked first


def test_a_bookie_that_was_slow_once_is_asked_no_more_while_others_answer(tmp_path: Path) -> None:
    config = ClientConfig(bookie_timeout_ms=600_000, read_hedge_ms=300)
    ground = Ground(tmp_path, bookies=3, config=config)
    writer = closed(ground, count=200)
    wait_for_every_copy(writer)
    slow, asked = writer.metadata.last_fragment.ensemble[1], list[str]()
    hang = Hang(ground.runtime, is_late=False)

    def at_each(place: str, operation: str, path: str) -> None:
        asked.append(place)
        if place == slow:
            hang.meet(operation, path)

    client = ground.client(None, at_each)
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    fetcher = Fetcher(client, reader.ledger, spread=1)
    asked.clear()
    entries = fetcher.fetch(EntryId(0), EntryId(199))
    first = next(entries)
    assert slow in asked, "its turn came first"
    hang.release()
    ground.until(lambda: not client.bookies.is_silent(slow))
    ground.until(lambda: hang.stuck == 0)
    asked.clear()

    assert [first.entry_id, *(entry.entry_id for entry in entries)] == list(range(200))
    assert slow not in asked
    assert asked, "there was more to ask for"


def test_what_is_learnt_while_reading_is_noted_by_the_thread_that_reads(tmp_path: Path) -> None:
    """Bookies answer in threads of their own, the one that is late too; those note nothing."""
    ground = Ground(tmp_path, bookies=3, config=ClientConfig(read_hedge_ms=20))
    writer = closed(ground, count=50)
    wait_for_every_copy(writer)
    slow, noted = writer.metadata.last_fragment.ensemble[1], set[threading.Thread]()
    hang = Hang(ground.runtime, is_late=False)

    class Noting(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            noted.add(threading.current_thread())
            super().__setitem__(key, value)

        def pop(self, *key: Any) -> Any:
            noted.add(threading.current_thread())
            return super().pop(*key)

    client = ground.client(None, hangs_at(slow, hang))
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    fetcher = Fetcher(client, reader.ledger, spread=1)
    fetcher._replicas, fetcher._down = Noting(), Noting()
    assert len(list(fetcher.fetch(EntryId(0), EntryId(49)))) == 50
    hang.release()
    ground.until(lambda: hang.stuck == 0)

    assert noted == {threading.current_thread()}


def test_the_bookie_of_the_own_machine_is_asked_whoevers_turn_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, config=ClientConfig(read_hedge_ms=60_000))
    writer = closed(ground)
    wait_for_every_copy(writer)
    here, asked = writer.metadata.last_fragment.ensemble[1], list[str]()
    monkeypatch.setattr(fetch, "is_here", lambda bookie: bookie == here)
    client = ground.client(None, lambda place, operation, path: asked.append(place))
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    asked.clear()

    for turn in range(3):
        fetcher = Fetcher(client, reader.ledger, spread=turn)
        assert len(list(fetcher.fetch(EntryId(0), EntryId(9)))) == 10

    assert set(asked) - {"metadata"} == {here}


# Bad replicas


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_dead_wiped_and_emptied_replicas_are_passed_over(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path)
    writer = closed(ground, Quorum(*sizes))
    ensemble = writer.metadata.last_fragment.ensemble
    ground.stop(ensemble[0], destroy=True)
    assert payloads_from(lifecycle.open_ledger(ground.client(), writer.ledger_id)) == [
        b"%d" % i for i in range(10)
    ]
    ground.format(ensemble[1])
    assert payloads_from(lifecycle.open_ledger(ground.client(), writer.ledger_id)) == [
        b"%d" % i for i in range(10)
    ]


def test_when_none_is_left_the_error_names_entry_bookies_and_causes(ground: Ground) -> None:
    writer = closed(ground)
    a, b, c = writer.metadata.last_fragment.ensemble
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    ground.stop(a)
    ground.format(b)
    for path in ground.files(c, "slots"):
        path.unlink()

    with pytest.raises(EntryUnreadableError) as caught:
        payloads_from(reader, 4)

    error = caught.value
    assert error.entry_id == 4
    assert set(error.causes) == {a, b, c}
    assert "does not answer" in error.causes[a]
    assert "do not delete the ledger" in error.message
    ground.start(a)
    assert payloads_from(reader, 4, 4) == [b"4"]


@pytest.mark.parametrize("seed", range(10))
def test_two_of_three_replicas_of_every_file_are_damaged(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    ground = Ground(tmp_path)
    table = pa.table({"n": range(6000), "s": [f"row {i}" * 5 for i in range(6000)]})
    with rows_writer(ground, table, target=30_000) as writer:
        writer.append(table.slice(0, 100))
        writer.append(table.slice(100))
    for kind in ("slots", "parts"):
        by_name: dict[str, list[Path]] = {}
        for bookie in writer.metadata.last_fragment.ensemble:
            for path in ground.files(bookie, kind):
                by_name.setdefault(path.name, []).append(path)
        assert by_name
        for paths in by_name.values():
            for path in dice.sample(paths, 2):
                spoil_at_random(path, dice)

    read = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()

    assert read.equals(table)


def test_a_reader_finds_a_fragment_that_moved_under_it(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = closed(ground)
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    ensemble = writer.metadata.last_fragment.ensemble
    (spare,) = set(ground.bookie_ids) - set(ensemble)
    for bookie in ensemble[:1]:
        ground.stop(bookie, destroy=True)
        work = FragmentWork(
            writer.ledger_id,
            writer.metadata.last_fragment.first_entry_id,
            (bookie,),
            None,
            False,
            None,
        )
        (row,) = rereplicate_fragment(ground.client(), work)
        assert (row.status, row.target) == ("replicated", spare)
    for bookie in ensemble[1:]:
        ground.stop(bookie)

    assert payloads_from(reader) == [b"%d" % i for i in range(10)]


def test_fragments_that_share_no_bookie_are_read_as_one_ledger(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    with lifecycle.create_ledger(ground.context, Quorum(1, 1, 1)) as writer:
        for number in range(3):
            writer.append(b"%d" % (2 * number))
            writer.append(b"%d" % (2 * number + 1))
            if number < 2:
                ground.stop(writer.metadata.last_fragment.ensemble[0])
    for fragment in writer.metadata.fragments[:-1]:
        ground.start(fragment.ensemble[0])

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert len(writer.metadata.fragments) == 3
    assert payloads_from(reader) == [b"%d" % n for n in range(6)]
    assert payloads_from(reader, 1, 4) == [b"%d" % n for n in range(1, 5)]
    assert reader.read_arrow().column(0).to_pylist() == [b"%d" % n for n in range(6)]


def test_a_reader_does_not_go_back_when_the_bookie_that_knew_most_goes_away(ground: Ground) -> None:
    writer = written(ground, 5, close=False)
    writer.flush()
    reader = lifecycle.open_ledger_no_recovery(ground.context, writer.ledger_id)
    known = reader.last_add_confirmed
    assert known >= 3

    last = writer.metadata.last_fragment.ensemble
    for bookie in last[:2]:
        ground.stop(bookie, destroy=True)
    slots = sorted(ground.files(last[2], "slots"))
    for slot in slots[1:]:
        slot.unlink()  # a power cut under a disk that had not synced

    assert reader.refresh() == known
    assert reader.last_add_confirmed == known


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_some_columns_are_fetched_without_the_others(
    ground: Ground, sizes: tuple[int, int, int], compression: str | None
) -> None:
    rows = pa.table({"n": range(900), "text": [f"row {n}" for n in range(900)]})
    writer = lifecycle.create_ledger(
        ground.context,
        Quorum(*sizes),
        schema=rows.schema,
        compression=compression,
        entry_target_bytes=1000,
    )
    last = writer.append(rows)
    writer.close()
    ledger, _ = ground.context.ledger(writer.ledger_id)

    found = Fetcher(ground.context, ledger, columns=["text"]).scan(EntryId(0), last)

    batches = [piece.batch for piece in found]
    assert pa.Table.from_batches(batches).equals(rows.select(["text"]))


def test_a_column_that_was_read_holds_no_memory_of_the_others(ground: Ground) -> None:
    table = pa.table({f"c{n}": pa.array([n, None, 3, 4] * 50_000) for n in range(10)})
    writer = rows_writer(ground, table, target=4 << 20)
    writer.append(table)
    writer.close()
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    before = pa.total_allocated_bytes()

    read = reader.read_arrow(columns=["c3"])

    held = pa.total_allocated_bytes() - before
    assert read.equals(table.select(["c3"]))
    assert held < 2 * read.nbytes, f"{held} bytes for {read.nbytes} of {table.nbytes}"


def test_columns_of_every_form_are_the_same_without_the_others(ground: Ground) -> None:
    table = pa.table(
        {
            "large": pa.array([bytes(200)] * 8, pa.binary()),
            "text": ["a", None, "", "d", "e", "f", "g", "h"],
            "bools": [True, None, False, True] * 2,
            "lists": [[1, 2], None, [], [None]] * 2,
            "structs": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 4, "b": ""}] * 2,
            "maps": pa.array([[("k", 1)], None, [], [("l", None)]] * 2, pa.map_("string", "int8")),
            "void": pa.nulls(8),
        }
    )
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=table.schema)
    writer.append(table)
    writer.close()
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)

    for name in table.column_names:
        read = reader.read_arrow(columns=[name])
        read.validate(full=True)
        assert read.equals(table.select([name]))


def test_rows_that_point_out_of_their_message_are_read_elsewhere(ground: Ground) -> None:
    """With the right digests: whoever can write a bookie's files can make such a record."""
    schema = pa.schema([("text", pa.string())])
    rows = pa.table({"text": ["abcdef"]}, schema=schema)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=schema) as writer:
        writer.append(rows)
        wait_for_every_copy(writer)
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    ledger, _ = ground.context.ledger(writer.ledger_id)
    bookies = ledger.metadata.last_fragment.ensemble

    for number, bookie in enumerate(bookies):
        assert reader.read_arrow() == rows
        assert [entry.batch.to_pydict() for entry in reader.entries()] == [rows.to_pydict()]
        slot = ground.root(bookie) / LedgerPaths(ledger.key).slot(0)
        point_elsewhere(slot, ledger)
        if number == 0:
            stored = Fetcher(ground.context, ledger, only=bookie).fetch(EntryId(0), EntryId(0))
            with pytest.raises(EntryUnreadableError, match="rows cannot be decoded"):
                list(stored)

    for read in (reader.read_arrow, lambda: list(reader.entries())):
        with pytest.raises(EntryUnreadableError, match="rows cannot be decoded"):
            read()


def test_rows_are_decoded_once_for_each_entry_that_is_read(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("text", pa.string())])
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2), schema=schema) as writer:
        for text in "abc":
            writer.append(pa.table({"text": [text]}, schema=schema))
    decoded = 0

    def counted(message: Buffer, schema: pa.Schema) -> pa.RecordBatch:
        nonlocal decoded
        decoded += 1
        return read_batch(message, schema)

    monkeypatch.setattr("spark_bookkeeper.bookie.entry.read_batch", counted)
    entries = list(lifecycle.open_ledger(ground.context, writer.ledger_id).entries())

    assert [entry.batch["text"][0].as_py() for entry in entries] == ["a", "b", "c"]
    assert decoded == 3


def point_elsewhere(slot: Path, ledger: Ledger) -> None:
    """Make the one value of a slot end far behind its message, and every digest match that."""
    data = slot.read_bytes()
    record = decode(data, ledger.key, ledger.encoding)
    message = data[record.header_bytes :][: int(record.sizes[0])]
    head, _, value = message.rpartition(struct.pack("<ii", 0, 6))
    message = head + struct.pack("<ii", 0, 2_000_000_000) + value
    digests = ledger.encoding.digester().digests([message])
    ids, lengths, sizes = ([int(each[0])] for each in (record.ids, record.lengths, record.sizes))
    entries = EncodedEntries((message,), 0, 0, ids, lengths, sizes, digests)
    lac = record.last_add_confirmed
    slot.unlink()
    slot.write_bytes(encode_add(ledger.key, ledger.encoding, record.token, 0, lac, entries))


def test_what_is_unconfirmed_can_be_looked_at_and_nothing_is_fenced(ground: Ground) -> None:
    writer = written(ground, 3, close=False)  # nobody was told yet that the last one is confirmed
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)

    reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)

    assert [entry.payload for entry in reader.entries()] == [b"0", b"1"]
    assert [(e.entry_id, e.payload) for e in reader.read_unconfirmed()] == [(2, b"2")]
    assert reader.metadata.state is LedgerState.OPEN


def test_a_closed_ledger_has_nothing_that_is_unconfirmed(ground: Ground) -> None:
    reader = lifecycle.open_ledger(ground.client(), written(ground, 3).ledger_id)

    assert list(reader.read_unconfirmed()) == []


BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock(ThreadRuntime):
    """A calendar that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.minutes = 0.0

    def wall_ms(self) -> int:
        return int(at(self.minutes).timestamp() * 1000)


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ground(tmp_path: Path, clock: Clock) -> Ground:
    return Ground(tmp_path, bookies=5, runtime=clock)


def reader_of(ground: Ground, clock: Clock, quorum: Quorum, minutes: list[float]) -> LedgerReader:
    with lifecycle.create_ledger(ground.context, quorum) as writer:
        for n, minute in enumerate(minutes):
            clock.minutes = minute
            writer.append(b"%d" % n)
    return lifecycle.open_ledger(ground.context, writer.ledger_id)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2)])
def test_every_entry_has_the_time_of_its_append(
    ground: Ground, clock: Clock, quorum: Quorum
) -> None:
    reader = reader_of(ground, clock, quorum, [0, 1, 5, 5, 9])

    assert [entry.appended_at for entry in reader.entries()] == [at(m) for m in (0, 1, 5, 5, 9)]
    for time, entry_id in ((-1, 0), (0, 0), (0.5, 1), (5, 2), (6, 4), (9, 4), (9.1, 5)):
        assert reader.entry_at(at(time)) == entry_id
    assert [e.payload for e in reader.entries(start_time=at(5))] == [b"2", b"3", b"4"]
    assert reader.read_arrow(last=3, start_time=at(5)).num_rows == 2
    assert reader.read_arrow(start_time=at(10)).num_rows == 0
    assert [e.payload for e in reader.entries(end_time=at(5))] == [b"0", b"1"]
    assert [e.payload for e in reader.entries(1, end_time=at(9))] == [b"1", b"2", b"3"]
    assert reader.read_arrow(start_time=at(0.5), end_time=at(5)).num_rows == 1
    assert reader.read_arrow(end_time=at(99)).num_rows == 5
    for nothing in ((at(2), at(3)), (at(5), at(5)), (None, at(-1)), (at(98), at(99))):
        assert list(reader.entries(start_time=nothing[0], end_time=nothing[1])) == []
    assert reader.entry_at(at(6).astimezone().replace(tzinfo=None)) == 4, "local time"


def test_within_a_ledger_times_do_not_go_back(ground: Ground, clock: Clock) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [5, 1, 7])

    assert [entry.appended_at for entry in reader.entries()] == [at(5), at(5), at(7)]


def test_copies_and_bulk_appends_keep_the_time(ground: Ground, clock: Clock) -> None:
    writer = lifecycle.create_ledger(
        ground.context, Quorum(3, 3, 2), schema=pa.schema([("n", pa.int64())]),
        entry_target_bytes=64,
    )  # fmt: skip
    clock.minutes = 1
    writer.append(pa.table({"n": [0]}))
    clock.minutes = 2
    writer.append(pa.table({"n": range(100)}))
    clock.minutes = 3
    last = writer.append(pa.table({"n": [100]}))
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)
    recover_ledger(ground.context, writer.ledger_id)
    recover_bookie(ground.context, LocalRunner(ground.context), BookieRecovery((lost,)))
    writer.abandon()

    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    stored: dict[int, int | None] = {}
    for bookie in sorted(reader.metadata.bookies()):
        if ground.files(bookie, "copies"):
            log = log_of(ground.context, bookie, reader.ledger)
            copies = log.reader.entries(every_place(log.locate(0)))
            stored |= {entry.entry_id: entry.appended_at_ms for entry in copies}
    times = [entry.appended_at for entry in reader.entries()]

    assert times == [at(1), *[at(2)] * (last - 1), at(3)]
    assert stored == {n: int(time.timestamp() * 1000) for n, time in enumerate(times) if time}


def test_what_an_earlier_version_wrote_counts_as_old(
    ground: Ground, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = record.encode_add
    monkeypatch.setattr(new_record, "encode_add", lambda *a: encode(*a[:-1]))  # without the time
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2])

    assert [entry.appended_at for entry in reader.entries()] == [None, None]
    assert reader.entry_at(at(-99)) == 2


def test_a_dead_bookie_is_passed_over_and_without_any_it_is_said(
    ground: Ground, clock: Clock
) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2, 3])
    first, *others = reader.metadata.last_fragment.ensemble
    ground.stop(first)
    assert reader.entry_at(at(2)) == 1
    for bookie in others:
        ground.stop(bookie)

    with pytest.raises(EntryUnreadableError, match="give an entry id"):
        reader.entry_at(at(2))


def test_both_ends_are_said_once_and_are_times_in_order(ground: Ground, clock: Clock) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2, 3])

    with pytest.raises(InvalidArgumentError, match="both say"):
        reader.read_arrow(EntryId(1), start_time=at(1))
    with pytest.raises(InvalidArgumentError, match="both say"):
        reader.read_arrow(last=1, end_time=at(1))
    with pytest.raises(InvalidArgumentError, match="Exchange them"):
        reader.read_arrow(start_time=at(2), end_time=at(1))
    with pytest.raises(InvalidArgumentError, match="neither True nor False"):
        reader.read_arrow(skip_lost="no")  # type: ignore[arg-type]  # what a person may type
    with pytest.raises(InvalidArgumentError, match="no datetime"):
        reader.entry_at("yesterday")  # type: ignore[arg-type]  # what a person may type
