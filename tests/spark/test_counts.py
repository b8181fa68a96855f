"""What Spark tasks count is shown by the client whose work they did, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import spark_bookkeeper as sbk

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture
def client(bk: sbk.BookKeeper) -> Iterator[sbk.BookKeeper]:
    with sbk.connect(bk.metadata_uri, spark=bk.spark) as connected:
        yield connected


@contextmanager
def counting(client: sbk.BookKeeper) -> Iterator[dict[str, float]]:
    """What grows meanwhile."""
    before, grown = client.metrics(), dict[str, float]()
    yield grown
    now = client.metrics()
    grown.update({name: now[name] - before[name] for name in now})


ADDED = "bookkeeper_client_ADD_ENTRIES_total"
READ = "bookkeeper_client_READ_ENTRIES_total"


@pytest.mark.full
def test_rows_written_and_read_by_tasks_are_counted_once(client: sbk.BookKeeper) -> None:
    frame = client.spark.range(0, 100, 1, 4)
    with counting(client) as written, client.create_ledger(schema=frame.schema) as writer:
        last = writer.append(frame)
    reader = client.open_ledger(writer.ledger_id)
    with counting(client) as read:
        assert reader.read().count() == 100
    with counting(client) as read_again:
        assert reader.read().count() == 100

    assert written[ADDED] == last + 1
    assert read[READ] == read_again[READ] == last + 1
    assert read["bookkeeper_client_READ_BYTES_total"] == writer.length_bytes
    assert read[ADDED] == 0


@pytest.mark.full
def test_a_replica_that_tasks_could_not_read_and_a_job_of_many_ledgers_are_counted(
    own_bk: sbk.BookKeeper, spark: Any
) -> None:
    bk = own_bk
    assert bk.cluster is not None
    frame = spark.range(0, 100, 1, 4)
    writers = [bk.create_ledger(schema=frame.schema) for _ in range(3)]
    for writer in writers:
        writer.append(frame)
    lost = writers[0].metadata.last_fragment.ensemble[0]
    with counting(bk) as recovered:
        assert bk.recover_ledgers().is_complete
    bk.cluster.stop_bookie(lost, destroy=True)
    with counting(bk) as read:
        assert bk.open_ledger(writers[0].ledger_id).read().count() == 100
    with counting(bk) as checked:
        bk.lost_entries()

    assert recovered['bookkeeper_client_LEDGER_RECOVER_count{success="true"}'] == 3
    assert recovered["bookkeeper_client_fences_total"] >= 6
    assert read["bookkeeper_client_read_retries_total"] > 0
    assert checked[READ] == 3 * read[READ]
