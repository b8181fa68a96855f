"""Appending to a ledger on real files: order, acknowledgement, failures, the cases of close."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import messages
from spark_bookkeeper.bookie.bookie import NewRecord
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bookie_channel import Group
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import AppendFailedError, InvalidArgumentError, LedgerFencedError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Task
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.client.gates import Gate, hold_adds
from tests.hooks import At
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL, payloads


def test_entry_ids_are_dense_from_0_and_nothing_written_is_minus_1(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length_bytes) == (
            -1,
            -1,
            0,
        )
        ids = [writer.append(b"%d" % i) for i in range(12)]

        assert ids == list(range(12))
        assert (writer.last_add_confirmed, writer.length_bytes) == (11, 14)
    assert payloads(ground, writer) == [b"%d" % i for i in range(12)]
    assert writer.metadata.last_entry_id == 11
    assert writer.metadata.length_bytes == 14


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (2, 2, 1), (3, 3, 3), (3, 2, 2), (4, 3, 2), (4, 2, 1)]
)
def test_callbacks_are_called_in_entry_order(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    ground = Ground(tmp_path, config=ClientConfig(max_group_entries=16))
    writer = lifecycle.create_ledger(ground.context, Quorum(*sizes))
    gate = hold_adds(ground, *writer.metadata.last_fragment.ensemble)
    order: list[int] = []
    futures = []
    for i in range(500):
        future = writer.append_async(b"%d" % i)
        future.add_done_callback(lambda f: order.append(f.result()))
        futures.append(future)
    gate.open()  # a callback that comes after the acknowledgement would be called at once

    assert writer.flush() == 499
    assert [f.result(60) for f in futures] == list(range(500))
    writer.close()
    ground.until(lambda: len(order) == 500)
    assert order == list(range(500))
    assert payloads(ground, writer) == [b"%d" % i for i in range(500)]


def test_several_threads_append_and_each_learns_its_own_entry(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    given: dict[bytes, int] = {}

    def append(name: int) -> None:
        for i in range(20):
            payload = b"%d/%d" % (name, i)
            given[payload] = writer.append(payload)

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    assert payloads(ground, writer) == sorted(given, key=lambda p: given[p])
    for name in range(4):
        mine = [given[b"%d/%d" % (name, i)] for i in range(20)]
        assert mine == sorted(mine)


def test_appends_that_wait_share_a_slot(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    gate = hold_adds(ground, *writer.metadata.last_fragment.ensemble)
    first = writer.append_async(b"first")
    assert gate.reached.wait(60)
    others = [writer.append_async(b"%d" % i) for i in range(200)]
    ground.forget()
    gate.open()

    assert first.result(60) == 0
    assert others[-1].result(60) == 200
    writer.close()
    # Bookies may differ by where the gate caught them; none has a slot for each entry.
    assert ground.count()["put_if_absent"] <= 9


def test_p10_a_small_append_is_qw_puts_no_listing_no_metadata(tmp_path: Path) -> None:
    for sizes in ((3, 3, 2), (4, 3, 2), (4, 2, 2)):
        ground = Ground(tmp_path / "".join(map(str, sizes)))
        quorum = Quorum(*sizes)
        writer = lifecycle.create_ledger(ground.context, quorum)
        ground.forget()
        for _ in range(8):
            writer.append(b"x")
        writer._pipeline.drain()

        puts = [s for s in ground.steps if s.operation == "put_if_absent"]
        assert len(puts) == 8 * quorum.write_quorum_size
        assert [s for s in ground.steps if s.operation == "list"] == []
        assert [s.operation for s in ground.steps if s.place == METADATA] == []


def test_an_expected_entry_id_guards_a_repeated_append(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        assert writer.append(b"a", expected_entry_id=0) == 0
        with pytest.raises(InvalidArgumentError, match="the next entry of ledger 0 is 1"):
            writer.append(b"a", expected_entry_id=0)
        with pytest.raises(InvalidArgumentError, match="expected_entry_id='1' is not a whole num"):
            writer.append(b"a", expected_entry_id="1")  # type: ignore[arg-type]  # as some would
        assert writer.append_async(b"b", expected_entry_id=1).result(60) == 1
    assert payloads(ground, writer) == [b"a", b"b"]


def test_appends_wait_while_too_many_bytes_are_on_their_way(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(max_pending_bytes=1000, max_group_bytes=1000))
    writer = lifecycle.create_ledger(ground.context, USUAL)
    gate = hold_adds(ground, *writer.metadata.last_fragment.ensemble)
    futures: list[Future[int]] = []

    def append() -> None:
        for _ in range(10):
            futures.append(writer.append_async(b"x" * 400))

    thread = threading.Thread(target=append)
    thread.start()
    assert gate.reached.wait(60)
    thread.join(0.3)
    assert thread.is_alive(), "it waits"
    assert len(futures) <= 2
    gate.open()
    thread.join(60)
    writer.close()

    assert [f.result(60) for f in futures] == list(range(10))


def test_an_entry_larger_than_the_limit_goes_alone(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(max_pending_bytes=1000, max_group_bytes=1000))
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        assert writer.append(b"x" * 50_000) == 0
        assert writer.append(b"") == 1
    assert [len(p) for p in payloads(ground, writer)] == [50_000, 0]


TEXT = pa.schema([("text", pa.string())])


@pytest.mark.parametrize("target_bytes", [100, 100_000], ids=["as parts", "in a slot"])
def test_rows_that_are_too_large_for_one_entry_are_refused_and_the_writer_goes_on(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, target_bytes: int
) -> None:
    monkeypatch.setattr(messages, "MOST_ENTRY_BYTES", 1000)
    one = pa.table({"text": ["x" * 2000]}, schema=TEXT)
    fits = pa.table({"text": ["x" * 900]}, schema=TEXT)
    chunked = pa.concat_tables([fits, fits])
    with lifecycle.create_ledger(
        ground.context, USUAL, schema=TEXT, entry_target_bytes=target_bytes
    ) as writer:
        for call in (writer.append, writer.append_async):
            with pytest.raises(InvalidArgumentError, match=r"2\d{3} bytes .*1000 bytes.*nothing"):
                call(one)
        if target_bytes > 1000:
            with pytest.raises(InvalidArgumentError, match="smaller pieces"):
                writer.append(chunked)
        assert writer.last_add_pushed == -1
        assert writer.append(fits) == 0
        assert writer.metadata.last_fragment.first_entry_id == 0, "no bookie is blamed"

    assert lifecycle.open_ledger(ground.context, writer.ledger_id).read_arrow().num_rows == 1


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_that_are_too_large_for_one_entry_are_refused_and_the_writer_goes_on(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, kind: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(messages, "MOST_ENTRY_BYTES", 1000)
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        for call in (writer.append, writer.append_async):
            with pytest.raises(InvalidArgumentError, match=r"1001 bytes .*1000 bytes.*nothing"):
                call(kind(bytes(1001)))
        assert writer.last_add_pushed == -1
        assert writer.append(kind(bytes(1000))) == 0

    assert [len(p) for p in payloads(ground, writer)] == [1000]
    assert len(writer.metadata.fragments) == 1, "no bookie is blamed"


def test_small_entries_share_no_slot_that_is_larger_than_an_entry_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST_ENTRY_BYTES", 1000)
    ground = Ground(tmp_path, config=ClientConfig(max_group_bytes=100_000))
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        gate = hold_adds(ground, *writer.metadata.last_fragment.ensemble)
        appended = [writer.append_async(b"x" * 400) for _ in range(20)]
        gate.open()
        assert [future.result(60) for future in appended] == list(range(20))
    assert len(writer.metadata.fragments) == 1, "no bookie is blamed"


def test_a_callback_may_append_also_while_too_many_bytes_are_on_their_way(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(max_pending_bytes=20_000, max_group_bytes=5_000))
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    told: list[int] = []

    def more(future: Future[int]) -> None:
        told.append(future.result())
        for _ in range(2):
            if writer.last_add_pushed < 199:
                writer.append_async(bytes(1000)).add_done_callback(more)

    writer.append_async(bytes(1000)).add_done_callback(more)
    ground.until(lambda: len(told) == 200)
    assert told == list(range(200))
    writer.close()


def test_a_callback_is_refused_what_would_wait_for_itself(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
    refused: list[str] = []

    def wait(_: Future[int]) -> None:
        for call in (lambda: writer.append(b"b"), writer.flush, writer.close):
            with pytest.raises(InvalidArgumentError, match="would wait for itself"):
                call()
            refused.append("again")

    writer.append_async(b"a").add_done_callback(wait)
    ground.until(lambda: len(refused) == 3)
    assert writer.append(b"b") == 1
    writer.close()


def test_a_callback_that_ends_its_thread_ends_nothing_else(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.append(args.thread.name))
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 3)) as writer:
        told: list[int] = []

        def end(_: Future[int]) -> None:
            raise SystemExit(1)

        for i in range(5):
            future = writer.append_async(b"%d" % i)
            future.add_done_callback(end)
            future.add_done_callback(lambda f: told.append(f.result()))
            assert future.result(60) == i
        ground.until(lambda: (told, len(ended)) == ([0, 1, 2, 3, 4], 5))
    assert len(writer.metadata.fragments) == 1


def test_an_error_that_nobody_foresaw_fails_the_append_and_not_silently(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    ground.before.append(At("put_if_absent", MemoryError("no memory is left")))
    future = writer.append_async(b"a")
    with pytest.raises(AppendFailedError, match="no memory is left"):
        future.result(60)
    ground.before.clear()
    with pytest.raises(AppendFailedError):
        writer.close()
    assert payloads(ground, writer) == []


# Rows


SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])


def table(count: int, start: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": range(start, start + count),
            "tags": [[f"t{i}", None] if i % 3 else None for i in range(start, start + count)],
        },
        schema=SCHEMA,
    )


def test_rows_of_another_schema_are_refused_with_both_shown(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL, schema=SCHEMA) as writer:
        wrong = pa.table({"id": ["a"], "tags": [["x"]]})
        for data in (wrong, wrong.to_batches()[0], b"bytes"):
            with pytest.raises(InvalidArgumentError) as caught:
                writer.append(data)
            assert "id: int64" in caught.value.message
            assert "nothing was appended" in caught.value.message
        with pytest.raises(InvalidArgumentError, match=r"not dict"):
            writer.append({"id": 1})
        assert writer.append(table(2)) == 0
    assert writer.metadata.last_entry_id == 0


def test_tables_pandas_and_batches_are_rows(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL, schema=SCHEMA) as writer:
        assert writer.append(table(3)) == 0
        assert writer.append(table(3, 3).to_batches()[0]) == 1
        assert writer.append(table(3, 6).to_pandas()) == 2
        assert writer.append(table(0)) == 2
    read = lifecycle.open_ledger(ground.context, writer.ledger_id).read_arrow()
    assert read.equals(table(9))


def test_an_append_without_rows_is_answered_behind_those_before_it(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    gate = hold_adds(ground, *ground.bookie_ids)

    first = writer.append_async(b"pending")
    empty = writer.append_async(writer.schema.empty_table())
    assert gate.reached.wait(60)

    assert not empty.done()
    gate.open()
    assert (first.result(60), empty.result(60)) == (0, 0)
    assert writer.append(writer.schema.empty_table()) == 0
    writer.close()


@pytest.mark.parametrize("wait", [LedgerWriter.flush, LedgerWriter.close])
def test_an_append_that_ctrl_c_kept_from_waking_its_channels_is_sent_by_who_waits(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, wait: Callable[[LedgerWriter], object]
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    ground.until(lambda: len(writer._pipeline._channels.idle) == 3)
    wake = AutoResetEvent.set

    def interrupted(wake_up: AutoResetEvent) -> None:
        monkeypatch.setattr(AutoResetEvent, "set", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoResetEvent, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append_async(b"1")

    waiting = threading.Thread(target=wait, args=(writer,), daemon=True)
    waiting.start()
    waiting.join(60)

    assert not waiting.is_alive()
    assert writer.last_add_confirmed == 1


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_a_writer_that_could_not_start_says_so_and_nobody_waits_for_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    spawn, left = ground.runtime.spawn, channels

    def interrupted(name: str, run: Callable[[], None]) -> Task:
        nonlocal left
        if not left:
            monkeypatch.undo()
            raise KeyboardInterrupt
        left -= 1
        return spawn(name, run)

    monkeypatch.setattr(ground.runtime, "spawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(b"lost")

    with pytest.raises(AppendFailedError, match="could not start"):
        writer.append(b"0")
    with pytest.raises(AppendFailedError, match="could not start"):
        writer.close()
    assert writer.metadata.last_entry_id == -1


@pytest.mark.parametrize("what", ["fenced", "ensemble-change"])
def test_when_no_thread_can_be_started_to_decide_the_writer_fails_and_nobody_waits(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)
    if what == "fenced":
        recover_ledger(ground.client(), writer.ledger_id)
    else:
        for bookie in writer.metadata.last_fragment.ensemble[:2]:
            ground.stop(bookie)
    spawn = ground.runtime.spawn

    def refused(name: str, run: Callable[[], None]) -> Task:
        if name == what:
            raise RuntimeError("can't start new thread")
        return spawn(name, run)

    monkeypatch.setattr(ground.runtime, "spawn", refused)
    expected = LedgerFencedError if what == "fenced" else AppendFailedError
    with pytest.raises(expected):
        writer.append_async(b"b").result(60)
    with pytest.raises(expected):
        writer.append_async(b"c")
    with pytest.raises(expected):
        writer.close()


def test_a_failed_writer_raises_an_error_of_its_own_at_every_call(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    writer.abandon()
    raised: list[AppendFailedError] = []

    for _ in range(3):
        with pytest.raises(AppendFailedError) as caught:
            writer.append(b"1")
        raised.append(caught.value)

    assert len(set(map(id, raised))) == 3
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in raised}) == 1


def test_acks_say_who_stored_what_and_when_and_what_is_pending(ground: Ground) -> None:
    late = ground.bookie_ids[0]
    gate = Gate("put_if_absent", late)
    began = ground.runtime.wall_ms()
    with lifecycle.create_ledger(ground.context, Quorum(4, 4, 2)) as writer:

        def stored() -> list[dict[str, object]]:
            rows = writer.acks_arrow().to_pylist()
            return [row for row in rows if row["status"] == "stored"]

        writer.append(b"first")
        ground.until(lambda: len(stored()) == 4)
        ground.before.append(gate)
        writer.append(b"second")
        ground.until(lambda: len(stored()) == 7)
        found = writer.acks_arrow().to_pylist()
        gate.open()

    (pending,) = [row for row in found if row["status"] == "pending"]
    assert (pending["entry_id"], pending["bookie_id"]) == (1, late)
    assert (pending["stored_at"], pending["waited_ms"]) == (None, None)
    ended = ground.runtime.wall_ms()
    for row in stored():
        assert isinstance(row["stored_at"], datetime)
        assert began <= row["stored_at"].timestamp() * 1000 <= ended
        assert isinstance(row["waited_ms"], float)
        assert 0 <= row["waited_ms"] <= ended - began + 1


def test_a_notebook_shows_a_writer_and_a_reader_without_asking_anybody(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"12345")
        ground.until(lambda: ground.count()["put_if_absent"] == 3)
        ground.forget()
        shown = writer._repr_html_()
        assert not ground.steps
    assert "<th>writer</th><td>writing</td>" in shown
    assert "<th>length_bytes</th><td>5</td>" in shown
    assert "<td>closed</td>" in writer._repr_html_()

    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    ground.forget()
    assert "<th>reader</th><td>CLOSED</td>" in reader._repr_html_()
    assert not ground.steps


# Encoded ahead


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Who encoded which entries: the name of the thread, the first and the last of them."""
    seen: list[tuple[str, int, int]] = []
    encode = Group._encode

    def noted(group: Group, position: int, slot: int) -> NewRecord:
        seen.append((threading.current_thread().name, group.first, group.last))
        return encode(group, position, slot)

    monkeypatch.setattr(Group, "_encode", noted)
    return seen


def test_who_appends_encodes_what_sleeping_channels_send_once_for_all(
    ground: Ground, encoded: list[tuple[str, int, int]]
) -> None:
    here = threading.current_thread().name
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"0")  # the channels start with it
        for number in range(1, 4):
            wait_for_every_copy(writer)
            ground.until(lambda: len(writer._pipeline._channels.idle) == 3)
            assert writer.append(b"%d" % number) == number

    assert encoded[1:] == [(here, 1, 1), (here, 2, 2), (here, 3, 3)]
    assert payloads(ground, writer) == [b"0", b"1", b"2", b"3"]


def test_what_comes_before_the_channels_wake_shares_their_slot(
    ground: Ground, encoded: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"0")
        wait_for_every_copy(writer)
        ground.until(lambda: len(writer._pipeline._channels.idle) == 3)
        asleep: list[AutoResetEvent] = []
        with monkeypatch.context() as patch:
            patch.setattr(AutoResetEvent, "set", lambda wake_up: asleep.append(wake_up))
            answers = [writer.append_async(b"%d" % number) for number in (1, 2)]
        for wake_up in asleep:
            wake_up.set()

        assert [answer.result(60) for answer in answers] == [1, 2]
        wait_for_every_copy(writer)
        assert [(first, last) for _, first, last in encoded[1:]] == [(1, 1), (1, 2)]
        for bookie in writer.metadata.last_fragment.ensemble:
            assert len(ground.files(bookie, "slots")) == 2
    assert payloads(ground, writer) == [b"0", b"1", b"2"]


def test_what_cannot_be_encoded_ahead_is_reported_by_a_channel(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(group: Group, position: int, slot: int) -> NewRecord:
        raise MemoryError("none is left")

    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"0")
        wait_for_every_copy(writer)
        ground.until(lambda: len(writer._pipeline._channels.idle) == 3)
        monkeypatch.setattr(Group, "_encode", fails)

        answer = writer.append_async(b"1")

        with pytest.raises(AppendFailedError, match="MemoryError: none is left"):
            answer.result(60)
        with pytest.raises(AppendFailedError):
            writer.flush()
        writer.abandon()
