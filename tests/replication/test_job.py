"""The frame of a job: what a module adds to it, and that it does not grow with the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from spark_bookkeeper import replication
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import job as frame
from spark_bookkeeper.replication.job import Job, Known
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import (
    Failure,
    ItemT,
    LocalRunner,
    Progress,
    ResultT,
    Runner,
    Step,
    no_progress,
)
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.testing.ground import Ground
from tests.support.pieces import Done, Piece, step

EXAMPLE = Path(str(replication.__file__)).with_name("README.md")

NAMES: dict[str, Any] = {
    each.__name__: each
    for each in (
        *(ClientContext, Failure, Job, Known, Report, Row, Runner, Step, Versioned),
        *(Iterator, LedgerId, Outcome, Sequence, dataclass, name_of, no_progress),
    )
} | {"Progress": Progress}


def test_a_job_is_one_module_as_the_page_says(ground: Ground) -> None:
    (source,) = [part.partition("```")[0] for part in EXAMPLE.read_text().split("```python\n")[1:]]
    example = dict(NAMES, __name__=__name__)
    exec(compile(source, str(EXAMPLE), "exec", dont_inherit=True), example)
    written: list[int] = []
    for count in range(3):
        with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
            for _ in range(count):
                writer.append(b"abcd")
        written.append(writer.metadata.length_bytes or 0)
    ground.context.store.delete_ledger(LedgerId(1), None)
    heard: list[tuple[str, int, int, int]] = []

    report = example["measure_ledgers"](
        ground.context, LocalRunner(ground.context), progress=lambda *how: heard.append(how)
    )

    assert [(row.ledger_id, row.action, row.bytes) for row in report.rows] == [
        (0, "measure", 0),
        (2, "measure", written[2]),
    ]
    assert report.is_complete
    assert heard[-1] == ("measuring ledgers", 2, 2, written[2])


class Groups(LocalRunner):
    """Notes how many items there are at a time."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.sizes: list[int] = []

    @override
    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        self.sizes.append(len(items))
        yield from super().run(step, items, progress)


def done(_: ClientContext, piece: Piece) -> Sequence[Done]:
    return [Done(piece.number, bytes=10)]


def test_a_plan_is_read_no_further_than_it_is_done(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "GROUP_ITEMS", 4)
    runner = Groups(ground.context)
    planned: list[int] = []
    heard: list[tuple[str, int, int, int]] = []

    def plan() -> Iterator[Piece | Known[Done]]:
        for number in range(10):
            planned.append(number)
            yield Known(Done(number, Outcome.GONE)) if number == 5 else Piece(number)

    job = Job("a_job", ground.context, runner, lambda *how: heard.append(how))
    ahead: list[int] = []
    results: list[Done] = []
    for result in job.run(step(done), plan(), 9):
        results.append(result)
        ahead.append(len(planned) - len(results))

    assert max(ahead) < 4
    assert runner.sizes == [4, 3, 2]
    assert sorted(result.number for result in results) == [*range(10)]
    assert heard[0] == ("working", 0, 9, 0)
    assert [how[1] for how in heard] == sorted(how[1] for how in heard)
    assert heard[-1] == ("working", 9, 9, 90)


def test_a_total_that_is_not_known_is_what_is_planned_so_far(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "GROUP_ITEMS", 4)
    totals: list[int] = []
    job = Job(
        "a_job",
        ground.context,
        LocalRunner(ground.context),
        lambda _, __, of, ___: totals.append(of),
    )

    for _ in job.run(step(done), (Piece(number) for number in range(6))):
        pass
    assert (totals[0], totals[-1]) == (4, 6)

    totals.clear()
    list(job.run(step(done), [Piece(number) for number in range(6)]))
    assert set(totals) == {6}


def test_a_limit_is_shared_out_among_those_that_are_under_way(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "GROUP_ITEMS", 6)
    limits: list[int] = []

    def limited(piece: Piece, bytes_per_second: int) -> Piece:
        limits.append(bytes_per_second)
        return piece

    def failed(piece: Piece, failure: Failure) -> Done:
        raise AssertionError(failure)

    pieces = [Piece(number) for number in range(8)]
    runner = LocalRunner(ground.context, width=4)
    heeding = Step("working", done, failed, limited)
    list(Job("a_job", ground.context, runner, bytes_per_second=1000).run(heeding, pieces))
    assert limits == [250] * 6 + [500] * 2

    limits.clear()
    list(Job("a_job", ground.context, runner).run(heeding, pieces))
    assert limits == []
