"""A scan of all ledgers, batch by batch: who does it, and what becomes of it when parts fail."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.autorecovery.auditor import Auditor
from spark_bookkeeper.autorecovery.checks import check_placement
from spark_bookkeeper.autorecovery.publishing import DisabledError, publish_lost_bookies
from spark_bookkeeper.errors import BookieUnavailableError, MetadataUnavailableError
from spark_bookkeeper.metadata.underreplication import Check, Task
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Failure, ItemT, Progress, ResultT, Step
from spark_bookkeeper.replication.stragglers import Straggler
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.support.autorecovery import CONFIG, written

ON_ALL = Quorum(4, 2, 2)
"""Every ledger names every bookie of the ground."""


class Elsewhere:
    """Carries out items as the tasks of a Spark job do: from pickled values, in another order, with
    a session of their own, and each as often as it pleases.
    """

    is_elsewhere = True
    width = 4

    def __init__(
        self, ground: Ground, *, times: int = 1, between: Callable[[int], object] = lambda done: 0
    ) -> None:
        self._context = ground.client(InlineRuntime())
        self._times = times
        self._between = between
        self.done: list[int] = []
        """How many items each job had."""

    def slowest(self) -> Sequence[Straggler]:
        return ()

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        assert step.is_computing
        self.done.append(len(items))
        found: dict[int, Any] = {}
        for number in reversed(range(len(items))):
            for _ in range(self._times):
                found[number] = pickle.dumps(
                    self._do(step, pickle.loads(pickle.dumps(items[number])))
                )
            self._between(len(found))
            progress(step.phase, len(found), len(items), 0)
        return iter([result for n in range(len(items)) for result in pickle.loads(found[n])])

    def _do(self, step: Step[ItemT, ResultT], item: ItemT) -> Sequence[ResultT]:
        try:
            return step.do(self._context, item)
        except BookieUnavailableError as error:
            return [step.failed(item, Failure(error.message))]


class Broken(Elsewhere):
    """Spark, when its job fails, or it is no more."""

    is_gone = False

    def _do(self, step: Step[ItemT, ResultT], item: ItemT) -> Sequence[ResultT]:
        if self.is_gone:
            raise ConnectionError("no executors")
        return [step.failed(item, Failure("the Spark job failed: no executors"))]


@pytest.fixture(autouse=True)
def lots_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger is a batch, and three are many."""
    monkeypatch.setattr(scan, "BATCH_LEDGERS", 1)
    monkeypatch.setattr(scan, "LEDGERS_FOR_SPARK", 3)


def ledgers(ground: Ground, count: int) -> list[LedgerId]:
    return [LedgerId(written(ground, ON_ALL).ledger_id) for _ in range(count)]


def tasks(ground: Ground) -> dict[LedgerId, Task]:
    tree = ground.context.store.underreplication
    found = {ledger_id: tree.read(ledger_id) for ledger_id in tree.ledger_ids()}
    return {ledger_id: task.value for ledger_id, task in found.items() if task is not None}


def refusing(ledger_id: LedgerId, times: int) -> Callable[[str, str, str], None]:
    """A hook: one ledger cannot be published for so many times."""
    left = [times]

    def refuse(place: str, operation: str, path: str) -> None:
        if operation == "mark" and path == str(ledger_id) and left[0]:
            left[0] -= 1
            raise BookieUnavailableError("no answer", bookie_id="x")

    return refuse


def test_many_ledgers_are_for_the_runner_and_few_are_not(ground: Ground) -> None:
    ids = ledgers(ground, 2)
    ground.stop(ground.bookie_ids[0])
    few, many = Elsewhere(ground), Elsewhere(ground)
    heard: list[tuple[int, int]] = []

    here = publish_lost_bookies(ground.context, runner=few, dry_run=True)
    ground.start(ground.bookie_ids[0])
    ids += ledgers(ground, 2)
    ground.stop(ground.bookie_ids[0])
    there = publish_lost_bookies(
        ground.context, runner=many, progress=lambda _, done, of, size: heard.append((done, of))
    )

    assert (few.done, many.done) == ([], [4])
    assert [row.ledger_id for row in here.rows] == ids[:2]
    assert {row.ledger_id for row in there.rows} == tasks(ground).keys() == set(ids)
    assert there.marked_ledgers == 4
    assert {of for _, of in heard} == {4}, "progress tells of ledgers"
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (4, 4)


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_what_it_finds_is_the_same_wherever_it_is_done(
    ground: Ground, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BATCHES_AT_ONCE", 2)
    ids = ledgers(ground, 5)
    ground.stop(ground.bookie_ids[0])
    runner = Elsewhere(ground) if is_elsewhere else None

    planned = publish_lost_bookies(ground.context, runner=runner, dry_run=True)
    assert tasks(ground) == {}
    report = publish_lost_bookies(ground.context, {ground.bookie_ids[0]}, runner=runner)

    for said, status in ((planned, Outcome.PLANNED), (report, Outcome.PUBLISHED)):
        assert [(r.ledger_id, r.source, r.status) for r in said.rows] == [
            (i, ground.bookie_ids[0], status) for i in ids
        ]
    assert {task.missing for task in tasks(ground).values()} == {(ground.bookie_ids[0],)}
    if runner is not None:
        assert runner.done == [2, 2, 1] * 2, "so many in one job, and no more"


def test_a_lot_that_is_done_again_publishes_nothing_twice(ground: Ground) -> None:
    ids = ledgers(ground, 4)
    ground.stop(ground.bookie_ids[0])
    publish_lost_bookies(ground.context, runner=Elsewhere(ground, times=2))
    first = tasks(ground)

    report = publish_lost_bookies(ground.context, runner=Elsewhere(ground, times=2))

    assert list(first) == ids
    assert tasks(ground) == first, "also the times are those of the first publication"
    assert report.marked_ledgers == 4


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_bookie_that_is_there_in_every_lot_is_told_once(
    ground: Ground, is_elsewhere: bool
) -> None:
    ids = ledgers(ground, 4)
    back, gone, *_ = ground.bookie_ids
    ground.stop(gone)
    runner = Elsewhere(ground) if is_elsewhere else None

    report = publish_lost_bookies(ground.context, {back, gone}, runner=runner)

    assert report.back == {back}
    assert [(r.ledger_id, r.source) for r in report.rows] == [(-1, back), *((i, gone) for i in ids)]
    assert report.marked_ledgers == report.looked_at == 4


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_lot_that_fails_is_told_and_the_others_are_published(
    ground: Ground, is_elsewhere: bool
) -> None:
    ids = ledgers(ground, 4)
    ground.stop(ground.bookie_ids[0])
    ground.before.append(refusing(ids[1], 1))

    report = publish_lost_bookies(
        ground.context, runner=Elsewhere(ground) if is_elsewhere else None
    )

    (left,) = report.unfinished
    assert (left.action, left.status) == ("mark", Outcome.LEFT)
    assert f"not all of ledgers {ids[1]} to {ids[1]} were looked at: no answer" in str(left.reason)
    assert report.failure == left.reason
    assert list(tasks(ground)) == [ids[0], *ids[2:]]
    assert not report.is_cut_short


def auditor(ground: Ground, runner: Any, **config: Any) -> Auditor:
    return Auditor(ground.client(InlineRuntime()), runner, replace(CONFIG, **config))


def test_an_auditor_whose_lot_fails_does_not_forget_the_lost_bookie(ground: Ground) -> None:
    """The tasks cannot publish it, and neither can it."""
    ids = ledgers(ground, 4)
    runner = Elsewhere(ground)
    one = auditor(ground, runner)
    one.step(lambda: None)
    ground.stop(ground.bookie_ids[0])
    ground.before.append(refusing(ids[2], 2))
    with pytest.raises(Exception, match=f"not all of ledgers {ids[2]} .*no answer"):
        one.step(lambda: None)
    assert list(tasks(ground)) == [*ids[:2], ids[3]]

    one.step(lambda: None)

    assert list(tasks(ground)) == ids


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_spark_does_not_do_an_auditor_does_itself(
    ground: Ground, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    ids = ledgers(ground, 4)
    broken = Broken(ground)
    broken.is_gone = is_gone
    one = auditor(ground, broken, placement_check_interval_s=100, ledger_check_interval_s=0)
    one.step(lambda: None)
    ground.stop(ground.bookie_ids[0])

    one.step(lambda: None)
    one.check(lambda: None)

    assert list(tasks(ground)) == ids
    assert ground.context.store.underreplication.checked_at_ms(Check.PLACEMENT) is not None
    assert broken.done
    assert "no executors" in caplog.text
    report = publish_lost_bookies(ground.context, runner=Broken(ground))
    assert "no executors" in str(report.failure), "who does one audit is told, and may try again"


def test_a_metadata_store_that_is_away_is_not_waited_for_lot_by_lot(ground: Ground) -> None:
    ids = ledgers(ground, 6)
    ground.stop(ground.bookie_ids[0])
    asked: list[str] = []

    def away(place: str, operation: str, path: str) -> None:
        if asked or (operation == "mark" and path == str(ids[1])):
            asked.append(operation)
            raise MetadataUnavailableError("ZooKeeper does not answer")

    with pytest.raises(MetadataUnavailableError):
        publish_lost_bookies(ground.client(InlineRuntime(), away))

    assert len(asked) == 2
    assert list(tasks(ground)) == ids[:1]


def test_the_switch_in_the_middle_leaves_the_rest_and_says_so(ground: Ground) -> None:
    """What comes first in the report need not have been looked at first."""
    ids = ledgers(ground, 5)
    ground.stop(ground.bookie_ids[0])
    tree = ground.context.store.underreplication
    runner = Elsewhere(ground, between=lambda done: done == 2 and tree.disable())

    report = publish_lost_bookies(ground.context, runner=runner)

    assert report.is_cut_short
    assert [(row.ledger_id, row.status) for row in report.rows] == [
        (-1, Outcome.LEFT),
        (ids[3], Outcome.PUBLISHED),
        (ids[4], Outcome.PUBLISHED),
    ]
    assert list(tasks(ground)) == ids[3:]
    with pytest.raises(DisabledError):
        publish_lost_bookies(ground.context, runner=runner)
    tree.enable()
    stopped = Elsewhere(ground, between=lambda done: done == 2 and tree.disable())
    with pytest.raises(DisabledError):
        check_placement(ground.context, stopped)


def test_a_bookie_that_is_back_in_the_middle_is_missing_no_more(ground: Ground) -> None:
    ids = ledgers(ground, 5)
    lost, other = ground.bookie_ids[:2]
    ground.stop(lost)

    def change(done: int) -> None:
        if done == 2:
            ground.start(lost)
            ground.stop(other)

    report = publish_lost_bookies(ground.context, runner=Elsewhere(ground, between=change))

    found = {row.ledger_id: row.source for row in report.rows}
    assert found == {**dict.fromkeys(ids[:3], other), **dict.fromkeys(ids[3:], lost)}


def test_a_task_first_asks_for_what_the_auditor_was_told_of(ground: Ground) -> None:
    """Its server may lag behind: it would take a lost bookie for one that is there."""
    ledgers(ground, 3)
    ground.stop(ground.bookie_ids[0])
    runner = Elsewhere(ground, between=lambda done: ground.forget())
    looked: list[str] = []
    ground.before.append(lambda place, operation, path: looked.append(operation))

    publish_lost_bookies(ground.context, runner=runner)

    starts = [number for number, each in enumerate(looked) if each == "read_register"]
    assert len(starts) == 3
    for start in starts:
        assert looked[start + 1 : start + 4] == ["ledger_ids", "is_enabled", "registrations"]


def test_copies_on_too_few_racks_are_found_elsewhere_too(ground: Ground) -> None:
    for _ in range(4):
        written(ground)
    ground.start(BookieId(ground.bookie_ids[0]), rack="/other")
    here, runner = check_placement(ground.context), Elsewhere(ground)

    there = check_placement(ground.context, runner)

    assert runner.done == [4]
    assert there.rows == here.rows
