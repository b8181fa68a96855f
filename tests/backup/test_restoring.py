"""Restores: part after part, into a cluster that has used ids, and given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_bookkeeper.agent.collection import Collection, collect_garbage
from spark_bookkeeper.backup.forgetting import forget_restores
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import backup
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.restores import restore_diagnoses
from spark_bookkeeper.errors import (
    EntryUnreadableError,
    InvalidArgumentError,
    LedgerExistsError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.backup.clusters import a_log, contents, run, statuses
from tests.support.lake import bytes_ledger, entries_of, metadata_of
from tests.worlds import failing

# Part after part


def test_logs_are_restored_one_after_the_other(ground: Ground, empty: Ground, folder: str) -> None:
    names = ("clicks", "orders")
    expected = {name: a_log(ground, name) for name in names}
    single = bytes_ledger(ground)
    run(backup, ground.context, folder)

    for name in names[::-1]:  # the last ids first
        report = run(restore, empty.context, folder, log=name)
        assert report.is_complete, report.unfinished
    other = bytes_ledger(empty)
    assert run(restore, empty.context, folder, [single]).is_complete

    for name in names:
        log = open_log(empty.context, name)
        assert [entry.payload for entry in log.entries()] == expected[name]
        with log.become_writer() as writer:
            writer.append(b"next")
        assert log.ledgers() == sorted(log.ledgers())
    assert other not in ground.context.store.ledger_ids()


def test_restored_copies_are_on_as_many_racks_as_there_are(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(5)]
    run(backup, ground.context, folder)
    racks = dict(zip(empty.bookie_ids, "xxxyz", strict=True))
    for bookie, rack in racks.items():
        empty.start(bookie, rack=rack)

    assert run(restore, empty.context, folder).is_complete

    for each in ledgers:
        assert {racks[b] for b in metadata_of(empty, each).bookies()} == {"x", "y", "z"}


def test_a_kept_id_has_one_life(ground: Ground, empty: Ground, folder: str) -> None:
    single = bytes_ledger(ground)
    a_log(ground)
    run(backup, ground.context, folder)
    run(restore, empty.context, folder, log="orders")
    with pytest.raises(LedgerExistsError):
        lifecycle.create_ledger(empty.context, Quorum(3, 3, 2), ledger_id=single)
    assert run(restore, empty.context, folder, [single]).is_complete

    delete_ledger(empty.context, single)

    (row,) = run(restore, empty.context, folder, [single]).rows
    assert row.status is Outcome.LEFT
    assert f"has used ledger id {single} before" in str(row.reason)
    assert "empty cluster" in str(row.reason)


def test_an_id_that_the_cluster_has_used_is_said_before_anything_is_copied(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground)
    run(backup, ground.context, folder)
    delete_ledger(empty.context, bytes_ledger(empty))
    collect_garbage(empty.context, wish=Collection())

    for dry_run in (True, False):
        (row,) = run(restore, empty.context, folder, dry_run=dry_run).rows
        assert (row.ledger_id, row.status) == (ledger_id, Outcome.LEFT)
        assert "has used ledger id" in str(row.reason)
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)


def test_a_dry_run_tells_what_a_run_would_leave(
    ground: Ground, empty: Ground, folder: str, tmp_path: Path
) -> None:
    whole, half = bytes_ledger(ground), bytes_ledger(ground)
    a_log(ground)
    run(backup, ground.context, folder)
    (copy,) = Path(folder).glob(f"ledgers/{half}-*/copies/*.arrow")
    copy.unlink()

    report = run(restore, empty.context, folder, dry_run=True)

    said = {row.ledger_id: row for row in report.rows}
    assert said[whole].status is Outcome.PLANNED
    assert said[half].status is Outcome.LEFT
    assert "--verify" in str(said[half].reason)
    assert "log 'orders'" in str(report.rows[-1].reason)
    small = Ground(tmp_path / "small", bookies=2, runtime=InlineRuntime())
    assert statuses(run(restore, small.context, folder, [whole], dry_run=True)) == {Outcome.LEFT}


# Given up


def abandoned(ground: Ground, empty: Ground, folder: str) -> int:
    """A restore that died when the copies of its ledger were there."""
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)
    dying = empty.client(None, failing("create_ledger", Killed))
    with pytest.raises(Killed):
        run(restore, dying, folder)
    dying.store.close()
    return ledger_id


def restore_findings(ground: Ground) -> list[Diagnosis]:
    return list(restore_diagnoses(ground.client()))


def test_a_restore_that_is_given_up_is_collected(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = abandoned(ground, empty, folder)
    (found,) = restore_findings(empty)
    assert (found.verdict, "--forget" in str(found.remedy)) == ("warning", True)
    kept = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in kept.rows} == {Outcome.LEFT}

    plan = forget_restores(empty.context, dry_run=True)
    report = forget_restores(empty.context, [LedgerId(ledger_id)])

    assert statuses(plan) == {Outcome.PLANNED}
    assert statuses(report) == {Outcome.NO_LONGER_NEEDED}
    assert [row.bytes for row in report.rows] == [row.bytes for row in plan.rows]
    collected = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in collected.rows} == {Outcome.DELETED}
    for row in report.rows:
        assert row.bytes == sum(r.bytes for r in collected.rows if r.source == row.source) > 0
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)
    assert not restore_findings(empty)
    assert not forget_restores(empty.context).rows
    with pytest.raises(InvalidArgumentError, match="no restore of ledger"):
        forget_restores(empty.context, [LedgerId(ledger_id)])


def test_giving_up_that_is_killed_at_any_step_is_repeated(
    ground: Ground, empty: Ground, folder: str
) -> None:
    abandoned(ground, empty, folder)
    for number in range(100):
        dying = empty.client(None, KillAt(number))
        try:
            forget_restores(dying)
        except Killed:
            dying.store.close()
            collect_garbage(empty.client(), wish=Collection())
            continue
        break
    assert number > 5

    assert not restores.begun(empty.context.store.registers)
    collect_garbage(empty.context, wish=Collection())
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)


def test_nothing_is_restored_while_restores_are_given_up(
    ground: Ground, empty: Ground, folder: str
) -> None:
    bytes_ledger(ground)
    run(backup, ground.context, folder)
    other = empty.client()

    with (
        restores.giving_up(other.store.ballots, "me", other.runtime),
        pytest.raises(InvalidArgumentError, match="being given up"),
    ):
        run(restore, empty.context, folder)

    assert run(restore, empty.context, folder).is_complete


def test_a_ledger_that_is_whole_stays_when_its_restore_is_forgotten(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)
    run(restore, empty.context, folder)
    nonce = metadata_of(empty, ledger_id).nonce
    restores.begin(empty.context.store.registers, LedgerId(ledger_id), nonce or b"")

    report = forget_restores(empty.context)

    assert statuses(report) == {Outcome.RESTORED}
    collect_garbage(empty.context, wish=Collection())
    assert contents(empty, [ledger_id]) == contents(ground, [ledger_id])


class _ForgettingRunner(LocalRunner):
    """When the copies are there, and the metadata are not, somebody gives the restore up."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        results = list(super().run(step, items, progress))
        (found,) = restore_diagnoses(self._context)
        assert (found.verdict, "under way by" in found.detail) == ("ok", True)
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="a restore runs"):
                forget_restores(self._context, dry_run=dry_run)
        assert isinstance(self._context.store, MemoryStore)
        self._context.store.expire()  # the restore is cut off for so long that it counts as ended
        forget_restores(self._context)
        collect_garbage(self._context, wish=Collection())
        yield from results


@pytest.mark.parametrize("is_rule_out", [False, True])
def test_restore_given_up_a_restore_that_goes_on_makes_no_ledger_without_copies(
    ground: Ground, empty: Ground, folder: str, is_rule_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_rule_out:
        monkeypatch.setattr(MemoryStore, "use_up_ledger_id", lambda *_: None)
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)

    report = restore(empty.context, _ForgettingRunner(empty.context), folder)

    if is_rule_out:
        with pytest.raises(EntryUnreadableError):
            entries_of(empty.client(), ledger_id)
        return
    assert statuses(report) == {Outcome.LEFT}
    with pytest.raises(NoSuchLedgerError):
        empty.context.store.read_ledger(LedgerId(ledger_id))
    assert not restores.begun(empty.context.store.registers)
