"""Named followers: how far they are behind, and that retention waits for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLogError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import consumers_table, show_lag
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.metadata import consumers as registers
from spark_bookkeeper.metadata.consumers import Consumer
from spark_bookkeeper.metrics import BookieMetrics, Metrics
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.logs.conftest import USUAL

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def test_a_follower_tells_its_place_and_is_told_how_far_behind_that_is(
    ground: Ground, log: Log
) -> None:
    with log.become_writer() as writer:
        writer.append(bytes(100))
        middle = writer.append(bytes(100))
        writer.roll()
        last = writer.append(bytes(100))
    log.publish("etl", middle)
    log.publish("audit", Position(last.ledger_id, EntryId(last.entry_id + 1)))

    audit, etl = consumers_table(ground.context, "orders").to_pylist()

    assert (audit["consumer"], audit["entries_behind"], audit["seconds_behind"]) == ("audit", 0, 0)
    assert (etl["consumer"], etl["entries_behind"], etl["bytes_behind"]) == ("etl", 2, 200)
    assert (etl["ledger_id"], etl["entry_id"]) == (middle.ledger_id, middle.entry_id)
    assert etl["seconds_behind"] >= 0
    assert not etl["is_truncated"]
    log.truncate(last)
    _, etl = consumers_table(ground.context, "orders").to_pylist()
    assert etl["is_truncated"]
    assert etl["entries_behind"] == 1
    log.forget_consumer("etl")
    assert consumers_table(ground.context, "orders").column("consumer").to_pylist() == ["audit"]


def test_a_place_of_another_life_of_the_log_says_nothing(ground: Ground, log: Log) -> None:
    log.publish("etl", "7:0")
    truncation.delete(ground.context, "orders")
    with pytest.raises(NoSuchLogError):
        consumers_table(ground.context, "orders")
    create_log(ground.context, "orders", USUAL)

    assert consumers_table(ground.context, "orders").num_rows == 0


def test_who_follows_the_next_log_of_a_name_is_not_forgotten_with_the_last_one(
    ground: Ground, log: Log
) -> None:
    """Somebody publishes under the same name while the last log is still being deleted."""
    log.publish("etl", "7:0")
    log.publish("audit", "7:0")
    heard: list[Consumer] = []

    def publish(place: str, operation: str, path: str) -> None:
        if operation == "delete_register" and path == "consumers/orders/etl":
            ground.before.remove(publish)
            etl = Consumer("etl", "next", Position(LedgerId(9), EntryId(0)), 0)
            registers.publish(other, "orders", etl)
            heard.append(etl)

    other = ground.client().store.registers
    ground.before.append(publish)
    truncation.delete(ground.context, "orders")

    assert registers.consumers(other, "orders", "next") == heard != []
    assert registers.consumers(other, "orders", log._nonce) == []


def test_no_follower_can_have_a_name_that_is_a_path(log: Log) -> None:
    with pytest.raises(InvalidArgumentError, match="consumer name"):
        log.publish("../orders", "7:0")
    with pytest.raises(InvalidArgumentError, match="give both"):
        replace(USUAL, retain_for=("etl",))


def test_gauges_show_how_far_behind_followers_are_whenever_somebody_looks(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    log.publish("etl", writer.append(bytes(100)))
    writer.roll()
    mine, others, elsewhere = ground.context.metrics, BookieMetrics(), ground.client()
    show_lag(elsewhere, "orders", metrics=others)

    first = lag_of(mine, "etl")
    writer.append(bytes(100))
    writer.close()
    open_log(elsewhere, "orders").publish("audit", log.position_at(LONG_AGO))

    assert (first["entries"], first["bytes"]) == (1, 100)
    assert lag_of(mine, "etl")["entries"] == 2
    assert lag_of(mine, "etl")["seconds"] >= 0
    assert lag_of(mine, "audit") == {}, "that of another process"
    assert lag_of(others, "audit")["bytes"] == lag_of(others, "etl")["bytes"] == 200
    assert b'entries_behind{consumer="audit",log="orders"} 2.0' in others.exposition()


def test_followers_of_a_log_that_is_gone_are_shown_no_more(ground: Ground, log: Log) -> None:
    with log.become_writer() as writer:
        log.publish("etl", writer.append(b"a"))
    assert lag_of(ground.context.metrics, "etl")
    truncation.delete(ground.context, "orders")

    assert lag_of(ground.context.metrics, "etl") == {}


def lag_of(metrics: Metrics, consumer: str) -> dict[str, float]:
    """By unit; empty where it is not shown."""
    end = f'_behind{{consumer="{consumer}",log="orders"}}'
    shown = metrics.as_dict().items()
    return {name.removesuffix(end).rpartition("_")[2]: v for name, v in shown if end in name}


def test_retention_waits_for_those_it_is_told_to_wait_for(ground: Ground) -> None:
    now = 0

    class Clock(ThreadRuntime):
        def wall_ms(self) -> int:
            return now * 1000

    options = replace(USUAL, retain_seconds=1, retain_for=("etl", "audit"))
    log = create_log(ground.client(Clock()), "aging", options)
    with log.become_writer() as writer:
        ledgers = [writer.ledger_id]
        for _ in range(4):
            writer.append(b"x")
            now += 60
            writer.roll()
            ledgers.append(writer.ledger_id)
        assert log.ledgers() == ledgers  # neither has said anything: all is kept

        log.publish("etl", Position(ledgers[3], EntryId(0)))
        log.publish("audit", Position(ledgers[2], EntryId(0)))
        now += 60
        writer.roll()

    assert log.ledgers()[0] == ledgers[2]


@pytest.mark.parametrize("has_published", [True, False])
def test_retention_does_not_look_at_what_a_follower_holds_back(
    ground: Ground, has_published: bool
) -> None:
    now = 0

    class Clock(ThreadRuntime):
        def wall_ms(self) -> int:
            return now * 1000

    options = replace(USUAL, retain_seconds=1, retain_for=("etl",))
    log = create_log(ground.client(Clock()), "held-back", options)
    ledgers = []
    with log.become_writer() as writer:
        for _ in range(8):
            ledgers.append(writer.ledger_id)
            if has_published and len(ledgers) == 1:
                log.publish("etl", Position(writer.ledger_id, EntryId(0)))
            writer.append(b"x")
            now += 60
            ground.forget()
            writer.roll()
            # The last one may be written to until now, also by what comes behind an append.
            kept = tuple(f"ledgers/{ledger_id}-" for ledger_id in ledgers[:-1])
            asked = [each for each in ground.steps if each.path.startswith(kept)]
            assert [each for each in asked if each.place != METADATA] == []

    assert log.ledgers()[: len(ledgers)] == ledgers
