"""Spark jobs while the storage of one bookie gives no answer, in whatever process it is asked.

Reading a FIFO that nobody writes to waits for ever, as a mount does whose server is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.config import ClientConfig

pytestmark = pytest.mark.spark

CONFIG = ClientConfig(
    add_timeout_ms=4_000, bookie_timeout_ms=2_000, read_hedge_ms=200, bookie_retry_ms=600_000
)


@pytest.fixture
def patient(own_bk: sbk.BookKeeper, spark: Any) -> Iterator[sbk.BookKeeper]:
    with sbk.connect(own_bk.metadata_uri, spark=spark, config=CONFIG) as bookkeeper:
        yield bookkeeper


def hang(own_bk: sbk.BookKeeper, bookie: str) -> None:
    """Whoever looks at the bookie's marker waits for ever, and everybody does look at it."""
    assert own_bk.cluster is not None
    marker = own_bk.cluster.root_of(bookie) / MARKER_PATH
    os.mkfifo(marker.with_name("never"))
    marker.with_name("never").replace(marker)


def test_jobs_go_on_without_a_bookie_that_hangs(
    own_bk: sbk.BookKeeper, patient: sbk.BookKeeper, spark: Any
) -> None:
    frame = spark.range(0, 20_000, 1, 4).selectExpr("id", "repeat('x', 50) as filling")
    writer = patient.create_ledger(
        ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, schema=frame.schema
    )
    writer.append(frame)
    first, second = writer.metadata.last_fragment.ensemble[:2]

    hang(own_bk, first)
    writer.append(frame)
    assert first not in writer.metadata.last_fragment.ensemble
    writer.close()

    reader = patient.open_ledger(writer.ledger_id)
    assert reader.read().count() == 40_000
    checked = patient.check_ledgers([writer.ledger_id])
    for row in checked.rows:
        assert row.status == ("unavailable" if row.source == first else "healthy")
        assert row.source != first or "no answer" in str(row.reason)
    assert {row.source for row in checked.unfinished} == {first}
    report = patient.recover_bookie(second, even_if_alive=True)
    assert {row.status for row in report.rows} == {"replicated"}
    assert first not in {row.target for row in report.rows}
