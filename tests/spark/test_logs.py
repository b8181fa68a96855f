"""Logs and DataFrames: appended as jobs, read as one frame over all ledgers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from spark_bookkeeper.errors import LogOwnershipLostError, NoSuchLogError
from spark_bookkeeper.session import BookKeeper

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_frames_go_into_a_log_and_come_out_in_order(bk: BookKeeper) -> None:
    frames = [bk.spark.range(n * 100, n * 100 + 100, 1, 3) for n in range(3)]
    log = bk.create_log("ranges", schema=frames[0].schema)
    with log.become_writer() as writer:
        places = []
        for frame in frames:
            places.append(writer.append(frame))
            writer.roll()

    assert [row.id for row in log.read().collect()] == list(range(300))
    assert [row.id for row in log.read(end=str(places[1])).collect()][:100] == list(range(100))
    assert bk.logs().where("log = 'ranges'").count() == len(log.ledgers()) == 4
    bk.delete_log("ranges")
    with pytest.raises(NoSuchLogError):
        bk.open_log("ranges")


@pytest.mark.full
def test_a_log_that_was_evolved_is_one_frame_with_its_new_columns(bk: BookKeeper) -> None:
    narrow = bk.spark.createDataFrame([(1,), (2,)], "n int")
    wide = bk.spark.createDataFrame([(3, "x")], "n long, why string")
    log = bk.create_log("evolved", schema=narrow.schema)
    with log.become_writer() as writer:
        writer.append(narrow)
        writer.evolve(wide.schema)
        writer.append(wide)

    frame = log.read()

    assert frame.dtypes == [("n", "bigint"), ("why", "string")]
    assert [tuple(row) for row in frame.collect()] == [(1, None), (2, None), (3, "x")]
    assert log.read(start_time=datetime.now(timezone.utc) + timedelta(days=1)).count() == 0
    options = {"metadataUri": bk.metadata_uri, "log": "evolved", "columns": "why"}
    only_new = bk.spark.read.format("bookkeeper").options(**options).load()
    assert [row.why for row in only_new.collect()] == [None, None, "x"]


def test_a_frame_that_a_deposed_writer_appends_is_refused(bk: BookKeeper) -> None:
    log = bk.create_log("deposed", schema=bk.spark.range(1).schema)
    old = log.become_writer()
    with log.become_writer() as new:
        new.append(bk.spark.range(5))

    with pytest.raises(LogOwnershipLostError, match="deposed"):
        old.append(bk.spark.range(5))
    assert log.read().count() == 5
