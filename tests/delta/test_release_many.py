"""Many ledgers that are released together: what one of them costs or lacks is its own affair."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.delta import comparing, pieces, proof
from spark_bookkeeper.delta import release as release_module
from spark_bookkeeper.delta.release import release_ledgers
from spark_bookkeeper.errors import BookieUnavailableError, MetadataUnavailableError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication import progress_reporter as telling
from spark_bookkeeper.replication import stragglers as under_way
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import (
    Bounds,
    ItemT,
    LocalRunner,
    Progress,
    ResultT,
    Step,
    no_progress,
)
from spark_bookkeeper.table.rows import TableRows
from spark_bookkeeper.testing.ground import METADATA, TABLE, Ground, InlineRuntime, KillAt, Killed
from tests.support.lake import (
    archived_rows,
    bytes_ledger,
    entries_of,
    holders,
    metadata_of,
    release,
    rows_ledger,
)
from tests.worlds import Losing, first_of, there


def archive_together(context: ClientContext, lake: Path, ledger_ids: Sequence[LedgerId]) -> None:
    """One commit and one file, as the archive has it."""
    rows = [archived_rows(context, ledger_id) for ledger_id in ledger_ids]
    whole = pa.concat_tables(rows, promote_options="default")
    write_deltalake(str(lake), whole, mode="append", schema_mode="merge")


def archived(ground: Ground, lake: Path, count: int, entries: int) -> list[LedgerId]:
    """So many ledgers, in one commit of the table."""
    ids = [bytes_ledger(ground, entries=entries) for _ in range(count)]
    archive_together(ground.context, lake, ids)
    return ids


class Counting(LocalRunner):
    """Notes what it was asked to run: on Spark each is a job."""

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        self.jobs: list[tuple[str, int]] = []
        self.ledgers: list[tuple[bool, list[LedgerId]]] = []
        """Whether neighbours of each job are to be kept together, and who they are."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        self.jobs.append((step.phase, len(items)))
        ledger_ids = [item.ledger_id for item in items]
        self.ledgers.append((step.shares_with_neighbours, ledger_ids))
        return super().run(step, items, progress)


def released(
    ground: Ground, lake: Path, ids: Sequence[LedgerId], progress: Progress = no_progress
) -> tuple[list[Row], Counting]:
    context = ground.client()
    runner = Counting(context)
    rows = list(release_ledgers(context, runner, str(lake), ids, keep=1, progress=progress))
    return rows, runner


# Cost


def test_many_cost_as_many_jobs_as_one_and_read_each_file_as_often(tmp_path: Path) -> None:
    costs: dict[int, tuple[list[str], Counter[str]]] = {}
    for count in (1, 6):
        ground = Ground(tmp_path / f"cluster {count}", runtime=InlineRuntime())
        lake = tmp_path / f"lake {count}"
        ids = archived(ground, lake, count, entries=3)
        ground.forget()

        rows, runner = released(ground, lake, ids)

        assert [row.status for row in rows] == [Outcome.RELEASED] * count, rows
        of_files = Counter(
            step.operation
            for step in ground.steps
            if step.place == TABLE and not step.path.startswith("_spark_bookkeeper")
        )
        costs[count] = [phase for phase, _ in runner.jobs], of_files

    assert costs[6] == costs[1]
    assert len(costs[6][0]) == 4


def test_ledgers_that_lie_side_by_side_in_the_table_are_read_so(ground: Ground, lake: Path) -> None:
    """In whatever order they are asked for."""
    ids = archived(ground, lake, 6, entries=1)

    rows, runner = released(ground, lake, [ids[n] for n in (3, 0, 5, 1, 4, 2)])

    assert [row.ledger_id for row in rows] == [ids[n] for n in (3, 0, 5, 1, 4, 2)]
    assert runner.ledgers[:2] == [(True, ids), (True, ids)]


def test_a_ledger_costs_six_changes_of_its_metadata(ground: Ground, lake: Path) -> None:
    """One that releases it; two around each of two removals, and one that says they are done."""
    ids = archived(ground, lake, 3, entries=2)
    ground.forget()

    released(ground, lake, ids)

    assert ground.count()["write_ledger"] == 6 * len(ids)


def test_what_was_released_before_is_not_read_again(ground: Ground, lake: Path) -> None:
    """The run of every hour meets all that was ever released."""
    ids = archived(ground, lake, 5, entries=2)
    released(ground, lake, ids)
    ground.forget()

    rows, runner = released(ground, lake, ids)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 5
    assert runner.jobs == []
    assert {step.place for step in ground.steps} == {METADATA}


# Each for itself


def test_the_trouble_of_one_is_its_own(ground: Ground, lake: Path) -> None:
    good, changed, lacking, absent, damaged, also_good, gone = ids = [
        bytes_ledger(ground, entries=4) for _ in range(7)
    ]
    before = {i: entries_of(ground.context, i) for i in ids}
    archive_together(ground.context, lake, [i for i in ids if i != absent])
    table = DeltaTable(str(lake))
    table.update(predicate=f"_ledger_id = {changed}", updates={"payload": "X'666f72676564'"})
    table.delete(f"_ledger_id = {lacking} AND _entry_id = 2")
    kept = metadata_of(ground, damaged).fragments[0].ensemble[0]
    key = str(ground.context.ledger(damaged)[0].key)
    shutil.rmtree(ground.root(kept) / "ledgers" / key)
    lifecycle.create_ledger(ground.context, metadata_of(ground, good).quorum)  # stays open
    ground.context.store.delete_ledger(gone, ground.context.store.read_ledger(gone))

    rows, runner = released(ground, lake, [*ids, good])

    assert [row.ledger_id for row in rows] == ids, "in the order asked, each once"
    statuses = dict(zip(ids, [row.status for row in rows], strict=True))
    reasons = dict(zip(ids, [str(row.reason) for row in rows], strict=True))
    assert statuses == {
        good: Outcome.RELEASED,
        changed: Outcome.LEFT,
        lacking: Outcome.LEFT,
        absent: Outcome.LEFT,
        damaged: Outcome.LEFT,
        also_good: Outcome.RELEASED,
        gone: Outcome.GONE,
    }
    assert "is not the same in the table" in reasons[changed]
    assert "entry 2" in reasons[lacking]
    assert "has 0 rows" in reasons[absent]
    assert str(kept) in reasons[damaged]
    assert len(runner.jobs) == 4
    for ledger_id in (changed, lacking, absent):
        assert len(holders(ground, ledger_id)) == 3
        assert archived_of(metadata_of(ground, ledger_id)) is None
    for ledger_id in (good, also_good):
        assert len(holders(ground, ledger_id)) == 1
    for ledger_id in (good, changed, lacking, absent, damaged, also_good):
        assert entries_of(ground.client(), ledger_id) == before[ledger_id]


def test_ledgers_of_several_schemas_in_one_table(ground: Ground, lake: Path) -> None:
    schemas = [
        pa.table({"id": pa.array([1, None, 3]), "text": ["a", None, ""]}),
        pa.table({"id": pa.array([4, 5]), "more": pa.array([None, 2.5])}),
        pa.table({"id": pa.array([7]), "text": pa.array([None], pa.string())}),
    ]
    ids = [rows_ledger(ground, schemas[number % 3]) for number in range(6)]
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]
    archive_together(ground.context, lake, ids[:4])
    archive_together(ground.context, lake, ids[4:])

    rows, _ = released(ground, lake, ids)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 6, rows
    assert [entries_of(ground.client(), ledger_id) for ledger_id in ids] == before


def test_large_ledgers_go_in_pieces_beside_small_ones(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "ENTRIES", 8)
    monkeypatch.setattr(pieces, "WINDOW_BYTES", 100)
    monkeypatch.setattr("spark_bookkeeper.table.listing.ENTRIES", 8)
    ids = [bytes_ledger(ground, entries=count) for count in (3, 20, 2, 9)]
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]
    archive_together(ground.context, lake, ids)

    rows, runner = released(ground, lake, ids)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 4, rows
    assert dict(runner.jobs)["comparing with the table"] == 1 + 3 + 1 + 2
    assert [entries_of(ground.client(), ledger_id) for ledger_id in ids] == before


@pytest.mark.parametrize("limit", ["BATCH_LEDGERS", "BATCH_ENTRIES", "BATCH_BYTES"])
def test_there_are_so_many_in_a_batch_and_no_more(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    ids = [bytes_ledger(ground, entries=2) for _ in range(5)]
    size = metadata_of(ground, ids[0]).length_bytes or 0
    most = {"BATCH_LEDGERS": 2, "BATCH_ENTRIES": 5, "BATCH_BYTES": 2 * size}
    where = release_module if limit == "BATCH_LEDGERS" else proof
    monkeypatch.setattr(where, limit, most[limit])
    archive_together(ground.context, lake, ids)

    rows, runner = released(ground, lake, ids[::-1])

    assert [row.ledger_id for row in rows] == ids[::-1]
    assert {row.status for row in rows} == {Outcome.RELEASED}
    assert [count for phase, count in runner.jobs if phase == "dropping copies"] == [2, 2, 1]


def test_one_that_cannot_be_compared_with_others_is_compared_by_itself(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = archived(ground, lake, 3, entries=2)

    def fail(*_: object, **__: object) -> None:
        raise BookieUnavailableError("not all at once", bookie_id="archive-x:1")

    monkeypatch.setattr(TableRows, "read_many", fail)

    rows, _ = released(ground, lake, ids)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 3, rows


def test_files_that_go_while_they_are_compared_prove_nothing(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ones have the rows, but the list would name those that were looked up."""
    ids = archived(ground, lake, 3, entries=2)
    archive_together(ground.context, lake, [bytes_ledger(ground, entries=2)])
    whole = comparing.compare_many

    def rewritten(
        context: ClientContext, works: Sequence[comparing.CompareWork], bounds: Bounds
    ) -> object:
        table = DeltaTable(str(lake))
        table.optimize.compact()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        return whole(context, works, bounds)

    step = comparing.COMPARING
    together = Step(step.phase, step.do, step.failed, do_many=rewritten)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr("spark_bookkeeper.delta.proof.COMPARING", together)
        rows, _ = released(ground, lake, ids)
    again, _ = released(ground, lake, ids)

    assert all("is not there. Nothing was released" in str(row.reason) for row in rows), rows
    assert [row.status for row in again] == [Outcome.RELEASED] * 3, again


# Conflicts


def released_while(
    ground: Ground, lake: Path, ids: Sequence[LedgerId], act: Callable[[], object], keep: int = 1
) -> list[Row]:
    """A release; something is done once, right before its first ledger is released."""
    acted: list[bool] = []

    def hook(place: str, operation: str, path: str) -> None:
        if place == METADATA and operation == "write_ledger" and not acted:
            acted.append(True)
            act()

    return release(ground.client(None, hook), lake, ids, keep=keep)


def test_a_change_of_something_else_is_no_hindrance(ground: Ground, lake: Path) -> None:
    ids = archived(ground, lake, 3, entries=2)
    other = ground.client()

    def label() -> None:
        update_ledger(other.store, ids[1], lambda old: old.with_custom(label=b"new"))

    rows = released_while(ground, lake, ids, label)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 3, rows
    assert metadata_of(ground, ids[1]).custom_metadata["label"] == b"new"


def test_a_recovery_in_between_keeps_one_ledger_from_being_released(
    ground: Ground, lake: Path
) -> None:
    """What was proven was proven of other copies."""
    ids = archived(ground, lake, 3, entries=2)
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]
    other = ground.client()

    def recover() -> None:
        first = metadata_of(ground, ids[1]).fragments[0].ensemble[0]
        wish = BookieRecovery((first,), ledger_ids=(ids[1],), even_if_alive=True)
        assert recover_bookie(other, LocalRunner(other), wish).is_complete

    rows = released_while(ground, lake, ids, recover)

    assert [row.status for row in rows] == [Outcome.RELEASED, Outcome.LEFT, Outcome.RELEASED]
    assert "changed meanwhile" in str(rows[1].reason)
    assert len(metadata_of(ground, ids[1]).bookies()) == 3
    assert [e[0] for e in entries_of(ground.client(), ids[1])] == [e[0] for e in before[1]]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_change_whose_answer_is_lost_is_looked_for(
    ground: Ground, lake: Path, is_changed: bool
) -> None:
    """Also where something else was changed: what is read is not what was written, but holds it."""
    ids = archived(ground, lake, 3, entries=2)
    other = ground.client()
    lost: list[str] = []

    def lose(place: str, operation: str, path: str) -> None:
        if operation == "write_ledger" and path not in lost:
            lost.append(path)
            if is_changed and path == str(ids[0]):
                update_ledger(other.store, ids[0], lambda old: old.with_custom(label=b"new"))
            raise MetadataUnavailableError("the connection was lost")

    ground.after.append(lose)
    rows = release(ground.client(), lake, ids, keep=1)

    assert len(lost) == 3
    assert metadata_of(ground, ids[0]).custom_metadata.get("label") == (
        b"new" if is_changed else None
    )
    assert [row.status for row in rows] == [Outcome.RELEASED] * 3, rows
    assert [len(holders(ground, ledger_id)) for ledger_id in ids] == [1] * 3


def test_of_two_releases_at_once_both_say_what_stands(ground: Ground, lake: Path) -> None:
    """Two runs of every hour that overlap."""
    ids = archived(ground, lake, 3, entries=2)
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]
    faster: list[Row] = []
    other = ground.client()

    def release_too() -> None:
        faster.extend(release(other, lake, ids, keep=1))

    rows = released_while(ground, lake, ids, release_too)

    assert [row.status for row in faster] == [Outcome.RELEASED] * 3, faster
    assert [row.status for row in rows] == [Outcome.RELEASED] * 3, rows
    assert [len(holders(ground, ledger_id)) for ledger_id in ids] == [1] * 3
    assert [entries_of(ground.client(), ledger_id) for ledger_id in ids] == before


def test_a_release_that_gives_up_less_does_not_stand_for_one_that_gives_up_more(
    ground: Ground, lake: Path
) -> None:
    (ledger_id,) = archived(ground, lake, 1, entries=2)
    other = ground.client()

    def release_less() -> None:
        release(other, lake, [ledger_id], keep=2)

    (row,) = released_while(ground, lake, [ledger_id], release_less, keep=0)

    assert row.status is Outcome.LEFT
    assert "changed meanwhile" in str(row.reason)
    assert len(holders(ground, ledger_id)) == 2


def test_a_ledger_that_is_deleted_before_its_change_is_gone(ground: Ground, lake: Path) -> None:
    ids = archived(ground, lake, 3, entries=2)
    other = ground.client()

    def delete() -> None:
        other.store.delete_ledger(ids[1], other.store.read_ledger(ids[1]))

    rows = released_while(ground, lake, ids, delete)

    assert [row.status for row in rows] == [Outcome.RELEASED, Outcome.GONE, Outcome.RELEASED]


@pytest.mark.parametrize(
    "phase", ["comparing with the table", "reading it back from the table", "verifying what stays"]
)
def test_nothing_is_released_without_an_answer_for_every_piece(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(pieces, "ENTRIES", 8)
    monkeypatch.setattr("spark_bookkeeper.table.listing.ENTRIES", 8)
    (ledger_id,) = archived(ground, lake, 1, entries=20)
    context = ground.client()

    with pytest.raises(AssertionError, match="release-after-proof"):
        list(release_ledgers(context, Losing(context, phase), str(lake), [ledger_id], keep=1))

    assert archived_of(metadata_of(ground, ledger_id)) is None
    assert len(holders(ground, ledger_id)) == 3


# Progress


def test_progress_counts_ledgers_through_all_steps_and_batches(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_module, "BATCH_LEDGERS", 4)
    ids = archived(ground, lake, 6, entries=2)
    told: list[tuple[str, int, int, int]] = []

    released(ground, lake, ids, lambda *each: told.append(each))

    assert {phase.partition(",")[0] for phase, _, _, _ in told} == {"releasing ledgers"}, (
        "one name, so that rate and time left are those of all of it"
    )
    steps = list(dict.fromkeys(phase.partition(", ")[2] for phase, _, _, _ in told))
    assert steps == [
        "comparing with the table",
        "reading it back from the table",
        "verifying what stays",
        "dropping copies",
    ]
    assert all(a[1] <= b[1] and a[3] <= b[3] for a, b in pairwise(told)), "it never goes back"
    assert {of for _, _, of, _ in told} == {6}
    assert told[-1][1] == 6
    assert told[-1][3] > 0


@pytest.mark.parametrize("step", ["COMPARING", "READING_BACK", "_VERIFYING", "DROPPING"])
def test_progress_names_what_takes_long_in_every_step(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """One ledger does not go on before it was named."""
    monkeypatch.setattr(under_way, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(telling, "TELL_SECONDS", 0.01)
    ground = Ground(tmp_path / "cluster")
    _, slow = ids = archived(ground, lake, 2, entries=2)
    where = proof if step in ("COMPARING", "READING_BACK") else release_module
    usual: Step[Any, Any] = getattr(where, step)
    is_named = threading.Event()

    def do(context: ClientContext, item: Any) -> Sequence[Any]:
        assert item.ledger_id != slow or is_named.wait(60)
        return usual.do(context, item)

    def hear(phase: str, done: int, total: int, size_bytes: int) -> None:
        if re.match(rf"releasing ledgers, {usual.phase}, slowest .*ledger {slow}\b.* for", phase):
            is_named.set()

    monkeypatch.setattr(where, step, replace(usual, do=do, do_many=None))
    rows, _ = released(ground, lake, ids, hear)

    assert [row.status for row in rows] == [Outcome.RELEASED] * 2, rows


# Killed

CHANGES = ("put", "put_if_absent", "write_ledger", "delete_directory", "delete", "make_directory")


def begun(directory: Path, ledgers: int) -> tuple[Ground, Path, list[LedgerId]]:
    ground = Ground(directory / "cluster", runtime=InlineRuntime())
    lake = directory / "lake"
    return ground, lake, archived(ground, lake, ledgers, entries=1)


def steps_of(directory: Path, ledgers: int) -> list[str]:
    """What a release asks for, operation by operation."""
    ground, lake, ids = begun(directory, ledgers)
    ground.forget()
    released(ground, lake, ids)
    return [step.operation for step in ground.steps]


def killed_at(directory: Path, ledgers: int, number: int) -> None:
    """Killed before one operation, read, repeated, and read again."""
    ground, lake, ids = begun(directory, ledgers)
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]

    with pytest.raises(Killed):
        release(ground.client(None, KillAt(number)), lake, ids, keep=1)

    reader = ground.client()
    assert [entries_of(reader, ledger_id) for ledger_id in ids] == before
    rows = release(ground.client(), lake, ids, keep=1)
    assert [row.status for row in rows] == [Outcome.RELEASED] * ledgers, rows
    reader = ground.client()
    assert [entries_of(reader, ledger_id) for ledger_id in ids] == before
    for ledger_id in ids:
        assert len(holders(ground, ledger_id)) == 1
        assert not there(archived_of(metadata_of(ground, ledger_id))).dropping


@pytest.mark.parametrize("step", first_of(9, 1))
def test_killed_before_any_change_and_repeated_all_come_to_the_same(
    tmp_path: Path, step: int
) -> None:
    """Between two changes all steps leave the same behind."""
    steps = steps_of(tmp_path / "whole", 2)
    changes = [number for number, step in enumerate(steps) if step in CHANGES]
    assert steps.count("write_ledger") == 12, steps
    assert len(changes) >= 18, steps  # two lists with their directories, four drops
    behind_all = [changes[-1] + 1] * (changes[-1] + 1 < len(steps))
    for number in (*changes, *behind_all)[::step]:
        killed_at(tmp_path / str(number), 2, number)


@pytest.mark.full
def test_killed_at_any_step_and_repeated_all_come_to_the_same(tmp_path: Path) -> None:
    for number in range(len(steps_of(tmp_path / "whole", 2))):
        killed_at(tmp_path / str(number), 2, number)


def test_an_ended_process_leaves_what_others_go_on_with(ground: Ground, lake: Path) -> None:
    """Some were released and others only proven: whoever comes next brings all to an end."""
    ids = archived(ground, lake, 4, entries=2)
    before = [entries_of(ground.context, ledger_id) for ledger_id in ids]
    writes: list[str] = []

    def second_change(place: str, operation: str, path: str) -> None:
        if operation == "write_ledger":
            writes.append(path)
        if len(writes) > 2:
            raise Killed

    with pytest.raises(Killed):
        release(ground.client(None, second_change), lake, ids, keep=0)
    half = [archived_of(metadata_of(ground, ledger_id)) is not None for ledger_id in ids]
    rows, _ = released(ground, lake, ids)

    assert half == [True, True, False, False]
    assert [row.status for row in rows] == [Outcome.RELEASED] * 4
    assert [len(holders(ground, ledger_id)) for ledger_id in ids] == [0, 0, 1, 1]
    assert [entries_of(ground.client(), ledger_id) for ledger_id in ids] == before
