"""A log goes on with more columns: its readers see one schema, whatever its ledgers have."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pytest

from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LogOwnershipLostError,
    MetadataUnavailableError,
)
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.hooks import NO_ANSWER, At

OLD = pa.schema([("n", pa.int32())])
NEW = pa.schema([("n", pa.int64()), ("why", pa.string())])


@pytest.fixture
def log(ground: Ground) -> Log:
    return create_log(ground.context, "typed", LogOptions(Quorum(3, 3, 2), OLD, b"secret"))


def old_rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int32())})


def new_rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "why": ["because"] * len(numbers)})


def test_a_writer_goes_on_with_more_columns(ground: Ground, log: Log) -> None:
    reader = open_log(ground.client(), "typed")
    with log.become_writer() as writer:
        first = writer.append(old_rows(1, 2))
        with pytest.raises(InvalidArgumentError, match=r"ledger:\n  n: int32\ndata:\n  n: int64"):
            writer.append(new_rows(3))
        assert writer.evolve(NEW) == writer.ledger_id > first.ledger_id
        assert writer.schema == NEW
        assert writer.evolve(NEW) == writer.ledger_id, "nothing to do"
        writer.append(new_rows(3))
        with pytest.raises(InvalidArgumentError):
            writer.append(old_rows(4))

    expected = [{"n": 1, "why": None}, {"n": 2, "why": None}, {"n": 3, "why": "because"}]
    assert reader.schema == OLD, "as it was when it was opened"
    assert reader.read_arrow().to_pylist() == expected
    assert reader.read_arrow().schema == NEW == reader.schema
    entries = list(reader.entries())
    assert {entry.batch.schema for entry in entries} == {NEW}
    assert [row for entry in entries for row in entry.batch.to_pylist()] == expected


def test_a_follower_sees_one_schema_from_the_next_look_on(ground: Ground, log: Log) -> None:
    writer = log.become_writer()
    follower = open_log(ground.client(), "typed").tail()
    writer.append(old_rows(1))
    writer.append(old_rows(2))
    assert next(follower).batch.to_pylist() == [{"n": 1}]

    writer.evolve(NEW)
    writer.append(new_rows(3))
    writer.roll()

    seen = [row for entry in islice(follower, 2) for row in entry.batch.to_pylist()]
    assert seen == [{"n": 2, "why": None}, {"n": 3, "why": "because"}]


def test_a_new_writer_may_bring_its_columns(log: Log) -> None:
    log.become_writer().append(old_rows(1))

    with log.become_writer(schema=NEW) as writer:
        assert log.schema == NEW
        writer.append(new_rows(2))

    assert log.read_arrow().column("n").to_pylist() == [1, 2]
    with log.become_writer() as writer:
        assert writer.schema == NEW
    with pytest.raises(InvalidArgumentError, match="must stay"):
        log.become_writer(schema=pa.schema([("other", pa.int64())]))
    with pytest.raises(InvalidArgumentError, match="not an Arrow schema"):
        log.become_writer(schema="n int")


def test_what_cannot_follow_changes_nothing(ground: Ground, log: Log) -> None:
    with log.become_writer() as writer:
        before = ground.cluster.registers["logs/typed"]
        with pytest.raises(InvalidArgumentError, match="not every int32 is a int16"):
            writer.evolve(pa.schema([("n", pa.int16())]))
        assert ground.cluster.registers["logs/typed"] == before
        writer.append(old_rows(1))


def test_one_that_is_no_writer_any_more_learns_it(log: Log) -> None:
    old = log.become_writer()
    log.become_writer().close()

    with pytest.raises(LogOwnershipLostError):
        old.evolve(NEW)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_at_any_step_leaves_a_log_that_is_read_and_written(
    ground: Ground, log: Log, moment: str
) -> None:
    written = 0
    for step in range(100):
        writer = log.become_writer()
        schema = pa.schema([*log.schema, (f"c{step}", pa.int8())])
        lose = At(None, NO_ANSWER, on=METADATA, only=[step])
        hooks = ground.after if moment == "after" else ground.before
        hooks.append(lose)
        with suppress(MetadataUnavailableError):
            writer.evolve(schema)
        hooks.remove(lose)
        if len(lose.met) <= step:
            break
        writer.append(pa.Table.from_pylist([{"n": written}], schema=writer.schema))
        written += 1
        assert log.read_arrow().column("n").to_pylist()[: written - 1] == list(range(written - 1))

    assert step > 3
    log.become_writer().close()
    assert log.read_arrow().column("n").to_pylist() == list(range(written))
