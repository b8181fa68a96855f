"""Logs when closes fail, answers are lost, others interfere, and junk lies about."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogExistsError,
    LogOwnershipLostError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import opening, truncation
from spark_bookkeeper.logs import writer as log_writer
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, logs_table, open_log
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol import log as protocol_log
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground, Hook
from tests.hooks import At
from tests.logs.conftest import USUAL, payloads, states


def no_answer(*operations: str) -> Hook:
    def hook(place: str, operation: str, path: str) -> None:
        if operation in operations:
            raise MetadataUnavailableError("no answer")

    return hook


def during_flush(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """``act`` once, in the midst of the flush of a roll, while appends wait."""
    flush, calls = LedgerWriter.flush, list[None]()

    def flushed(self: LedgerWriter) -> Any:
        calls.append(None)
        if len(calls) == 1:
            act()
        return flush(self)

    monkeypatch.setattr(LedgerWriter, "flush", flushed)


# The ledger before the one that is written is closed before a third may be open


def test_a_ledger_that_a_roll_could_not_close_is_closed_before_the_next_is_added(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    hook = no_answer("write_ledger")
    ground.before.append(hook)
    second = writer.roll()
    assert writer.append(b"b").ledger_id == second
    with pytest.raises(MetadataUnavailableError):
        writer.roll()
    assert states(ground, log) == ["OPEN", "OPEN"], "no third while the first is open"
    ground.before.remove(hook)

    writer.roll()
    writer.append(b"c")

    assert states(ground, log) == ["CLOSED", "CLOSED", "OPEN"]
    log.become_writer().close()
    assert payloads(log) == [b"a", b"b", b"c"]


def test_a_ledger_that_a_reader_recovers_in_the_midst_of_a_roll_costs_nothing(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    close = LedgerWriter.close

    def recovered(self: LedgerWriter) -> None:
        monkeypatch.setattr(LedgerWriter, "close", close)
        reader = ground.client()
        found = reader.store.read_ledger(self.ledger_id)
        reader.store.write_ledger(self.ledger_id, found.value.in_recovery(), found)
        self.close()

    monkeypatch.setattr(LedgerWriter, "close", recovered)

    writer.roll()

    writer.append(b"b")
    writer.close()
    assert states(ground, log) == ["CLOSED", "CLOSED"]
    assert payloads(log) == [b"a", b"b"]


def test_closing_a_writer_closes_what_its_last_roll_could_not(ground: Ground, log: Log) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    hook = no_answer("write_ledger")
    ground.before.append(hook)
    writer.roll()
    ground.before.remove(hook)

    writer.close()

    assert states(ground, log) == ["CLOSED", "CLOSED"]


# What is in the list is never removed by who lost


@pytest.mark.parametrize("is_roll", [False, True])
def test_a_ledger_that_is_in_the_list_stays_when_another_follows_it(
    ground: Ground, log: Log, is_roll: bool
) -> None:
    victim = open_log(ground.client(), "orders")
    rolling = victim.become_writer()
    rolling.append(b"a")
    done = list[LogWriter]()

    def lose() -> None:
        done.append(log.become_writer())
        raise MetadataUnavailableError("the answer was lost")

    ground.after.append(At("write_register", lose, only=[0]))
    with pytest.raises(LogOwnershipLostError):
        rolling.roll() if is_roll else victim.become_writer(is_leader=lambda: False)

    assert len(log.ledgers()) == 3
    done[0].append(b"b")
    done[0].close()
    assert payloads(log) == [b"a", b"b"]


# Deleting


def test_deleting_a_log_never_deletes_another_life_of_it(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.become_writer().append(b"old")
    mark = logs.mark_deleted

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(logs, "mark_deleted", mark)
        truncation.delete(ground.context, "orders")
        writer = create_log(ground.context, "orders", USUAL).become_writer()
        writer.append(b"new")
        writer.close()
        return mark(*args)

    monkeypatch.setattr(logs, "mark_deleted", overtaken)
    truncation.delete(ground.context, "orders")

    assert payloads(open_log(ground.context, "orders")) == [b"new"]


def chunked(log: Log, monkeypatch: pytest.MonkeyPatch, count: int = 7) -> None:
    """Some ledgers, the older ones in chunks of two."""
    seal = protocol_log.LogHead.to_seal
    monkeypatch.setattr(protocol_log.LogHead, "to_seal", lambda head: seal(head, 2))
    with log.become_writer() as writer:
        for n in range(count):
            writer.append(b"%d" % n)
            writer.roll()


def test_a_deletion_that_fails_half_way_is_finished_by_the_next(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked(log, monkeypatch)
    victim = log.ledgers()[1]
    hook = bad_ledger(ground, victim)

    with pytest.raises(MetadataFormatError):
        truncation.delete(ground.context, "orders")
    assert list(ground.context.store.ledger_ids()) == [victim], "one does not stop the others"
    with pytest.raises(MetadataFormatError):
        truncation.delete(ground.context, "orders")
    with pytest.raises(BookKeeperError):
        create_log(ground.context, "orders", USUAL)
    ground.before.remove(hook)
    create_log(ground.context, "orders", USUAL)

    assert list(ground.context.store.ledger_ids()) == []
    assert set(ground.cluster.registers) == {"logs/orders"}


def bad_ledger(ground: Ground, ledger_id: LedgerId) -> Hook:
    """One that cannot be decoded, until the hook is removed."""
    error = MetadataFormatError("junk", path=str(ledger_id))
    hook = At("read_ledger", error, path=str(ledger_id))
    ground.before.append(hook)
    return hook


def test_a_name_is_not_free_while_a_deleted_log_has_ledgers_left(ground: Ground, log: Log) -> None:
    def step(old: protocol_log.LogHead) -> protocol_log.LogHead:
        return replace(old, is_deleted=True)

    log.become_writer().close()
    registers = ground.context.store.registers
    logs.mark_deleted(registers, "orders", logs.read_log(registers, "orders").nonce, step)

    with pytest.raises(LogExistsError, match="delete_log"):
        logs.create_log(registers, "orders", protocol_log.LogHead("other"))


def test_a_log_whose_creation_had_no_answer_and_that_was_deleted_stays_deleted(
    ground: Ground,
) -> None:
    def lose() -> None:
        truncation.delete(ground.client(), "brief")
        raise MetadataUnavailableError("the answer was lost")

    ground.after.append(At("create_register", lose, only=[0]))
    made = create_log(ground.context, "brief", USUAL)

    with pytest.raises(NoSuchLogError):
        made.become_writer()
    with pytest.raises(NoSuchLogError):
        open_log(ground.context, "brief")


# Truncation


def test_a_truncation_never_takes_a_ledger_that_is_still_written(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.become_writer()
    writer.append(b"a")

    def act() -> None:
        assert len(log.ledgers()) == 2
        log.truncate(10**9)
        assert len(log.ledgers()) == 2

    during_flush(monkeypatch, act)
    writer.roll()
    writer.close()

    assert payloads(log) == [b"a"]


def test_one_unreadable_ledger_does_not_stop_the_deletion_of_those_behind_it(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    listed = [writer.ledger_id, *(writer.roll() for _ in range(4))]
    hook = bad_ledger(ground, listed[1])

    assert log.truncate(listed[3], dry_run=True) == [listed[0], listed[2]]
    assert log.truncate(listed[3]) == [listed[0], listed[2]]
    assert log.truncate(listed[3], dry_run=True) == []
    assert log.truncate(listed[4]) == [listed[3]]
    ground.before.remove(hook)

    assert log.truncate(listed[4]) == [listed[1]]
    assert list(ground.context.store.ledger_ids()) == [listed[4]]


# Appends while the log rolls


def test_flush_waits_for_what_waits_for_a_roll(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.become_writer()
    late = list[Future[Position]]()
    seen = list[Position]()
    runtime = ThreadRuntime()
    tasks = list[Any]()

    def act() -> None:
        late.append(writer.append_async(b"late"))
        tasks.append(runtime.spawn("flush", lambda: seen.append(writer.flush())))

    during_flush(monkeypatch, act)
    rolled = writer.roll()
    tasks[0].join()

    assert seen == [late[0].result()] == [Position(rolled, late[0].result().entry_id)]


def test_a_roll_that_is_interrupted_goes_on_in_the_old_ledger_and_the_next_is_as_any(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.become_writer()
    first = writer.append(b"a")
    late = list[Future[Position]]()

    def act() -> None:
        late.append(writer.append_async(b"b"))
        late.append(writer.append_async(b"c"))
        raise KeyboardInterrupt

    during_flush(monkeypatch, act)
    with pytest.raises(KeyboardInterrupt):
        writer.roll()

    assert [future.result(60).ledger_id for future in late] == [first.ledger_id] * 2
    rolled = writer.roll()
    assert writer.append(b"d").ledger_id == rolled
    writer.close()
    assert payloads(log) == [b"a", b"b", b"c", b"d"]
    assert states(ground, log) == ["CLOSED", "CLOSED"]


def test_an_append_at_the_very_end_of_a_roll_is_not_forgotten(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.become_writer()
    turn, late, armed = writer._turn, list[Future[Position]](), list[None]()

    class Turn:
        """Somebody else has it first."""

        def __enter__(self) -> None:
            if armed:
                armed.clear()
                late.append(writer.append_async(b"late"))
            turn.__enter__()

        def __exit__(self, *_: Any) -> None:
            turn.__exit__(None, None, None)

        def notify_all(self) -> None:
            turn.notify_all()

    monkeypatch.setattr(writer, "_turn", Turn())
    during_flush(monkeypatch, lambda: armed.append(None))
    rolled = writer.roll()

    assert late[0].result(60).ledger_id == rolled


def test_who_waits_for_a_roll_may_append_in_his_callback_also_where_it_fails(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = log.become_writer()
    told = list[BaseException]()

    def again(_: object) -> None:
        try:
            writer.append_async(b"again")
        except BookKeeperError as error:
            told.append(error)

    def act() -> None:
        writer.append_async(b"late").add_done_callback(again)
        writer.append_async(7).add_done_callback(again)

    during_flush(monkeypatch, act)
    writer.roll()
    writer.close()

    assert payloads(log).count(b"again") == 2 - len(told)


# Ending


def test_a_writer_that_is_abandoned_while_it_rolls_leaves_no_writer_behind(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[LedgerWriter]()
    create = opening.new_ledger

    def noted(*args: Any) -> LedgerWriter:
        made.append(create(*args))
        return made[-1]

    monkeypatch.setattr(opening, "new_ledger", noted)
    monkeypatch.setattr(log_writer, "new_ledger", noted)
    writer = log.become_writer()
    during_flush(monkeypatch, writer.abandon)

    with suppress(BookKeeperError):
        writer.roll()

    assert len(made) == 2
    for ledger in made:
        with pytest.raises(BookKeeperError):
            ledger.append(b"x")


@pytest.mark.parametrize("is_added", [False, True])
def test_closing_after_a_roll_of_unknown_outcome_leaves_no_open_ledger(
    ground: Ground, log: Log, is_added: bool
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    hook = no_answer("write_register")
    hooks = ground.after if is_added else ground.before
    hooks.append(hook)
    more = no_answer("read_register")
    away = list[None]()

    def lose(place: str, operation: str, path: str) -> None:
        away.extend([None] * (operation == "write_register"))
        if away:
            more(place, operation, path)

    ground.before.append(lose)
    with pytest.raises(MetadataUnavailableError):
        writer.roll()
    ground.before.remove(lose)
    hooks.remove(hook)

    writer.close()

    assert states(ground, log) == ["CLOSED"] * (1 + is_added)
    assert list(ground.context.store.ledger_ids()) == log.ledgers()


# Cost


def test_a_follower_at_the_end_reads_the_head_and_no_chunk(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked(log, monkeypatch, 11)
    assert len([*log.tail(timeout_ms=0)]) == 11
    end = Position(log.ledgers()[-1], EntryId(0))
    ground.forget()

    assert [*log.tail(end, timeout_ms=0)] == []

    read = [step.path for step in ground.steps if step.operation == "read_register"]
    assert read == ["logs/orders"] * 2, "where it begins, and one look"
    assert ground.count()["read_ledger"] == 1


def test_a_roll_that_failed_is_not_tried_again_with_each_append(ground: Ground) -> None:
    tries = list[str]()

    class Inline(ThreadRuntime):
        def spawn(self, name: str, run: Callable[[], None]) -> Any:
            if not name.startswith("roll-"):
                return super().spawn(name, run)
            tries.append(name)
            return None

        def now(self) -> float:
            return clock

    clock = 0.0
    client = ground.client(Inline())
    log = create_log(client, "large", replace(USUAL, roll_bytes=1))
    writer = log.become_writer()
    writer.append(b"a")
    ground.before.append(no_answer("create_ledger"))
    writer.append(b"b")
    writer._roll_beside()
    for _ in range(5):
        writer.append(b"c")
    assert len(tries) == 1
    clock += 3_600.0
    writer.append(b"d")
    assert len(tries) == 2


def test_a_writer_that_is_closed_before_its_roll_begins_says_nothing_of_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    roll, told = LogWriter.roll, list[type]()

    def closed_before(writer: LogWriter) -> LedgerId:
        writer.close()
        try:
            return roll(writer)
        except InvalidArgumentError as error:
            told.append(type(error))
            raise

    monkeypatch.setattr(LogWriter, "roll", closed_before)
    log.become_writer()._roll_beside()

    assert (told, caplog.text) == ([InvalidArgumentError], "")


# Junk


def test_junk_in_one_log_is_shown_and_stops_no_other(ground: Ground, log: Log) -> None:
    log.become_writer().close()
    good = ground.cluster.registers["logs/orders"].value
    junk = {
        "infinite": good.replace(b'"chunks":[]', b'"chunks":[["c1",0,1,Infinity]]'),
        "elsewhere": good.replace(b'"chunks":[]', b'"chunks":[["../x",0,0,1]]'),
        "chunkless": good.replace(b'"chunks":[]', b'"chunks":[["c1",0,1,2]]').replace(
            b'"recent":[0]', b'"recent":[5,6]'
        ),
        "-no name": good,
    }
    for name, value in junk.items():
        assert value != good or name == "-no name"
        ground.cluster.registers[f"logs/{name}"] = Versioned(value, 0)

    rows = {row["log"]: row["state"] for row in logs_table(ground.context).to_pylist()}

    assert rows == {**dict.fromkeys(junk, "UNREADABLE"), "orders": "CLOSED"}
    nonce = logs.read_log(ground.context.store.registers, "chunkless").nonce
    with pytest.raises(MetadataFormatError, match="chunkless/c1"):
        list_ledgers(ground.context, "chunkless", nonce)
