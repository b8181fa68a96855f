"""Archives and releases that are cancelled: nothing is half visible, and a repeat does the rest."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.spark import frames, runner
from tests.spark.cancelling import active_tasks, cancelled_from_elsewhere, interrupt_when, until

pytestmark = [pytest.mark.delta, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_BOOKKEEPER_PROGRESS", "off")


def of_ids(bk: sbk.BookKeeper, start: int) -> int:
    """A closed ledger of ten numbers."""
    with bk.create_ledger(schema=pa.schema([("id", pa.int64())])) as writer:
        writer.append(pa.table({"id": range(start, start + 10)}))
    return int(writer.ledger_id)


def of_texts(bk: sbk.BookKeeper, start: int) -> int:
    """The same with another schema: a commit of its own."""
    with bk.create_ledger(schema=pa.schema([("text", pa.string())])) as writer:
        writer.append(pa.table({"text": [str(number) for number in range(start, start + 10)]}))
    return int(writer.ledger_id)


def places_in(path: Path) -> list[tuple[int, int, int]]:
    """Ledger, entry and row of each row of a table, as delta-rs reads it."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found = DeltaTable(str(path)).to_pyarrow_table(columns=["_ledger_id", "_entry_id", "_row"])
    return sorted(zip(*found.to_pydict().values(), strict=True))


def places_of(ledger_ids: list[int]) -> list[tuple[int, int, int]]:
    return sorted((ledger_id, 0, row) for ledger_id in ledger_ids for row in range(10))


def rows_of(bk: sbk.BookKeeper, ledger_ids: list[int]) -> list[Any]:
    """What a new session reads."""
    with sbk.connect(bk.metadata_uri, bk.spark) as fresh:
        return [fresh.open_ledger(ledger_id).read_arrow().to_pylist() for ledger_id in ledger_ids]


def hold_read(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], bool]:
    """Have the tasks of one read of ledgers run until they are cancelled; whether it has begun."""
    reads = 0
    made = frames._read_task

    def read_task(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        task = made(*arguments)
        if reads != number:
            return task

        def held(batches: Any) -> Iterator[Any]:
            import time

            for batch in task(batches):
                time.sleep(600)
                yield batch

        return held

    monkeypatch.setattr(frames, "_read_task", read_task)
    return lambda: reads >= number


# An archive reads the ledgers of each commit twice: to write them, and to compare the table with
# them. The commit of the numbers comes first.
STEPS: dict[str, tuple[int, list[str]]] = {
    "the first commit": (1, []),
    "its comparison": (2, ["ids"]),
    "the second commit": (3, ["ids"]),
    "its own comparison": (4, ["ids", "texts"]),
}


@pytest.mark.parametrize(
    ("how", "step"),
    [
        ("Ctrl-C", "the first commit"),
        ("Ctrl-C", "its own comparison"),
        ("the job group", "its comparison"),
        ("all jobs", "the second commit"),
        pytest.param("Ctrl-C", "its comparison", marks=pytest.mark.full),
        pytest.param("Ctrl-C", "the second commit", marks=pytest.mark.full),
        pytest.param("the job group", "the first commit", marks=pytest.mark.full),
        pytest.param("the job group", "its own comparison", marks=pytest.mark.full),
    ],
)
def test_an_archive(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, step: str
) -> None:
    number, committed = STEPS[step]
    ledgers = {
        "ids": [of_ids(bk, start) for start in (0, 10)],
        "texts": [of_texts(bk, start) for start in (0, 10)],
    }
    asked = [*ledgers["ids"], *ledgers["texts"]]
    before, path = rows_of(bk, asked), tmp_path / "table"
    context: Any = bk.spark.sparkContext
    context.setJobGroup("a cell", "what a person runs")

    with monkeypatch.context() as patch:
        is_begun = hold_read(patch, number)
        if how == "Ctrl-C":
            presser = interrupt_when(lambda: is_begun() and active_tasks(bk.spark) > 0)
            with pytest.raises(KeyboardInterrupt):
                bk.archive_to_delta(str(path), asked, release=True)
            presser.join()
        else:
            group = "a cell" if how == "the job group" else None
            with (
                cancelled_from_elsewhere(bk.spark, is_begun, group),
                pytest.raises(BookKeeperError, match=r"was cancelled.*run it again"),
            ):
                bk.archive_to_delta(str(path), asked, release=True)
    for name in ("spark.jobGroup.id", "spark.job.description"):
        context.setLocalProperty(name, None)
    until(lambda: active_tasks(bk.spark) == 0)

    assert places_in(path) == places_of([i for kind in committed for i in ledgers[kind]])
    assert not any(stands_for(bk, ledger_id) for ledger_id in asked), "nothing was released"
    assert rows_of(bk, asked) == before
    (noted, *_) = [row for row in bk.jobs_arrow().to_pylist() if row["about"] == str(path)]
    assert noted["state"] == "failed"
    again = bk.archive_to_delta(str(path), asked)
    assert again.is_complete, again.unfinished
    assert places_in(path) == places_of(asked)
    assert rows_of(bk, asked) == before


def stands_for(bk: sbk.BookKeeper, ledger_id: int) -> bool:
    """Whether a table stands for copies of a ledger."""
    fragments = bk.ledger(ledger_id).fragments
    return any(is_table(bookie) for fragment in fragments for bookie in fragment.ensemble)


# A release has four jobs; the change of the metadata is between the third and the fourth.
PHASES = {
    "comparing with the table": False,
    "reading it back from the table": False,
    "verifying what stays": False,
    "dropping copies": True,
}


class Begun:
    """Hears that a phase has begun, and that it is over."""

    def __init__(self, phase: str, then: Callable[[], None] = lambda: None) -> None:
        self._phase = phase
        self._then = then
        self.is_now = False

    def __call__(self, phase: str, done: int, total: int, size_bytes: int) -> None:
        was_now, self.is_now = self.is_now, self._phase in phase
        if self.is_now and not was_now:
            self._then()


@pytest.mark.parametrize(
    ("how", "phase"),
    [
        *zip(("Ctrl-C", "all jobs", "Ctrl-C", "all jobs"), PHASES, strict=True),
        ("Ctrl-C", "dropping copies"),
        pytest.param("Ctrl-C", "reading it back from the table", marks=pytest.mark.full),
        pytest.param("all jobs", "comparing with the table", marks=pytest.mark.full),
        pytest.param("all jobs", "verifying what stays", marks=pytest.mark.full),
    ],
)
def test_a_release(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, how: str
) -> None:
    ledgers = [of_ids(bk, start) for start in (0, 10, 20)]
    before, path = rows_of(bk, ledgers), tmp_path / "table"
    assert bk.archive_to_delta(str(path), ledgers).is_complete

    if how == "Ctrl-C":
        begun = Begun(phase, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            bk.archive_to_delta(str(path), ledgers, release=True, keep=1, progress=begun)
    else:
        begun = Begun(phase)
        with monkeypatch.context() as patch:
            hold_step(patch, phase)
            with cancelled_from_elsewhere(bk.spark, lambda: begun.is_now):
                report = bk.archive_to_delta(
                    str(path), ledgers, release=True, keep=1, progress=begun
                )
        assert report.counts == {"archived": 3, "left": 3}
        assert all("run it again" in row.reason for row in report.unfinished if row.reason)
    until(lambda: active_tasks(bk.spark) == 0)

    released = [stands_for(bk, ledger_id) for ledger_id in ledgers]
    assert released == [PHASES[phase]] * 3, "all of it before the change, or all behind it"
    assert rows_of(bk, ledgers) == before
    assert places_in(path) == places_of(ledgers)
    again = bk.archive_to_delta(str(path), ledgers, release=True, keep=1)
    assert again.counts == {"archived": 3, "released": 3}, again.unfinished
    assert rows_of(bk, ledgers) == before
    assert places_in(path) == places_of(ledgers)


def hold_step(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """Have the tasks of one phase wait until they are cancelled, before they do anything."""
    made = runner._task

    def step_task(connection: Any, packs: Any, step: Any) -> Any:
        task = made(connection, packs, step)
        if step.phase != phase:
            return task

        def held(batches: Any) -> Iterator[Any]:
            import time

            time.sleep(600)
            yield from task(batches)

        return held

    monkeypatch.setattr(runner, "_task", step_task)
