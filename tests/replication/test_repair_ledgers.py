"""Repair makes missing and damaged copies again where they belong, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import click
import pytest

from spark_bookkeeper.cli.ledger.work import check, repair
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.repair_ledgers import Repaired, RepairWork, repair_ledgers
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.ground import Ground
from tests.hooks import silent
from tests.spoiling import spoil
from tests.support.rows import wait_for_every_copy
from tests.whole import is_whole
from tests.worlds import bulk_written, written


def repaired(ground: Ground, dry_run: bool = False) -> RecoveryReport:
    client = ground.client()
    return repair_ledgers(client, LocalRunner(client), None, dry_run=dry_run)


def drop_slots(ground: Ground, bookie: str, count: int) -> None:
    for path in ground.files(bookie, "slots")[-count:]:
        path.unlink()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_copies_that_never_arrived_and_a_damaged_file_are_made_again(
    ground: Ground, sizes: tuple[int, int, int]
) -> None:
    writer = written(ground, quorum=Quorum(*sizes))
    before = writer.metadata.fragments
    short, damaged = writer.metadata.last_fragment.ensemble[:2]
    drop_slots(ground, short, 2)
    spoil(ground.files(damaged, "slots")[1])

    report = repaired(ground)

    assert {(row.source, row.target, row.status) for row in report.rows} == {
        (short, short, "replicated"),
        (damaged, damaged, "replicated"),
    }
    assert is_whole(ground)
    assert ground.context.store.read_ledger(writer.ledger_id).value.fragments == before


def test_a_repair_of_a_sample_puts_right_what_a_check_of_it_finds(ground: Ground) -> None:
    """The first and the last of every share belong to every sample; a look at all finds more."""
    writer = written(ground)
    inside, last = writer.metadata.last_fragment.ensemble[:2]
    spoil(ground.files(inside, "slots")[4])
    drop_slots(ground, last, 1)
    client = ground.client()

    sample = repair_ledgers(client, LocalRunner(client), None, percentage=0)

    assert [(row.source, row.entries, row.status) for row in sample.rows] == [
        (last, 1, "replicated")
    ]
    assert [row.source for row in repaired(ground).rows] == [inside]
    assert is_whole(ground)


@pytest.mark.parametrize(
    ("call", "command", "percentage"),
    [(BookKeeper.repair_ledgers, repair, 100), (BookKeeper.check_ledgers, check, 0)],
)
def test_whoever_names_no_percentage_has_every_entry_repaired_and_the_ends_checked(
    call: Callable[..., object], command: click.Command, percentage: int
) -> None:
    assert inspect.signature(call).parameters["percentage"].default == percentage
    (option,) = [each for each in command.params if each.name == "percentage"]
    assert option.default == percentage


def test_a_limit_on_bytes_is_one_for_all_that_is_repaired_at_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        written(ground)
    client = ground.client()
    runner = LocalRunner(client, width=2)
    seen: list[RepairWork] = []

    def run(step: object, items: Sequence[RepairWork], *_: object) -> Sequence[Repaired]:
        seen.extend(items)
        return ()

    monkeypatch.setattr(runner, "run", run)

    repair_ledgers(client, runner, None, bytes_per_second=1_000)

    assert [work.bytes_per_second for work in seen] == [500, 500, 500]


def test_a_file_that_cannot_be_read_is_made_again_beside_it(ground: Ground) -> None:
    writer, _ = bulk_written(ground)
    bad = writer.metadata.last_fragment.ensemble[1]
    (part,) = ground.files(bad, "parts")
    ground.before.append(silent(bad, "read_range", within=part.name))

    assert repaired(ground).counts == {"replicated": 1}
    assert is_whole(ground)


def test_a_whole_ledger_has_nothing_to_repair_and_so_has_a_repaired_one(ground: Ground) -> None:
    writer = written(ground)
    whole = repaired(ground)
    assert whole.rows == ()
    assert repr(whole) == "RepairReport(repair_ledgers: nothing was found wrong in 1 ledger)"
    drop_slots(ground, writer.metadata.last_fragment.ensemble[0], 3)

    first, second = repaired(ground), repaired(ground)

    assert (first.counts, second.rows) == ({"replicated": 1}, ())
    entries = [row.entries for row in first.rows]
    assert entries == [3], "what was copied is counted, and not what was there"


def test_a_dry_run_says_what_a_run_would_do_and_copies_nothing(ground: Ground) -> None:
    writer = written(ground)
    short = writer.metadata.last_fragment.ensemble[0]
    drop_slots(ground, short, 2)

    plan = repaired(ground, dry_run=True)

    assert [(row.source, row.status, row.entries) for row in plan.rows] == [(short, "planned", 2)]
    assert ground.files(short, "copies") == []
    assert not is_whole(ground)


def test_what_is_on_a_lost_bookie_is_left_with_the_reason(ground: Ground) -> None:
    writer = written(ground)
    down, wiped, _ = writer.metadata.last_fragment.ensemble
    ground.stop(down)
    ground.format(wiped)

    report = repaired(ground)

    assert {(row.source, row.status) for row in report.rows} == {(down, "left"), (wiped, "left")}
    assert all(row.reason for row in report.rows)
    assert {(row.entries, row.bytes) for row in report.rows} == {(0, 0)}, "nothing was copied"
    assert not report.is_complete


def test_an_entry_without_any_good_copy_is_unrecoverable_and_named(ground: Ground) -> None:
    writer = written(ground)
    for bookie in writer.metadata.last_fragment.ensemble:
        spoil(ground.files(bookie, "slots")[3])

    report = repaired(ground)

    assert report.counts == {"unrecoverable": 3}
    assert {(row.entries, row.bytes) for row in report.rows} == {(0, 0)}
    assert "entry 3" in str(report.rows[0].reason)


def test_the_last_fragment_of_an_open_ledger_belongs_to_its_writer(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    for i in range(10):
        writer.append(b"%d" % i * 50)
    wait_for_every_copy(writer)
    spoil(ground.files(writer.metadata.last_fragment.ensemble[0], "slots")[2])

    report = repaired(ground)

    assert [(row.status, row.entries, row.bytes) for row in report.rows] == [("left", 0, 0)]
    assert "recover it first" in str(report.rows[0].reason)
    assert ground.files(writer.metadata.last_fragment.ensemble[0], "copies") == []
    writer.close()


def test_a_ledger_that_is_not_there_is_gone(ground: Ground) -> None:
    client = ground.client()

    report = repair_ledgers(client, LocalRunner(client), [LedgerId(77)])

    assert [row.status for row in report.rows] == ["gone"]
    assert report.is_complete
