"""Writes to a log: all of one or nothing, once, whoever writes or dies beside it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import TaskResult, write_local, write_task
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
    LogOwnershipLostError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import atomic, truncation
from spark_bookkeeper.logs.atomic import LogWrite
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, logs_table, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.staged_writes import StagedWrite, abort, behind_of, remove_leftovers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol import transactions
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import Chunk, LogHead
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.transactions import Committed, MicroBatch, Transaction, Transactions
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime, Killed
from tests.hooks import NO_ANSWER, At
from tests.logs.conftest import USUAL, states


def table(*payloads: bytes) -> pa.Table:
    return pa.table({"payload": pa.array(payloads, pa.binary())})


def rows(log: Log) -> list[bytes]:
    found: list[bytes] = log.read_arrow().column("payload").to_pylist()
    return found


def no_log_ledgers(ground: Ground) -> list[LedgerId]:
    """Ledgers of the cluster that are in no log."""
    listed = set(logs_table(ground.context).column("ledger_id").to_pylist())
    return [i for i in ground.context.store.ledger_ids() if i not in listed]


def write_staged(
    context: ClientContext, staged: StagedWrite, *payloads: bytes
) -> Sequence[TaskResult]:
    return write_local(staged.plan, table(*payloads), context)


def begun(
    ground: Ground, *payloads: bytes, transaction: Transaction | None = None
) -> tuple[StagedWrite, Sequence[TaskResult]]:
    """A write that is staged, and what its tasks have written."""
    staged = atomic.stage(ground.context, "orders", transaction)
    return staged, write_staged(ground.context, staged, *payloads)


def overtaken(ground: Ground, log: Log) -> tuple[StagedWrite, Sequence[TaskResult]]:
    """A write of ``b"slow"`` that is staged, and another one that came into the log before it."""
    slow, results = begun(ground, b"slow")
    log.write(table(b"quick"))
    return slow, results


def write_batch(ground: Ground, number: int, *payloads: bytes) -> LogWrite:
    """What the sink of a stream does, in a process of its own."""
    context = ground.client()
    staged = atomic.stage(context, "orders")
    results = write_staged(context, staged, *payloads) if payloads else []
    return atomic.commit(context, staged, results, MicroBatch("query", number, len(payloads)))


# All at once, in order


def test_a_write_is_one_closed_ledger_of_the_log(ground: Ground, log: Log) -> None:
    first = log.write(table(b"a", b"b"))
    second = log.write(table(b"c"))

    assert (first.rows, first.is_new, first.last_entry_id) == (2, True, 0)
    assert log.ledgers() == [first.ledger_id, second.ledger_id]
    assert states(ground, log) == ["CLOSED", "CLOSED"]
    assert rows(log) == [b"a", b"b", b"c"]


def test_nobody_sees_anything_of_a_write_before_it_is_committed(ground: Ground, log: Log) -> None:
    staged, results = begun(ground, b"a")

    assert (log.ledgers(), rows(log)) == ([], [])

    atomic.commit(ground.client(), staged, results)
    assert rows(log) == [b"a"], "by another process"


def test_the_rows_of_several_tasks_are_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    log = create_log(ground.context, "striped", LogOptions(Quorum(4, 2, 2)))
    staged = atomic.stage(ground.context, "striped")
    results = [
        write_task(staged.plan, table(b"%d" % n, b"%d" % (n + 1)).to_batches(), n, ground.context)
        for n in (0, 2, 4)
    ]

    atomic.commit(ground.context, staged, results[::-1])

    assert rows(log) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_attempts_that_are_not_reported_leave_nothing_in_the_log(ground: Ground, log: Log) -> None:
    staged = atomic.stage(ground.context, "orders")
    loser = write_staged(ground.context, staged, b"a", b"b")
    winner = write_staged(ground.context, staged, b"a", b"b")
    atomic.commit(ground.context, staged, winner)

    late = write_staged(ground.context, staged, b"a", b"b")  # one that went on behind the commit

    assert len(loser) == len(late) == 1
    assert rows(log) == [b"a", b"b"]


def test_a_write_without_rows_adds_no_ledger(ground: Ground, log: Log) -> None:
    done = log.write(table(), txn_app_id="app", txn_version=1)

    assert (done.ledger_id, done.rows, done.is_new, log.ledgers()) == (None, 0, True, [])
    assert not log.write(table(b"a"), txn_app_id="app", txn_version=1).is_new
    assert log.write(table()).is_new
    assert no_log_ledgers(ground) == []


def test_of_two_who_write_nothing_as_one_transaction_one_is_new(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = Transaction("app", 1)
    first, second = (atomic.stage(ground.context, log.name, transaction) for _ in range(2))
    change, done = logs.change_log, list[LogWrite]()

    def after_the_second(*arguments: Any) -> LogHead:
        monkeypatch.setattr(logs, "change_log", change)
        done.append(atomic.commit(ground.context, second, [], transaction))
        return change(*arguments)

    monkeypatch.setattr(logs, "change_log", after_the_second)
    done.append(atomic.commit(ground.context, first, [], transaction))

    assert [each.is_new for each in done] == [True, False]


def test_rows_of_another_schema_are_refused_before_anything_is_made(
    ground: Ground, log: Log
) -> None:
    with pytest.raises(InvalidArgumentError, match="columns are not the ledger's"):
        log.write(pa.table({"other": [1]}))
    with pytest.raises(InvalidArgumentError, match="columns are not the ledger's"):
        atomic.stage(ground.context, "orders", schema=pa.schema([("other", pa.int64())]))
    with pytest.raises(NoSuchLogError):
        atomic.stage(ground.context, "none")

    assert list(ground.context.store.ledger_ids()) == []


def test_a_write_follows_columns_that_the_log_was_given_meanwhile(ground: Ground, log: Log) -> None:
    """Also one that began before, and is in the list behind one with the new columns."""
    staged, results = begun(ground, b"before")
    wider = pa.schema([("payload", pa.binary()), ("shop", pa.int64())])
    open_log(ground.client(), "orders").become_writer(schema=wider).close()

    log.write(pa.table({"payload": [b"new"], "shop": [7]}, schema=wider))
    atomic.commit(ground.context, staged, results)

    found = open_log(ground.context, "orders").read_arrow().to_pylist()
    assert found == [{"payload": b"new", "shop": 7}, {"payload": b"before", "shop": None}]


def test_writes_truncate_what_the_log_need_not_keep(ground: Ground) -> None:
    class Later(InlineRuntime):
        shift_ms = 0

        @override
        def now(self) -> float:
            return super().now() + self.shift_ms / 1000

        @override
        def wall_ms(self) -> int:
            return super().wall_ms() + self.shift_ms

    runtime = Later()
    context = ground.client(runtime)
    log = create_log(context, "short", LogOptions(Quorum(3, 3, 2), retain_seconds=60))
    log.write(table(b"a"))
    log.write(table(b"b"))
    runtime.shift_ms = 61_000
    log.write(table(b"c"))

    assert rows(log) == [b"c"], "the others ended long ago, whenever the newest was begun"


# Once


def test_a_write_that_is_repeated_changes_nothing_and_says_so(ground: Ground, log: Log) -> None:
    first = log.write(table(b"a"), txn_app_id="app", txn_version=5)
    again = log.write(table(b"a"), txn_app_id="app", txn_version=5)
    late = log.write(table(b"x"), txn_app_id="app", txn_version=4)
    other = log.write(table(b"b"), txn_app_id="other", txn_version=5)

    assert (again.is_new, again.ledger_id) == (False, first.ledger_id)
    assert (late.is_new, late.ledger_id) == (False, None)
    assert other.is_new
    assert rows(log) == [b"a", b"b"]
    assert (log.last_transaction("app"), log.last_transaction("none")) == (5, None)
    assert no_log_ledgers(ground) == [], "what was written in vain is removed"


def test_two_that_write_the_same_transaction_at_once_write_it_once(
    ground: Ground, log: Log
) -> None:
    """A driver that is believed dead, and the one that took its place."""
    transaction = Transaction("query", 3)
    zombie, successor = ground.client(), ground.client()
    staged = [atomic.stage(each, "orders", transaction) for each in (zombie, successor)]
    results = [write_staged(c, s, b"a") for c, s in zip((zombie, successor), staged, strict=True)]

    second = atomic.commit(successor, staged[1], results[1], transaction)
    first = atomic.commit(zombie, staged[0], results[0], transaction)

    assert (second.is_new, first.is_new) == (True, False)
    assert first.ledger_id == second.ledger_id
    assert rows(log) == [b"a"]


def test_of_two_that_write_the_same_transaction_the_first_to_begin_may_be_faster_at_the_end(
    ground: Ground, log: Log
) -> None:
    """It commits between the other's look and its compare-and-swap, and its ledger is the older."""
    transaction = Transaction("query", 3)
    zombie = ground.client()
    staged = [atomic.stage(ground.context, "orders", transaction) for _ in range(2)]
    results = [write_staged(ground.context, each, b"a") for each in staged]
    done: list[LogWrite] = []

    def commit_first() -> None:
        done.append(atomic.commit(zombie, staged[0], results[0], transaction))

    ground.before.append(At("write_register", commit_first, path="logs/orders", only=[0]))
    done.append(atomic.commit(ground.context, staged[1], results[1], transaction))

    assert [each.is_new for each in done] == [True, False]
    assert rows(log) == [b"a"]
    log.write(table(b"b"), txn_app_id="query", txn_version=4)
    assert no_log_ledgers(ground) == [], "that of the other, which was closed, is removed by now"


def test_a_commit_that_is_repeated_in_full_adds_nothing(ground: Ground, log: Log) -> None:
    transaction = Transaction("query", 3)
    staged, results = begun(ground, b"a", transaction=transaction)
    atomic.commit(ground.context, staged, results, transaction)

    again = atomic.commit(ground.context, staged, results, transaction)

    assert not again.is_new
    assert not abort(ground.context, staged), "it is in the log, and stays"
    assert rows(log) == [b"a"]


@pytest.mark.parametrize(
    ("number", "payloads", "said"),
    [
        (2, (b"c", b"d", b"e"), None),
        (2, (), "has 3 rows of batch 2 .*and the batch has 0 now"),
        (2, (b"c", b"d", b"e", b"f"), "has 3 rows of batch 2 .*and the batch has 4 now"),
        (1, (b"b",), "has batch 2 of application 'query', and this is batch 1"),
        (0, (), "has batch 2 of application 'query', and this is batch 0"),
        (3, (b"f",), None),
    ],
)
def test_a_stream_repeats_its_last_batch_and_no_other(
    ground: Ground, log: Log, number: int, payloads: tuple[bytes, ...], said: str | None
) -> None:
    """A checkpoint that was put back has Spark plan a batch anew, with rows that nobody has."""
    for earlier, written in ((0, (b"a",)), (1, (b"b",)), (2, (b"c", b"d", b"e"))):
        write_batch(ground, earlier, *written)
    before = rows(log)

    if said is None:
        assert write_batch(ground, number, *payloads).is_new == (number > 2)
    else:
        with pytest.raises(InvalidArgumentError, match=f"{said}.*Begin a new checkpoint"):
            write_batch(ground, number, *payloads)

    assert rows(log) == [*before, *(payloads if number > 2 else ())]
    assert no_log_ledgers(ground) == []


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty log", "others there"])
def test_a_batch_without_rows_is_repeated_without_rows(
    ground: Ground, log: Log, is_empty: bool
) -> None:
    if not is_empty:
        log.write(table(b"x"))
    write_batch(ground, 0)

    assert not write_batch(ground, 0).is_new
    with pytest.raises(InvalidArgumentError, match="has 0 rows of batch 0"):
        write_batch(ground, 0, b"a")


def test_a_batch_whose_rows_were_not_counted_is_taken_for_a_repeated_one(
    ground: Ground, log: Log
) -> None:
    """An earlier version wrote the head of the log since, and left the counts out."""
    write_batch(ground, 0, b"a")
    register = ground.context.store.registers.read("logs/orders")
    assert register is not None
    head = json.loads(register.value)
    assert head.pop("rows") == [1]
    ground.context.store.registers.write("logs/orders", json.dumps(head).encode(), register.version)

    assert not write_batch(ground, 0, b"a", b"z").is_new


def test_a_batch_that_is_in_the_log_is_no_older_one_where_the_answer_was_lost(
    tmp_path: Path,
) -> None:
    """The driver that took over went on meanwhile."""
    ground = Ground(tmp_path, bookies=3, runtime=InlineRuntime())
    log = create_log(ground.context, "orders", USUAL)
    zombie = ground.client(InlineRuntime())
    staged = atomic.stage(zombie, "orders")
    results = write_staged(zombie, staged, b"a")

    def lose() -> None:
        write_batch(ground, 1, b"b")
        raise MetadataUnavailableError("the answer was lost")

    ground.after.append(At("write_register", lose, path="logs/orders", only=[0]))
    done = atomic.commit(zombie, staged, results, MicroBatch("query", 0, 1))

    assert (done.is_new, rows(log)) == (True, [b"a", b"b"])


def test_transactions_outlive_truncation_and_end_with_the_log(ground: Ground, log: Log) -> None:
    log.write(table(b"a"), txn_app_id="app", txn_version=1)
    log.write(table(b"b"))
    log.write(table(b"c"))
    log.truncate(log.ledgers()[-1])

    assert not log.write(table(b"a"), txn_app_id="app", txn_version=1).is_new

    truncation.delete(ground.context, "orders")
    anew = create_log(ground.context, "orders", USUAL)
    assert anew.write(table(b"a"), txn_app_id="app", txn_version=1).is_new


def test_an_application_too_many_is_refused_before_anything_is_written(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MOST_APPLICATIONS", 2)
    for app in "ab":
        log.write(table(b"a"), txn_app_id=app, txn_version=1)

    with pytest.raises(InvalidArgumentError, match="forget_application"):
        log.write(table(b"a"), txn_app_id="c", txn_version=1)

    assert no_log_ledgers(ground) == []
    log.forget_application("a")
    assert log.write(table(b"a"), txn_app_id="c", txn_version=1).is_new


# Beside others


def test_a_write_that_was_overtaken_comes_behind_the_one_that_was_faster(
    ground: Ground, log: Log
) -> None:
    slow, results = overtaken(ground, log)

    done = atomic.commit(ground.context, slow, results)

    assert done.ledger_id is not None
    assert done.ledger_id != slow.ledger_id, "ids ascend along a log"
    assert rows(log) == [b"quick", b"slow"]
    custom = ground.context.store.read_ledger(done.ledger_id).value.custom_metadata
    assert custom["log"] == b"orders", "labels are those that any ledger of the log has"
    assert no_log_ledgers(ground) == []


def test_a_striped_write_that_was_overtaken_is_copied_share_by_share(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    options = LogOptions(Quorum(4, 2, 2), entry_target_bytes=10)
    log = create_log(ground.context, "striped", options)
    slow = atomic.stage(ground.context, "striped")
    payloads = [b"%05d" % n for n in range(40)]
    results = write_staged(ground.context, slow, *payloads)
    log.write(table(b"quick"))

    atomic.commit(ground.context, slow, results)

    assert rows(log) == [b"quick", *payloads]


def test_an_overtaken_write_whose_bookie_is_lost_is_copied_from_the_others(
    ground: Ground, log: Log
) -> None:
    slow, results = overtaken(ground, log)
    ground.stop(slow.plan.targets[0][1], destroy=True)

    atomic.commit(ground.client(), slow, results)

    assert rows(open_log(ground.client(), "orders")) == [b"quick", b"slow"]


def test_a_bookie_with_something_else_under_the_name_of_a_part_is_left_out(
    ground: Ground, log: Log
) -> None:
    slow, results = overtaken(ground, log)
    taken: list[Path] = []

    def take(place: str, operation: str, path: str) -> None:
        if operation == "size" and "/parts/" in path and not taken:
            taken.append(ground.root(place) / path)
            taken[0].parent.mkdir(parents=True, exist_ok=True)
            taken[0].write_bytes(b"something else")

    ground.before.append(take)
    atomic.commit(ground.context, slow, results)

    assert taken
    assert rows(log) == [b"quick", b"slow"]
    assert taken[0].read_bytes() == b"something else"


def test_who_is_overtaken_each_time_gives_up_and_leaves_nothing(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "ATTEMPTS_MAX", 3)
    slow, results = begun(ground, b"slow")
    restage = staging.restage

    def overtaken(*args: Any) -> Any:
        made = restage(*args)
        log.write(table(b"quick"))
        return made

    log.write(table(b"quick"))
    monkeypatch.setattr(staging, "restage", overtaken)
    with pytest.raises(LogOwnershipLostError, match="3 times"):
        atomic.commit(ground.context, slow, results)

    assert set(rows(log)) == {b"quick"}
    assert no_log_ledgers(ground) == []


def test_a_write_deposes_who_has_the_log_open_and_comes_behind_what_is_acknowledged(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    staged, results = begun(ground, b"b")
    writer.append(b"c")

    atomic.commit(ground.client(), staged, results)

    with pytest.raises(LogOwnershipLostError):
        writer.append(b"lost")
    writer.abandon()
    assert rows(log) == [b"a", b"c", b"b"]
    assert states(ground, log) == ["CLOSED", "CLOSED"], "one-open-ledger-per-log"


def test_a_writer_that_rolls_is_deposed_with_both_of_its_ledgers(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write comes when the new ledger is in the list and the old one is still written."""
    writer = open_log(ground.client(), "orders").become_writer()
    writer.append(b"a")
    flush = LedgerWriter.flush

    def beside(self: LedgerWriter) -> Any:
        monkeypatch.setattr(LedgerWriter, "flush", flush)
        log.write(table(b"b"))
        return flush(self)

    monkeypatch.setattr(LedgerWriter, "flush", beside)
    writer.roll()
    with pytest.raises(LogOwnershipLostError):
        writer.append(b"lost")
    writer.abandon()

    assert rows(log) == [b"a", b"b"]
    assert states(ground, log) == ["CLOSED"] * 3


def test_a_writer_that_would_roll_behind_a_write_learns_that_it_was_deposed(
    ground: Ground, log: Log
) -> None:
    writer = open_log(ground.client(), "orders").become_writer()
    writer.append(b"a")
    log.write(table(b"b"))

    with pytest.raises(LogOwnershipLostError):
        writer.roll()
    writer.abandon()

    assert rows(log) == [b"a", b"b"]


def test_a_new_writer_comes_behind_a_write_and_a_write_that_began_before_it_behind_both(
    ground: Ground, log: Log
) -> None:
    staged, results = begun(ground, b"write")
    with log.become_writer() as writer:
        writer.append(b"writer")

    atomic.commit(ground.context, staged, results)

    assert rows(log) == [b"writer", b"write"]


@pytest.mark.parametrize("interfere", ["recovered", "claimed", "deleted"])
def test_a_staged_ledger_that_somebody_takes_away_is_staged_anew(
    ground: Ground, log: Log, interfere: str
) -> None:
    staged, results = begun(ground, b"a", b"b")
    if interfere == "recovered":
        recover_ledger(ground.client(), staged.ledger_id)
    elif interfere == "claimed":
        staging._claim(ground.client(), staged.plan, {}).abandon()
    else:
        lifecycle.delete_ledger(ground.client(), staged.ledger_id, even_if_alive=True)

    atomic.commit(ground.context, staged, results)

    assert rows(log) == [b"a", b"b"]
    assert no_log_ledgers(ground) == []


def test_a_log_that_was_deleted_takes_no_write_that_began_before(ground: Ground, log: Log) -> None:
    staged, results = begun(ground, b"a")
    truncation.delete(ground.context, "orders")
    anew = create_log(ground.context, "orders", USUAL)

    with pytest.raises(NoSuchLogError):
        atomic.commit(ground.context, staged, results)

    assert rows(anew) == []
    assert no_log_ledgers(ground) == []


def test_many_who_write_at_once_all_come_through(ground: Ground, log: Log) -> None:
    def write(number: int) -> LogWrite:
        mine = open_log(ground.client(), "orders")
        return mine.write(table(b"%d" % number), txn_app_id=f"app-{number}", txn_version=0)

    done = ground.runtime.map(write, list(range(6)))

    assert all(each.is_new for each in done)
    assert sorted(rows(log)) == [b"%d" % n for n in range(6)]
    assert no_log_ledgers(ground) == []


# What is left behind


RECOVERED = pytest.mark.parametrize(
    "is_recovered", [False, pytest.param(True, marks=pytest.mark.full)]
)


def test_what_is_staged_says_for_which_log_and_transaction(ground: Ground, log: Log) -> None:
    staged = atomic.stage(ground.context, "orders", Transaction("app", 7))

    custom = ground.context.store.read_ledger(staged.ledger_id).value.custom_metadata

    assert custom["log"] == b"orders"
    told = json.loads(custom[staging.STAGED])
    assert told == {
        "log": "orders", "nonce": staged.nonce, "owner": "app", "app_id": "app", "version": 7,
    }  # fmt: skip
    added = atomic.commit(ground.context, staged, write_staged(ground.context, staged, b"a"))
    later = atomic.stage(ground.context, "orders")
    assert behind_of(ground.context.store.read_ledger(later.ledger_id).value) == added.ledger_id


def test_a_write_that_is_aborted_leaves_nothing(ground: Ground, log: Log) -> None:
    staged, results = begun(ground, b"a")

    assert abort(ground.context, staged)

    assert no_log_ledgers(ground) == []
    with pytest.raises(BookKeeperError):  # one that goes on all the same finds no files later
        staging.seal(ground.context, staged.plan, results)


def test_what_may_still_come_into_the_log_is_never_removed(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is closed, and the compare-and-swap that adds it on its way."""
    staged, results = begun(ground, b"a")
    add = atomic.add_sealed

    def aborted(*args: Any) -> LogHead:
        assert not abort(ground.client(), staged)
        return add(*args)

    monkeypatch.setattr(atomic, "add_sealed", aborted)
    atomic.commit(ground.context, staged, results)

    assert rows(log) == [b"a"]


@RECOVERED
def test_whenever_a_ledger_is_closed_while_it_is_discarded_it_is_gone_or_stays_as_told(
    tmp_path: Path, is_recovered: bool
) -> None:
    """A driver that was believed dead closes its ledger, before it adds it, at each operation of
    the one that discards it; or somebody recovers it then, which closes it at the same end.
    """
    number = 0
    while is_closed_while_discarded(tmp_path / str(number), number, is_recovered):
        number += 1
    assert number >= 3, "there are that many operations"


def is_closed_while_discarded(directory: Path, number: int, is_recovered: bool) -> bool:
    """At that operation; whether there was one."""
    ground = Ground(directory, bookies=3, runtime=InlineRuntime())
    create_log(ground.context, "orders", USUAL)
    staged = atomic.stage(ground.context, "orders")
    writer = staging._claim(ground.context, staged.plan, {})
    writer.append_written(write_staged(ground.context, staged, b"a"))
    outcome = list[bool]()

    def close() -> None:
        if is_recovered:
            with suppress(BookKeeperError):
                recover_ledger(ground.client(), staged.ledger_id)
        try:
            writer.close()
        except BookKeeperError:
            writer.abandon()
            outcome.append(False)
        else:
            outcome.append(True)

    is_gone = abort(ground.client(InlineRuntime(), At(None, close, only=[number])), staged)

    if outcome == [True]:
        assert not is_gone, "who has closed it may add it"
        assert ground.context.store.read_ledger(staged.ledger_id).value.is_closed
    if not outcome:  # it was over before
        writer.abandon()
    return bool(outcome)


@RECOVERED
def test_a_write_that_commits_at_any_step_of_its_removal_is_in_the_log_once(
    tmp_path: Path, is_recovered: bool
) -> None:
    """A driver that was deposed commits while the next one removes what it has left."""
    number = 0
    while is_committed_while_removed(tmp_path / str(number), number, is_recovered):
        number += 1
    assert number > 5, "there are that many operations"


def is_committed_while_removed(directory: Path, number: int, is_recovered: bool) -> bool:
    """At that operation; whether there was one."""
    transaction = Transaction("query", 7)
    ground = Ground(directory, bookies=3, runtime=InlineRuntime())
    log = create_log(ground.context, "orders", USUAL)
    staged, results = begun(ground, b"a", transaction=transaction)

    def commit() -> None:
        if is_recovered:  # a reader who was told its id
            with suppress(BookKeeperError):
                recover_ledger(ground.context, staged.ledger_id)
        with suppress(BookKeeperError):
            atomic.commit(ground.context, staged, results, transaction)

    step = At(None, commit, only=[number])
    remove_leftovers(ground.client(InlineRuntime(), step), "orders", "query")
    log.write(table(b"a"), txn_app_id="query", txn_version=7)

    assert rows(log) == [b"a"]
    return len(step.met) > number


def test_the_next_write_of_an_application_removes_what_its_earlier_ones_have_left(
    ground: Ground, log: Log
) -> None:
    # Two drivers that were killed, one of them when all was written.
    atomic.stage(ground.context, "orders", Transaction("app", 1))
    staged, results = begun(ground, b"a", transaction=Transaction("app", 1))
    staging.seal(ground.context, staged.plan, results)
    other = atomic.stage(ground.context, "orders", Transaction("other", 1))
    assert len(no_log_ledgers(ground)) == 3

    log.write(table(b"a"), txn_app_id="app", txn_version=1)

    assert no_log_ledgers(ground) == [other.ledger_id], "which may be on its way"
    assert rows(log) == [b"a"]


def test_a_deleted_log_leaves_no_notes_of_what_was_staged(ground: Ground, log: Log) -> None:
    atomic.stage(ground.context, "orders", Transaction("app", 1))
    assert ground.context.store.registers.names("logs/orders")

    truncation.delete(ground.context, "orders")

    assert ground.context.store.registers.names("logs/orders") == []


# A driver that is killed anywhere


class DeadAt:
    """A hook that ends a process at its n-th operation, or its n-th on metadata: none after it has
    any effect. ``Killed`` is for the thread that commits; the others are told what ends them.
    """

    def __init__(self, number: int, *, is_metadata_only: bool = False) -> None:
        self._left = number
        self._is_metadata_only = is_metadata_only
        self.is_dead = False

    def __call__(self, place: str, operation: str, path: str) -> None:
        if place == METADATA or not self._is_metadata_only:
            self.is_dead = self.is_dead or self._left == 0
            self._left -= 1
        if not self.is_dead:
            return
        if threading.current_thread() is threading.main_thread():
            raise Killed(f"{operation} {path} on {place}")
        if place == METADATA:
            raise MetadataUnavailableError("the process is dead")
        raise BookieUnavailableError("the process is dead", bookie_id=place)


def at_every_operation(
    tmp_path: Path,
    act: Callable[[Ground, ClientContext], object],
    *,
    is_metadata_only: bool = False,
) -> Iterator[Ground]:
    """A cluster for each operation of ``act``, in which it was killed there; and one more."""
    for number in count():
        ground = Ground(tmp_path / str(number), bookies=3, runtime=InlineRuntime())
        create_log(ground.context, "orders", USUAL).write(table(b"first"))
        dead = DeadAt(number, is_metadata_only=is_metadata_only)
        with suppress(Killed, BookKeeperError):
            act(ground, ground.client(InlineRuntime(), dead))
        yield ground
        if not dead.is_dead:
            return


@pytest.mark.parametrize(
    ("is_metadata_only", "least"),
    [(True, 10), pytest.param(False, 30, marks=pytest.mark.full)],
    ids=["of metadata", "any"],
)
def test_a_driver_killed_at_any_operation_of_a_write_leaves_it_all_or_nothing_and_once(
    tmp_path: Path, is_metadata_only: bool, least: int
) -> None:
    def write(_: Ground, victim: ClientContext) -> None:
        log = open_log(victim, "orders")
        log.write(table(b"a", b"b"), txn_app_id="query", txn_version=7)

    outcomes = list[int]()
    for ground in at_every_operation(tmp_path, write, is_metadata_only=is_metadata_only):
        log = open_log(ground.client(), "orders")
        seen = rows(log)
        assert seen in ([b"first"], [b"first", b"a", b"b"]), "all or nothing"

        again = log.write(table(b"a", b"b"), txn_app_id="query", txn_version=7)
        log.write(table(b"c"), txn_app_id="query", txn_version=8)

        assert again.is_new == (seen == [b"first"])
        assert rows(log) == [b"first", b"a", b"b", b"c"], "once, in order"
        assert set(states(ground, log)) == {"CLOSED"}
        left = no_log_ledgers(ground)
        assert len(left) <= 1, "one that was killed before it had noted its ledger"
        for ledger_id in left:
            custom = ground.context.store.read_ledger(ledger_id).value.custom_metadata
            assert json.loads(custom[staging.STAGED])["version"] == 7
        outcomes.append(len(seen))
    assert outcomes[0] == 1
    assert outcomes[-1] == 3
    assert len(outcomes) > least, "there are that many operations"


@pytest.mark.full
def test_a_driver_killed_at_any_request_for_metadata_of_a_write_that_was_overtaken(
    tmp_path: Path,
) -> None:
    transaction = Transaction("query", 7)

    def write(ground: Ground, victim: ClientContext) -> None:
        staged, results = begun(ground, b"a", transaction=transaction)
        open_log(ground.context, "orders").write(table(b"quick"))
        atomic.commit(victim, staged, results, transaction)

    for ground in at_every_operation(tmp_path, write, is_metadata_only=True):
        log = open_log(ground.client(), "orders")
        log.write(table(b"a"), txn_app_id="query", txn_version=7)

        assert rows(log) == [b"first", b"quick", b"a"]


def test_a_lost_answer_at_any_step_adds_the_rows_once(tmp_path: Path) -> None:
    """Each operation on metadata takes effect, and its answer is lost, once."""
    for number in count():
        ground = Ground(tmp_path / str(number), bookies=3, runtime=InlineRuntime())
        log = create_log(ground.context, "orders", USUAL)
        lose = At(None, NO_ANSWER, on=METADATA, only=[number])
        ground.after.append(lose)
        try:
            log.write(table(b"a"), txn_app_id="query", txn_version=1)
        except MetadataUnavailableError:
            log.write(table(b"a"), txn_app_id="query", txn_version=1)
        ground.after.remove(lose)

        assert rows(log) == [b"a"]
        if len(lose.met) <= number:
            break
    assert number > 10, "there are that many operations"


# The register


def test_a_head_without_transactions_is_what_earlier_versions_read(
    ground: Ground, log: Log
) -> None:
    def version() -> int:
        found = ground.context.store.registers.read("logs/orders")
        assert found is not None
        value: int = json.loads(found.value)["version"]
        return value

    log.write(table(b"a"))
    assert version() == 1
    log.write(table(b"a"), txn_app_id="app", txn_version=1)
    assert version() == 2, "one that does not know them would forget them"
    log.forget_application("app")
    assert version() == 1


def test_two_hundred_thousand_ledgers_and_all_applications_fit_into_a_node() -> None:
    last = tuple(
        Committed(f"{n:0200d}", (1 << 63) - 1, LedgerId((1 << 63) - 1))
        for n in range(transactions.MOST_APPLICATIONS)
    )
    chunks = tuple(
        Chunk("0" * 32, LedgerId(n * 1000), LedgerId(n * 1000 + 999), 1000) for n in range(200)
    )
    recent = tuple(LedgerId(n) for n in range(200_000, 202_000))
    head = LogHead("n", chunks=chunks, recent=recent, transactions=Transactions(last))

    assert len(logs._encoded(head)) < 300_000
