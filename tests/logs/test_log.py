"""A log: one writer at a time, ledgers in order, nothing lost where one follows the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import custom_metadata
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LogExistsError,
    LogOwnershipLostError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import opening, truncation
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, logs_table, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.logs import change_log, read_log
from spark_bookkeeper.protocol import log as protocol_log
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import METADATA, Ground, KillAt, Killed, StandingStill
from tests.hooks import NO_ANSWER, At
from tests.logs.conftest import USUAL, payloads, states


def test_what_is_appended_is_read_in_order_across_ledgers(log: Log) -> None:
    with log.become_writer() as writer:
        places = [writer.append(b"a"), writer.append(b"b")]
        writer.roll()
        places.append(writer.append(b"c"))

    assert places == sorted(places)
    assert [place.entry_id for place in places] == [0, 1, 0]
    assert payloads(log) == [b"a", b"b", b"c"]
    assert payloads(log, str(places[1]), str(places[2])) == [b"b"]
    assert log.read_arrow().column("payload").to_pylist() == [b"a", b"b", b"c"]


def test_a_new_writer_fences_the_one_before_and_its_acknowledged_rows_stay(log: Log) -> None:
    old = log.become_writer()
    old.append(b"a")

    new = log.become_writer()
    new.append(b"b")

    with pytest.raises(LogOwnershipLostError, match="orders"):
        old.append(b"too late")
    assert payloads(log)[:1] == [b"a"]
    new.close()
    assert payloads(log) == [b"a", b"b"]


def test_a_writer_that_rolls_after_another_took_over_learns_that_it_lost(
    ground: Ground, log: Log
) -> None:
    old = log.become_writer()
    old.append(b"a")
    log.become_writer().close()
    before = list(ground.context.store.ledger_ids())

    with pytest.raises(LogOwnershipLostError):
        old.roll()

    assert list(ground.context.store.ledger_ids()) == before


def test_of_two_that_take_over_at_once_one_is_overtaken_and_the_loser_leaves_no_ledger(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, others = opening.new_ledger, list[Any]()

    def overtaken(*args: Any) -> Any:
        if not others:
            others.append(None)
            others.append(log.become_writer())
        return create(*args)

    monkeypatch.setattr(opening, "new_ledger", overtaken)
    with pytest.raises(LogOwnershipLostError, match="faster"):
        log.become_writer(is_leader=lambda: False)

    assert len(log.ledgers()) == 1
    assert list(ground.context.store.ledger_ids()) == log.ledgers()
    others[1].append(b"the winner writes")


def test_an_idle_log_is_empty_and_its_writer_can_be_any(log: Log) -> None:
    assert payloads(log) == []
    assert log.ledgers() == []
    log.become_writer().close()
    assert payloads(log) == []


def test_only_the_last_two_ledgers_are_ever_open(ground: Ground, log: Log) -> None:
    writer = log.become_writer()
    for n in range(4):
        writer.append(b"%d" % n)
        writer.roll()

    assert states(ground, log) == ["CLOSED"] * 4 + ["OPEN"]


def test_truncation_takes_whole_ledgers_and_positions_stay_meaningful(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    places = []
    for n in range(4):
        places.append(writer.append(b"%d" % n))
        writer.roll()
    writer.append(b"end")

    deleted = log.truncate(places[2])

    assert deleted == [places[0].ledger_id, places[1].ledger_id]
    assert list(ground.context.store.ledger_ids()) == log.ledgers()
    assert payloads(log, str(places[3]))[:1] == [b"3"]
    with pytest.raises(NoSuchEntryError, match=f"begins at ledger {places[1].ledger_id + 1}"):
        payloads(log, str(places[1]))
    assert log.truncate(10**9) == [places[2].ledger_id, places[3].ledger_id]
    assert log.ledgers() == [writer.ledger_id], "the newest ledger always stays"


def test_what_a_truncation_would_delete_is_told_beforehand_with_what_one_before_has_left(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    for _ in range(4):
        writer.append(b"a")
        writer.roll()
    first, second, third, *_ = log.ledgers()
    change_log(
        ground.context.store.registers,
        log.name,
        read_log(ground.context.store.registers, log.name).nonce,
        lambda old: old.truncated(second),
    )

    for before, planned in (
        (0, [first]),
        (third, [first, second]),
        (f"{third}:5", [first, second]),
    ):
        assert log.truncate(before, dry_run=True) == planned
    assert list(ground.context.store.ledger_ids())[:3] == [first, second, third]
    assert log.truncate(third) == [first, second]
    assert log.truncate(third, dry_run=True) == []


def test_a_follower_goes_from_ledger_to_ledger_without_a_gap_or_a_repetition(log: Log) -> None:
    writer = log.become_writer()
    follower = log.tail(timeout_ms=0)
    writer.append(b"a")
    writer.roll()
    writer.append(b"b")
    second = log.become_writer()
    second.append(b"c")
    second.close()

    assert [entry.payload for entry in follower] == [b"a", b"b", b"c"]


def test_a_follower_that_has_read_what_is_truncated_goes_on(log: Log) -> None:
    writer = log.become_writer()
    follower = log.tail()
    writer.append(b"a")
    writer.roll()
    assert next(follower).payload == b"a"
    place = writer.append(b"b")
    writer.append(b"c")

    log.truncate(place)

    assert next(follower).payload == b"b"


def test_a_follower_that_has_not_read_what_is_truncated_is_told(log: Log) -> None:
    writer = log.become_writer()
    follower = log.tail()
    writer.append(b"a")
    writer.roll()
    assert next(follower).payload == b"a"
    writer.append(b"missed")
    writer.roll()
    writer.roll()

    log.truncate(writer.ledger_id)

    with pytest.raises(NoSuchEntryError, match="truncated"):
        next(follower)


def test_the_name_of_a_deleted_log_is_free_and_its_writer_writes_no_more(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    writer.append(b"a")

    truncation.delete(ground.context, "orders")
    truncation.delete(ground.context, "orders")

    assert list(ground.context.store.ledger_ids()) == []
    with pytest.raises(NoSuchLogError, match="create_log"):
        open_log(ground.context, "orders")
    with pytest.raises(LogOwnershipLostError):
        writer.append(b"b")
    again = create_log(ground.context, "orders", USUAL)
    with pytest.raises(NoSuchLogError):
        writer.roll()
    with pytest.raises(NoSuchLogError):
        log.ledgers()
    assert again.ledgers() == []


def test_a_name_is_taken_once(ground: Ground, log: Log) -> None:
    with pytest.raises(LogExistsError, match="open_log"):
        create_log(ground.context, "orders", USUAL)
    assert open_log(ground.context, "orders").ledgers() == []


def test_every_ledger_of_a_log_is_made_as_the_log_says(ground: Ground) -> None:
    schema = pa.schema([("n", pa.int64())])
    options = LogOptions(Quorum(4, 2, 2), schema, b"secret", compression="zstd")
    create_log(ground.context, "typed", options)

    log = open_log(ground.context, "typed")
    with log.become_writer() as writer:
        writer.append(pa.table({"n": [1, 2, 3]}))
        writer.roll()
        writer.append(pa.table({"n": [4]}))

    assert log.read_arrow().to_pydict() == {"n": [1, 2, 3, 4]}
    for ledger_id in log.ledgers():
        metadata = ground.context.store.read_ledger(ledger_id).value
        assert metadata.quorum == options.quorum
        assert metadata.custom_metadata["log"] == b"typed"
        assert lifecycle.open_ledger(ground.context, ledger_id, b"secret").schema == schema


def test_a_position_within_an_entry_or_none_at_all_is_refused(log: Log) -> None:
    with pytest.raises(InvalidArgumentError, match="within an entry"):
        log.read_arrow("0:0:1")
    with pytest.raises(InvalidArgumentError, match="7:12:0"):
        log.read_arrow("soon")


def test_a_long_list_is_kept_in_chunks(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = protocol_log.LogHead.to_seal
    monkeypatch.setattr(protocol_log.LogHead, "to_seal", lambda head: seal(head, 2))
    with log.become_writer() as writer:
        for n in range(9):
            writer.append(b"%d" % n)
            writer.roll()

    assert payloads(log) == [b"%d" % n for n in range(9)]
    chunks = ground.cluster.registers.keys() - {"logs/orders"}
    assert len(chunks) == 3 or len(chunks) == 4
    log.truncate(log.ledgers()[5])
    assert payloads(log) == [b"%d" % n for n in range(5, 9)]
    assert len(ground.cluster.registers.keys() - {"logs/orders"}) < len(chunks)


def test_the_table_of_logs_shows_every_ledger(ground: Ground, log: Log) -> None:
    create_log(ground.context, "empty", USUAL)
    writer = log.become_writer()
    writer.append(b"a")
    writer.roll()
    ground.cluster.registers["logs/broken"] = ground.cluster.registers["logs/orders"].__class__(
        b"\xff", 0
    )

    rows = logs_table(ground.context).to_pylist()

    assert [(row["log"], row["state"], row["last_entry_id"]) for row in rows] == [
        ("broken", "UNREADABLE", None),
        ("empty", None, None),
        ("orders", "CLOSED", 0),
        ("orders", "OPEN", None),
    ]


def roll_that_cannot_close(log: Log) -> None:
    """The writer crashes, at the latest, when it could not close the ledger before its newest."""
    writer = log.become_writer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerWriter, "close", unanswered)
        writer.roll()


def unanswered(_: LedgerWriter) -> None:
    raise MetadataUnavailableError("no answer")


WORK: dict[str, Callable[[Log], object]] = {
    "become_writer": lambda log: log.become_writer(),
    "roll": lambda log: log.become_writer().roll(),
    "roll_that_cannot_close": roll_that_cannot_close,
    "truncate": lambda log: log.truncate(log.ledgers()[-1]),
}


@pytest.mark.parametrize("step", range(0, 40, 2))
def test_a_deletion_that_crashes_between_any_two_steps_is_finished_by_the_next(
    ground: Ground, log: Log, step: int
) -> None:
    with log.become_writer() as writer:
        for n in range(3):
            writer.append(b"%d" % n)
            writer.roll()
    with suppress(Killed):
        truncation.delete(ground.client(None, KillAt(step)), "orders")
    try:
        assert payloads(log) == [b"0", b"1", b"2"], "it is there as before, or not at all"
    except NoSuchLogError:
        create_log(ground.context, "orders", USUAL)
    else:
        truncation.delete(ground.context, "orders")
    assert list(ground.context.store.ledger_ids()) == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("work", ["become_writer", "roll"])
def test_a_lost_answer_at_any_step_loses_nothing_and_leaves_a_list_of_ledgers_that_exist(
    ground: Ground, log: Log, work: str, moment: str
) -> None:
    acknowledged = list[bytes]()
    for step in range(100):
        client = ground.client()
        writer = open_log(client, "orders").become_writer() if work == "roll" else None
        lose = At(None, NO_ANSWER, on=METADATA, only=[step])
        hooks = ground.after if moment == "after" else ground.before
        hooks.append(lose)
        with suppress(MetadataUnavailableError):
            if writer is None:
                writer = open_log(client, "orders").become_writer()
            else:
                writer.roll()
        hooks.remove(lose)
        if len(lose.met) <= step:
            break
        if writer is not None:
            writer.append(b"%d" % step)
            acknowledged.append(b"%d" % step)
        assert set(states(ground, log)[:-2]) <= {"CLOSED"}
    assert step > 5
    log.become_writer().close()
    assert payloads(log) == acknowledged
    assert set(states(ground, log)) == {"CLOSED"}


@pytest.mark.parametrize("work", WORK)
def test_a_crash_between_any_two_steps_leaves_a_log_that_the_next_writer_repairs(
    ground: Ground, log: Log, work: str
) -> None:
    with log.become_writer() as writer:
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
        writer.roll()
        writer.append(b"c")
    for step in range(1_000):
        victim = ground.client(None, At(None, Killed(), only=range(step, 1_000_000)))
        try:
            WORK[work](open_log(victim, "orders"))
        except Killed:
            pass
        else:
            break
        with log.become_writer() as writer:
            writer.append(b"more")
        read = payloads(log)
        written = [b"a", b"b", b"c", *[b"more"] * (step + 1)]
        assert read == (written[-len(read) :] if work == "truncate" else written)
        assert set(states(ground, log)) == {"CLOSED"}
    assert step > 5


def test_what_is_added_when_the_answer_is_lost_is_found_in_the_list(
    ground: Ground, log: Log
) -> None:
    lost = At("write_register", NO_ANSWER, only=[0])
    ground.after.append(lost)
    writer = log.become_writer()

    assert lost.met
    assert log.ledgers() == [writer.ledger_id]
    assert writer.append(b"a") == Position(writer.ledger_id, EntryId(0))


def test_futures_of_a_log_tell_positions(log: Log) -> None:
    with log.become_writer() as writer:
        futures = list(islice((writer.append_async(b"%d" % n) for n in range(5)), 5))
        assert writer.flush() == writer.last_position

    assert [future.result() for future in futures] == [
        Position(LedgerId(writer.ledger_id), EntryId(n)) for n in range(5)
    ]


def test_a_roll_whose_outcome_is_unknown_is_finished_by_the_next(ground: Ground, log: Log) -> None:
    writer = log.become_writer()
    first = writer.append(b"a")
    away = True

    def lose(place: str, operation: str, path: str) -> None:
        if away and operation in {"write_register", "read_register"}:
            raise MetadataUnavailableError("no answer")

    ground.after.append(lose)
    with pytest.raises(MetadataUnavailableError):
        writer.roll()
    assert writer.append(b"b").ledger_id == first.ledger_id
    away = False

    rolled = writer.roll()

    assert writer.append(b"c").ledger_id == rolled
    writer.close()
    assert payloads(log) == [b"a", b"b", b"c"]
    assert list(ground.context.store.ledger_ids()) == log.ledgers()


def test_what_is_appended_in_callbacks_while_the_log_rolls_is_in_order(log: Log) -> None:
    writer = log.become_writer()
    done: list[bytes] = []

    def again(n: int) -> None:
        payload = b"%d" % n
        future = writer.append_async(payload)
        future.add_done_callback(lambda _: done.append(payload))
        if n < 100:
            future.add_done_callback(lambda _: again(n + 1))

    again(0)
    rolled = {writer.roll() for _ in range(5)}
    writer.flush()
    while len(done) < 101:
        writer.append_async(b"").result()
    writer.close()

    assert [p for p in payloads(log) if p] == [b"%d" % n for n in range(101)]
    assert len(rolled) == 5


def entries_in_each(log: Log, count: int) -> list[int]:
    """How many entries each ledger has after so many small appends."""
    with log.become_writer() as writer:
        for n in range(count):
            writer.append(b"%03d" % n)
    assert payloads(log) == [b"%03d" % n for n in range(count)]
    return [sum(e.ledger_id == ledger for e in log.entries()) for ledger in log.ledgers()]


@pytest.mark.parametrize("limit", [{"roll_bytes": 30}, {"roll_entries": 10}])
def test_a_log_rolls_by_itself_when_a_ledger_is_large(
    ground: Ground, limit: dict[str, Any]
) -> None:
    log = create_log(ground.context, "rolling", replace(USUAL, **limit))

    counts = entries_in_each(log, 60)

    assert len(counts) > 1
    assert all(count >= 10 for count in counts[:-1])


def test_a_log_rolls_by_itself_when_a_ledger_is_old_and_keeps_what_it_is_to_keep(
    ground: Ground,
) -> None:
    now = 0.0

    class Clock(ThreadRuntime):
        def now(self) -> float:
            return now + super().now()

        def wall_ms(self) -> int:
            return int(now * 1000)

    client = ground.client(Clock())
    log = create_log(client, "aging", replace(USUAL, roll_seconds=3_600, retain_seconds=10_000))
    writer = log.become_writer()
    seen = {writer.ledger_id}
    for hour in range(6):
        now = hour * 3_601.0
        before = writer.ledger_id
        writer.append(b"%d" % hour)
        while hour and writer.ledger_id == before:  # the roll before may not have ended yet
            writer.append(b"again")
        seen.add(writer.ledger_id)
    writer.close()

    assert len(seen) == 6
    assert b"5" in payloads(log)
    assert set(log.ledgers()) < seen
    assert len(log.ledgers()) >= 3


def test_retention_needs_no_rolling_to_be_asked_for(ground: Ground) -> None:
    clock = StandingStill()
    noted: list[Any] = []
    client = replace(ground.client(clock), on_deleted=lambda _, *told: noted.append(told))
    log = create_log(client, "kept", replace(USUAL, retain_seconds=100))

    def append(payload: bytes) -> None:
        """By a writer that is there for a moment, as `log append` is."""
        with log.become_writer() as writer:
            writer.append(payload)
        clock.sleep(60)

    append(b"0")
    append(b"60")
    assert payloads(log) == [b"0", b"60"]
    oldest = log.ledgers()[0]
    append(b"120")
    assert payloads(log) == [b"60", b"120"]
    ((job, what, (gone,)),) = noted
    assert (job, what, gone.ledger_id) == ("truncate_log", "log kept", oldest)

    with log.become_writer() as writer:  # one that stays goes on in other ledgers
        first = writer.ledger_id
        writer.append(b"180")
        clock.sleep(100)
        writer.append(b"280")
        ground.until(lambda: writer.ledger_id != first)
        clock.sleep(100)
        writer.append(b"380")
    assert payloads(log) == [b"380"]


def test_truncation_by_time_takes_ledgers_that_had_ended(ground: Ground) -> None:
    now = 0

    class Clock(ThreadRuntime):
        def wall_ms(self) -> int:
            return now

    client = ground.client(Clock())
    log = create_log(client, "timed", USUAL)
    now = 1_000_000
    writer = log.become_writer()
    for n in range(3):
        writer.append(b"%d" % n)
        now += 60_000
        writer.roll()
    writer.append(b"3")
    writer.close()

    for at, gone in ((999, 0), (1_059, 1), (1_119, 1), (1_121, 1), (9_999, 0)):
        assert len(log.truncate(datetime.fromtimestamp(at, timezone.utc))) == gone
    assert payloads(log) == [b"3"], "the newest stays, however old"
    assert create_log(client, "none", USUAL).truncate(datetime.now(timezone.utc)) == []


@pytest.mark.parametrize("option", ["roll_bytes", "roll_entries", "roll_seconds", "retain_seconds"])
def test_a_limit_that_is_none_is_refused(option: str) -> None:
    limits: dict[str, Any] = {option: 0}
    with pytest.raises(InvalidArgumentError, match=f"{option}=0"):
        replace(USUAL, **limits)


QUORUM = Quorum(3, 3, 2)
LEFT = 12


def with_ledgers(directory: Path, count: int) -> tuple[Ground, Log]:
    """A log of so many ledgers, closed and empty but the last two, of which all but some go."""
    ground = Ground(directory)
    context = ground.context
    log = create_log(context, "long", LogOptions(QUORUM))
    ensemble = tuple(ground.bookie_ids[:3])
    for number in range(count - 1):
        ledger_id = context.store.generate_ledger_id()
        nonce = context.runtime.token()
        incarnations = dict.fromkeys(ensemble, "i")
        empty = LedgerMetadata(
            quorum=QUORUM,
            state=LedgerState.CLOSED,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest_type=DigestType.CRC32C,
            password=b"",
            last_entry_id=NO_ENTRY,
            length_bytes=0,
            ctime_ms=number,
            custom_metadata=custom_metadata(nonce, log.schema, None, 1, incarnations, None),
        )
        context.store.create_ledger(ledger_id, empty, is_generated=True)
        head = logs.read_log(context.store.registers, "long")
        opening.add_to_list(context, "long", head, ledger_id)
    with log.become_writer() as writer:
        for n in range(3):
            writer.append(b"%d" % n)
    log.truncate(log.ledgers()[-LEFT])
    assert len(log.ledgers()) == LEFT
    return ground, log


def costs(directory: Path, count: int) -> dict[str, Counter[str]]:
    """What is asked for when the log is opened, followed, read, truncated, and written again."""
    ground, _ = with_ledgers(directory, count)
    spent: dict[str, Counter[str]] = {}

    def told(name: str) -> None:
        spent[name] = ground.count()
        ground.forget()

    ground.forget()
    log = open_log(ground.client(), "long")
    told("open")
    assert [entry.payload for entry in islice(log.tail(), 3)] == [b"0", b"1", b"2"]
    told("follow")
    assert log.read_arrow().num_rows == 3
    told("read")
    assert len(log.truncate(log.ledgers()[5])) == 5
    told("truncate")
    assert log.truncate(LedgerId(0)) == []
    told("truncate nothing")
    log.become_writer().close()
    told("write")
    return spent


def test_what_was_truncated_costs_nothing_any_more(tmp_path: Path) -> None:
    few = costs(tmp_path / "few", LEFT)
    many = costs(tmp_path / "many", 200)

    assert many == few
    assert many["open"].total() == 1
    assert many["truncate"]["delete_ledger"] == 5


def test_nor_does_it_where_the_list_is_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = LogHead.to_seal
    monkeypatch.setattr(LogHead, "to_seal", lambda head: seal(head, 25))

    few = costs(tmp_path / "few", 115)
    many = costs(tmp_path / "many", 315)

    assert many == few
    assert many["open"].total() == 1
    assert many["follow"]["read_register"] < 10
