"""Shares go from bookies that have too much to new ones, and every entry stays readable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.rebalance import Rebalance, RebalanceReport, rebalance
from spark_bookkeeper.replication.recovery_plan import PLAN_SCHEMA
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import (
    METADATA,
    Ground,
    Hook,
    InlineRuntime,
    Killed,
    StandingStill,
)
from tests import worlds
from tests.snapshots import Snapshot
from tests.whole import is_whole

SMALL = Quorum(2, 2, 2)


def written(
    ground: Ground, ledgers: int, quorum: Quorum = SMALL, size: int = 100
) -> list[LedgerWriter]:
    return [
        worlds.written(ground, 2, quorum, payload=lambda number: b"%d" % number * size)
        for _ in range(ledgers)
    ]


def balanced(
    ground: Ground, *hooks: Hook, dry_run: bool = False, **wish: object
) -> RebalanceReport:
    client = ground.client(InlineRuntime(), *hooks)
    whole = Rebalance(**wish)  # type: ignore[arg-type]  # any field
    return rebalance(client, LocalRunner(client), whole, dry_run=dry_run)


def shares(ground: Ground) -> Counter[BookieId]:
    store = ground.client().store
    found: Counter[BookieId] = Counter()
    for _, known in store.read_ledgers(store.ledger_ids()):
        assert isinstance(known, Versioned)
        for fragment in known.value.fragments:
            found.update(fragment.ensemble)
    return found


def test_new_bookies_get_their_part_and_a_second_run_moves_nothing(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 12)
    ground.add_bookie()
    ground.add_bookie()

    report = balanced(ground)

    assert report.is_complete, report.unfinished
    assert set(shares(ground).values()) == {6}
    assert {load.after_bytes for load in report.loads} == {load.goal_bytes for load in report.loads}
    assert sum(row.bytes for row in report.rows) == 12 * 200
    assert is_whole(ground)
    ground.forget()
    assert balanced(ground).rows == ()
    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0


def test_the_limit_of_bytes_holds(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 12)
    ground.add_bookie()

    report = balanced(ground, max_bytes=700)

    assert [row.bytes for row in report.rows] == [200, 200, 200]
    assert shares(ground)[ground.bookie_ids[2]] == 3


def test_the_limit_of_bytes_per_second_holds(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 6)
    ground.add_bookie()
    runtime = StandingStill()
    client = ground.client(runtime)

    report = rebalance(client, LocalRunner(client), Rebalance(bytes_per_second=100))

    moved = sum(row.bytes for row in report.rows)
    assert moved > 0
    assert runtime.slept >= moved / 100 * 0.9


def test_a_rebalance_that_moves_no_more_says_why(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 6)
    full = balanced(ground, dry_run=True)
    assert (full.rows, full.remark) == ((), None), "there is nobody to go to, and nobody too full"
    new = ground.add_bookie()

    ground.start(new, is_readonly=True)
    refused = balanced(ground, dry_run=True)
    assert (refused.rows, f"get nothing: {new}" in str(refused.remark)) == ((), True)
    assert refused.to_dict()["remark"] == refused.remark
    ground.start(new)
    limited = balanced(ground, dry_run=True, max_bytes=1)
    assert limited.rows == ()
    assert "--max-bytes 1 allows no more (a share has 200 or more)" in str(limited.remark)
    assert "--max-bytes 400 allows no more" in str(balanced(ground, max_bytes=400).remark)
    assert balanced(ground).remark is None


def test_a_dry_run_is_a_table_of_what_the_run_then_moves(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    written(ground, 9, Quorum(3, 2, 2))
    ground.add_bookie()
    ground.forget()

    plan = balanced(ground, dry_run=True)

    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0
    table = plan.to_arrow()
    assert table.schema == PLAN_SCHEMA
    assert {(r["live_copies"], r["live_copies_after"]) for r in table.to_pylist()} == {(2, 2)}
    done = balanced(ground)

    def moves(report: RebalanceReport) -> Sequence[tuple[object, ...]]:
        return [(r.ledger_id, r.first_entry_id, r.source, r.target, r.entries) for r in report.rows]

    assert moves(plan) == moves(done) != []
    assert {load.before_bytes for load in plan.loads} == {load.before_bytes for load in done.loads}
    assert plan.to_dict()["bookies"] == done.to_dict()["bookies"]


def test_only_closed_ledgers_are_moved_and_open_ones_stay(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    writer = lifecycle.create_ledger(ground.context, SMALL)
    writer.append(b"x" * 10_000)
    (closed,) = written(ground, 1)
    ground.add_bookie()

    report = balanced(ground, tolerance_percent=0)

    assert {row.ledger_id for row in report.rows} <= {closed.ledger_id}
    writer.append(b"y")
    writer.close()
    assert is_whole(ground)


def test_a_write_set_keeps_its_racks(tmp_path: Path) -> None:
    """The only bookies with room stand where the other copy is: nothing is moved there."""
    ground = Ground(tmp_path, bookies=2)
    written(ground, 6)
    first, second = ground.bookie_ids
    new = ground.add_bookie()
    put_on_racks(ground, {first: "/r1", second: "/r2", new: "/r2"})

    report = balanced(ground, tolerance_percent=0)

    assert {row.source for row in report.rows} == {second}
    assert shares(ground)[first] == 6
    assert is_whole(ground)


def put_on_racks(ground: Ground, racks: dict[BookieId, str]) -> None:
    for registration in ground.client().store.registrations():
        ground._agent.register(replace(registration, rack=racks[registration.bookie_id]))


def test_only_wanted_targets_get_more_and_none_that_is_read_only(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 6)
    wanted, full, other = ground.add_bookie(), ground.add_bookie(), ground.add_bookie()
    ground.start(full, is_readonly=True)

    with pytest.raises(InvalidArgumentError, match="read-only"):
        balanced(ground, targets=(full,))
    with pytest.raises(InvalidArgumentError, match="is not registered"):
        balanced(ground, targets=(BookieId("127.0.0.1:9999"),))
    report = balanced(ground, targets=(wanted,))

    assert {row.target for row in report.rows} == {wanted}
    assert shares(ground)[full] == shares(ground)[other] == 0
    assert full not in {row.target for row in balanced(ground).rows}


@pytest.mark.parametrize("inodes", [None, 500])
def test_a_disk_that_is_nearly_full_gets_what_it_has_room_for(
    tmp_path: Path, inodes: int | None
) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 12)
    new = ground.add_bookie()
    for registration in ground.client().store.registrations():
        free = 500 if registration.bookie_id == new and inodes is None else 1 << 40
        if registration.bookie_id == new and inodes is not None:
            registration = replace(registration, free_inodes=inodes, total_inodes=1 << 40)
        ground._agent.register(replace(registration, free_bytes=free, total_bytes=1 << 40))

    report = balanced(ground, spare_bytes=50)

    assert [row.bytes for row in report.rows] == [200, 200]
    assert "no bookie can take one" in str(report.remark)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.full)])
def test_killed_at_any_step_every_entry_is_readable_and_the_next_run_ends_it(
    tmp_path: Path, step: int
) -> None:
    begun = Ground(tmp_path / "begun", bookies=2)
    written(begun, 3)
    begun.add_bookie()
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        with suppress(Killed):
            balanced(ground, kill, max_bytes=200)
        for ledger_id in ground.client().store.ledger_ids():
            reader = lifecycle.open_ledger(ground.client(), ledger_id)
            assert len(list(reader.entries())) == 2, f"killed at {at}"
        assert balanced(ground).is_complete, f"killed at {at}"
        assert is_whole(ground), f"killed at {at}"
        assert set(shares(ground).values()) == {2}, f"killed at {at}"
    assert at > 10


def test_the_metadata_change_after_the_copies_are_synced(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    written(ground, 3)
    new = ground.add_bookie()
    ground.forget()

    balanced(ground, max_bytes=200)

    steps = [(s.place, s.operation) for s in ground.steps]
    write = steps.index((METADATA, "write_ledger"))
    copies = [n for n, step in enumerate(steps) if step == (new, "put_if_absent")]
    assert copies
    assert max(copies) < write


def test_old_copies_are_left_where_they_are(tmp_path: Path) -> None:
    """They are collected by who collects garbage; a reader with old metadata finds them."""
    ground = Ground(tmp_path, bookies=2)
    writer, *_ = written(ground, 3)
    readers = [lifecycle.open_ledger(ground.client(), writer.ledger_id) for _ in range(2)]
    before = {bookie: ground.files(bookie, "slots") for bookie in ground.bookie_ids}
    ground.add_bookie()

    balanced(ground, tolerance_percent=0)

    assert {b: ground.files(b, "slots") for b in before} == before
    assert shares(ground)[ground.bookie_ids[2]] == 2
    for reader in readers:
        assert len(list(reader.entries())) == 2


def test_large_shares_are_moved_in_pieces(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    for _ in range(3):
        with lifecycle.create_ledger(ground.context, SMALL) as writer:
            for i in range(40):
                writer.append(b"%d" % i * 500)
    ground.add_bookie()
    phases: set[str] = set()
    client = ground.client(InlineRuntime())

    report = rebalance(
        client,
        LocalRunner(client),
        Rebalance(tolerance_percent=0, piece_bytes=4_000),
        progress=lambda phase, done, total, size: phases.add(phase.partition(",")[0]),
    )

    assert report.is_complete, report.unfinished
    assert "replacing bookies" in phases
    assert is_whole(ground)
