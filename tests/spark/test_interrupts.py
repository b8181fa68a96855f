"""Ctrl-C while a job runs: it is cancelled, nobody is told of any mishap, and work goes on."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.spark.job import collect, spark_errors
from tests.spark.cancelling import active_tasks, cancelled_from_elsewhere, interrupt_when, until

pytestmark = pytest.mark.spark


def many_rows(spark: Any) -> Any:
    """Rows that take minutes to make, and hardly any room."""
    return spark.range(0, 1000, 1, 1000).mapInArrow(_slowly, "id long")


def _slowly(batches: Any) -> Any:
    import time

    for batch in batches:
        time.sleep(0.3)
        yield batch


def test_an_append_is_cancelled_and_its_writer_takes_the_next_one(
    spark: Any, bk: sbk.BookKeeper, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = many_rows(spark)
    writer = bk.create_ledger(schema=frame.schema)
    before = signal.getsignal(signal.SIGINT)
    presser = interrupt_when(lambda: active_tasks(spark) > 0)

    with pytest.raises(KeyboardInterrupt):
        writer.append(frame)

    presser.join()
    tracker = spark.sparkContext.statusTracker()
    until(lambda: tracker.getActiveJobsIds() == [])  # which hears of an end a moment later
    assert signal.getsignal(signal.SIGINT) is before
    writer.append(spark.range(3))
    writer.close()
    assert bk.open_ledger(writer.ledger_id).read().count() == 3
    said = capfd.readouterr().err
    assert "py4j" not in said
    assert "KeyboardInterrupt" not in said


@pytest.mark.full
def test_a_write_to_a_log_that_is_cancelled_leaves_nothing_and_a_cancelled_read_either(
    spark: Any, bk: sbk.BookKeeper
) -> None:
    log = bk.create_log("cancelled", schema=spark.range(1).schema)
    slow, before = many_rows(spark), bk.ledgers_arrow().num_rows
    source = spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)

    def writer() -> Any:
        made = slow.write.format("bookkeeper").mode("append")
        return made.option("metadataUri", bk.metadata_uri)

    presser = interrupt_when(lambda: active_tasks(spark) > 0)
    with pytest.raises(KeyboardInterrupt):
        log.write(slow)
    presser.join()
    until(lambda: active_tasks(spark) == 0)  # or the next one's canceller takes its last tasks
    with cancelled_from_elsewhere(spark), pytest.raises(spark_errors()):
        writer().option("log", "cancelled").save()
    with cancelled_from_elsewhere(spark), pytest.raises(spark_errors()):
        writer().option("name", "cancelled").save()

    assert log.ledgers() == []
    assert bk.ledgers_arrow().num_rows == before, "no leftovers"
    log.write(spark.range(5))
    found = source.option("log", "cancelled").load()
    with cancelled_from_elsewhere(spark), pytest.raises(spark_errors()):
        found.mapInArrow(_for_long, "id long").count()
    assert found.count() == 5


def _for_long(batches: Any) -> Any:
    import time

    for batch in batches:
        time.sleep(600)
        yield batch


def test_what_was_set_for_the_jobs_of_the_caller_is_set_for_its_job(spark: Any) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "quick")
    context.setJobGroup("mine", "what I do")
    try:
        rows = collect(spark.range(2).mapInArrow(_pool_and_group, "found string"), "two rows")

        assert {row.found for row in rows} == {"quick mine two rows"}
        assert context.getLocalProperty("spark.job.description") == "what I do"
    finally:
        for name in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)


def _pool_and_group(batches: Any) -> Any:
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    names = ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description")
    found = " ".join(str(task.getLocalProperty(name)) for name in names)
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"found": [found] * batch.num_rows})


@pytest.mark.full
def test_a_recovery_is_cancelled_and_leaves_nothing_half_visible(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_BOOKKEEPER_PROGRESS", "off")
    with sbk.local(bookies=4, spark=spark) as bk:
        writers = [bk.create_ledger() for _ in range(4)]
        for writer in writers:
            for _ in range(20):
                writer.append(b"x" * 10_000)
            writer.close()
        lost = writers[0].metadata.last_fragment.ensemble[0]
        assert bk.cluster is not None
        bk.cluster.stop_bookie(lost, destroy=True)
        presser = interrupt_when(lambda: active_tasks(spark) > 0)

        with pytest.raises(KeyboardInterrupt):
            bk.recover_bookie(lost, bytes_per_second=1_000)  # which would take minutes

        presser.join()
        tracker = spark.sparkContext.statusTracker()
        until(lambda: tracker.getActiveJobsIds() == [])
        for ledger_id in [
            w.ledger_id for w in writers
        ]:  # each fragment names the lost bookie, or one that has it all
            assert len(list(bk.open_ledger(ledger_id).entries())) == 20
            for row in bk.check_ledgers([ledger_id], percentage=100).unfinished:
                assert row.source == lost
        (noted, *_) = [row for row in bk.jobs_arrow().to_pylist() if row["job"] == "recover_bookie"]
        assert (noted["state"], noted["error"]) == ("failed", "interrupted")
        assert bk.recover_bookie(lost).is_complete
        assert bk.check_ledgers(percentage=100).is_complete
