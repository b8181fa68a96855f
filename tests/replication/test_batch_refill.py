"""Many small ledgers of a bookie on a new disk leave limbo together, each by itself."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import incarnations_of
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import refill_bookie as refilling
from spark_bookkeeper.replication.batch_refill import refill_many
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.refill_ledger import RefillWork, refill_ledger
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import Bounds, LocalRunner
from spark_bookkeeper.testing.ground import Ground, Hook, InlineRuntime, Killed
from tests.alone import Alone
from tests.hooks import At
from tests.snapshots import Snapshot
from tests.support.autorecovery import written, written_on
from tests.whole import is_whole


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """Notes which ledgers were filled by themselves."""
    return Alone(monkeypatch, refilling, "refill_ledger", lambda _, work: work.ledger_id)


def wiped(ground: Ground, ledgers: int, quorum: Quorum) -> tuple[BookieId, list[LedgerWriter]]:
    """A bookie that was formatted again, and the ledgers that name it."""
    bookie = ground.bookie_ids[0]
    named = [w for w in written_on(ground, bookie, ledgers, quorum) if bookie in members(ground, w)]
    ground.format(bookie)
    return bookie, named


def members(ground: Ground, writer: LedgerWriter) -> frozenset[BookieId]:
    return frozenset(ground.client().store.read_ledger(writer.ledger_id).value.bookies())


def refilled(ground: Ground, bookie: BookieId, *hooks: Hook) -> RecoveryReport:
    client = ground.client(InlineRuntime(), *hooks)
    return refill_bookie(client, LocalRunner(client), Refill(bookie))


def needs_refill(ground: Ground, bookie: BookieId, writers: list[LedgerWriter]) -> set[int]:
    client = ground.client()
    now = client.bookies.registrations()[bookie].incarnation
    known = {w.ledger_id: client.store.read_ledger(w.ledger_id).value for w in writers}
    return {ledger_id for ledger_id, m in known.items() if incarnations_of(m).get(bookie) != now}


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
def test_small_ledgers_leave_limbo_together(
    ground: Ground, alone: Alone, sizes: tuple[int, int, int]
) -> None:
    bookie, writers = wiped(ground, 5, Quorum(*sizes))

    report = refilled(ground, bookie)

    assert alone.ledger_ids == []
    assert sorted((r.ledger_id, r.status, r.source, r.target) for r in report.rows) == sorted(
        (w.ledger_id, "replicated", bookie, bookie) for w in writers
    )
    assert needs_refill(ground, bookie, writers) == set()
    assert is_whole(ground, writers, of=bookie)


def test_a_ledger_with_several_fragments_there_leaves_limbo_with_all_of_them(
    tmp_path: Path, alone: Alone
) -> None:
    ground = Ground(tmp_path, bookies=4)
    changed = written(ground, Quorum(3, 3, 2), close=False)
    bookie, _, victim = changed.metadata.last_fragment.ensemble
    ground.stop(victim)
    ground.until(
        lambda: changed.append(b"") >= 0 and victim not in changed.metadata.last_fragment.ensemble
    )
    changed.append(b"")  # or the last fragment may be empty, and is for its ledger alone
    changed.close()
    ground.start(victim)
    writers = [changed, *(w for w in written_on(ground, bookie, 2) if bookie in members(ground, w))]
    ground.format(bookie)

    report = refilled(ground, bookie)

    assert alone.ledger_ids == []
    assert Counter(row.ledger_id for row in report.rows)[changed.ledger_id] == 2
    assert needs_refill(ground, bookie, writers) == set()
    assert is_whole(ground, writers, of=bookie)


def test_a_share_that_cannot_be_read_keeps_its_ledger_in_limbo_and_no_other(
    ground: Ground, alone: Alone
) -> None:
    bookie, writers = wiped(ground, 4, Quorum(3, 3, 2))
    bad = writers[1]
    for other in bad.metadata.bookies() - {bookie}:
        for path in (ground.root(other) / "ledgers").glob(f"{bad.ledger_id}-*/slots/*"):
            path.write_bytes(path.read_bytes()[:100])

    report = refilled(ground, bookie)

    assert alone.ledger_ids == [bad.ledger_id]
    assert [row.ledger_id for row in report.unfinished] == [bad.ledger_id]
    assert needs_refill(ground, bookie, writers) == {bad.ledger_id}


def test_a_ledger_without_entries_is_filled_by_itself(ground: Ground, alone: Alone) -> None:
    """Somebody asks the bookie whether it is there, before it is believed."""
    empty = written(ground, count=0)
    bookie = empty.metadata.last_fragment.ensemble[0]
    writers = [w for w in written_on(ground, bookie, 3) if bookie in members(ground, w)]
    ground.format(bookie)

    assert refilled(ground, bookie).is_complete
    assert alone.ledger_ids == [empty.ledger_id]
    assert needs_refill(ground, bookie, [empty, *writers]) == set()


def test_formatted_once_more_meanwhile_all_stay_in_limbo(ground: Ground) -> None:
    """Copies went to one incarnation; metadata never name another for them."""
    bookie, writers = wiped(ground, 4, Quorum(3, 3, 2))
    write = At("write_ledger", lambda: ground.format(bookie), only=[0])

    refilled(ground, bookie, write)

    assert write.met
    assert needs_refill(ground, bookie, writers) == {w.ledger_id for w in writers}
    assert refilled(ground, bookie).is_complete
    assert is_whole(ground, writers)


def test_a_ledger_that_is_changed_meanwhile_is_looked_at_again_by_itself(
    ground: Ground, alone: Alone
) -> None:
    bookie, writers = wiped(ground, 4, Quorum(3, 3, 2))
    last = writers[-1].ledger_id

    def change() -> None:
        update_ledger(ground.client().store, last, lambda old: old.with_custom(k=b"v"))

    write = At("write_ledger", change, path=str(last), only=[0])
    assert refilled(ground, bookie, write).is_complete
    assert write.met
    assert alone.ledger_ids == [last]
    assert needs_refill(ground, bookie, writers) == set()


@pytest.mark.parametrize(
    ("first", "step"),
    [(3, 17), *(pytest.param(n, 3, marks=pytest.mark.full) for n in range(3))],
)
def test_killed_at_any_step_each_is_in_limbo_or_whole_and_the_next_run_ends_it(
    tmp_path: Path, first: int, step: int
) -> None:
    begun = Ground(tmp_path / "begun", bookies=4)
    bookie, writers = wiped(begun, 3, Quorum(3, 3, 2))
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step, first=first):
        with suppress(Killed):
            refilled(ground, bookie, kill)
        left = needs_refill(ground, bookie, writers)
        assert is_whole(ground, [w for w in writers if w.ledger_id not in left]), at
        assert refilled(ground, bookie).is_complete, at
        assert is_whole(ground, writers), at
    assert at > 20


def test_each_bookie_and_the_metadata_are_asked_no_more_than_for_each(ground: Ground) -> None:
    asked: list[Counter[str]] = []
    for is_together in (True, False):
        bookie, writers = wiped(ground, 6, Quorum(3, 3, 2))
        ids = needs_refill(ground, bookie, writers)
        client = ground.client()
        incarnation = client.bookies.registrations()[bookie].incarnation
        works = [RefillWork(i, bookie, incarnation, None) for i in sorted(ids)]  # type: ignore[arg-type]
        ground.forget()
        if is_together:
            assert None not in refill_many(client, works, Bounds())
        else:
            for work in works:
                refill_ledger(client, work)
        counted = ground.count()
        assert (counted["write_ledger"], counted["put_if_absent"]) == (6, 6)
        asked.append(counted)
        refilled(ground, bookie)
    assert asked[0].keys() <= asked[1].keys()
    assert all(asked[0][operation] <= asked[1][operation] for operation in asked[0])


def test_what_is_large_or_of_another_life_is_left_to_itself(ground: Ground) -> None:
    bookie, (writer, *_) = wiped(ground, 1, Quorum(3, 3, 2))
    client = ground.client()
    incarnation = client.bookies.registrations()[bookie].incarnation
    for work in (
        RefillWork(writer.ledger_id, bookie, incarnation, None, size_bytes=1 << 20),
        RefillWork(writer.ledger_id, bookie, incarnation, None, nonce=b"x"),
        RefillWork(writer.ledger_id, bookie, "another", None),
    ):
        assert refill_many(client, [work], Bounds()) == [None]
    assert refill_many(client, [], Bounds()) == []
    assert lifecycle.open_ledger(client, writer.ledger_id).last_add_confirmed == 3
