"""Spark jobs while the storage of one bookie gives no answer, in whatever process it is asked.

Reading a FIFO that nobody writes to waits for ever, as a mount does whose server is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.spark.runner import SparkRunner
from tests.support.pieces import Done, Piece, step

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


@pytest.mark.full
def test_the_progress_of_a_spark_job_names_a_bookie_that_hangs(
    own_bk: sbk.BookKeeper, spark: Any, tmp_path: Path
) -> None:
    """Before any task has said a word: the work here waits until the name was told."""
    told = tmp_path / "told"
    culprit = sorted(own_bk.context.bookies.registrations())[0]

    def wait(_: ClientContext, piece: Piece) -> Sequence[Done]:
        given_up = time.monotonic() + 120
        while not told.exists() and time.monotonic() < given_up:
            time.sleep(0.1)
        return [Done(piece.number, reason=str(told.exists()))]

    phases: list[str] = []

    def progress(phase: str, *_: int) -> None:
        phases.append(phase)
        if f", waiting for {culprit} for" in phase:
            told.touch()

    hang(own_bk, culprit)
    with sbk.connect(own_bk.metadata_uri, spark=spark, config=CONFIG) as fresh:
        runner = SparkRunner(lambda: fresh.spark, fresh.connection, "a_job")
        job = Job("a_job", fresh.context, runner, progress)
        (done,) = job.run(step(wait, "checking ledgers"), [Piece(1)])

    assert done.reason == "True"
    assert phases[0] == phases[-1] == "checking ledgers"
    named = {phase for phase in phases if "waiting for" in phase}
    assert all(phase.startswith("checking ledgers, ") for phase in named)
    others = set(own_bk.context.bookies.registrations()) - {culprit}
    assert not any(other in phase for other in others for phase in named)


@pytest.mark.full
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
