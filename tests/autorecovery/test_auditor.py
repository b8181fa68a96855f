"""Who is auditor, what it notices and when, and what it never marks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.autorecovery.auditor import UnfinishedScanError
from spark_bookkeeper.autorecovery.checks import check_all_ledgers, check_placement
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.losses import losses
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import publish_lost_bookies
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.doctor import examination
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataFormatError,
)
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime, StandingStill
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.autorecovery.seen import audited, damage_file, task_ids, victim_of
from tests.support.autorecovery import CONFIG, Process, written, written_on
from tests.worlds import failing, there


def control(ground: Ground) -> AutorecoveryControl:
    return AutorecoveryControl(ground.context, lambda _: LocalRunner(ground.context))


def test_one_is_auditor_and_the_next_takes_over_when_it_dies(ground: Ground) -> None:
    writer = written(ground)
    one, two, three = (Process(ground, name) for name in ("one", "two", "three"))
    for process in (one, two, three):
        process.audit()
    assert [p.daemon.is_auditor for p in (one, two, three)] == [True, False, False]
    assert control(ground).who_is_auditor() == "spark-bookkeeper@one"

    one.die()
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    three.audit()
    assert not three.daemon.is_auditor
    assert task_ids(ground) == []
    two.audit()

    assert two.daemon.is_auditor
    assert task_ids(ground) == [writer.ledger_id]


def waiting_for_one(
    ground: Ground, config: AutorecoveryConfig = CONFIG
) -> tuple[LedgerWriter, BookieId, Process]:
    """A ledger, a bookie of it that is away and has ten minutes to come back, and the auditor."""
    writer = written(ground)
    control(ground).lost_bookie_recovery_delay = 600
    process = audited(ground, config=config)
    ground.stop(victim_of(writer))
    assert process.audit() <= 600
    assert task_ids(ground) == []
    return writer, victim_of(writer), process


def test_one_bookie_has_the_delay_to_come_back(ground: Ground) -> None:
    writer, lost, process = waiting_for_one(ground)
    process.runtime.sleep(590)
    process.audit()
    assert task_ids(ground) == []
    ground.start(lost)
    process.audit()
    process.runtime.sleep(20)
    process.audit()
    assert task_ids(ground) == [], "it came back in time"
    ground.stop(lost)
    process.audit()
    process.runtime.sleep(601)
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_two_at_once_have_a_tenth_of_the_delay(ground: Ground) -> None:
    writer = written(ground)
    control(ground).lost_bookie_recovery_delay = 600
    process = audited(ground)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    assert 59 < process.audit() <= 60
    process.runtime.sleep(59)
    process.audit()
    assert task_ids(ground) == []
    process.runtime.sleep(1)
    process.audit()

    task = there(ground.context.store.underreplication.read(LedgerId(writer.ledger_id)))
    assert len(task.value.missing) == 2


def test_a_ledger_that_names_a_bookie_after_its_loss_was_published_is_found(ground: Ground) -> None:
    """Its writer chose the bookies before one went, and created it after all ledgers were read."""
    process = audited(ground, config=replace(CONFIG, bookie_check_interval_s=0))
    lost: list[BookieId] = []

    def lose(place: str, operation: str, path: str) -> None:
        if operation == "create_ledger" and not lost:
            lost.append(ground.bookie_ids[0])
            ground.stop(lost[0])
            process.audit()

    late = lifecycle.create_ledger(ground.client(InlineRuntime(), lose), Quorum(4, 4, 2))
    assert lost[0] in late.metadata.bookies()
    assert task_ids(ground) == []

    process.runtime.sleep(61)
    process.audit()

    assert task_ids(ground) == [late.ledger_id]


def test_a_bookie_that_is_back_while_ledgers_are_read_and_goes_again_is_lost_again(
    ground: Ground,
) -> None:
    """Its ledgers were not published, as it was there."""
    process = Process(ground)
    writer = written(ground, Quorum(4, 3, 2))
    process.audit()
    lost = ground.bookie_ids[0]
    looks = 0

    def come_and_go(place: str, operation: str, path: str) -> None:
        nonlocal looks
        if (place, operation) != (METADATA, "registrations"):
            return
        looks += 1
        if looks == 3:  # the auditor's own, then before the metadata are read and after that
            ground.start(lost)
        elif looks == 4:
            ground.stop(lost)

    ground.stop(lost)
    ground.before.append(come_and_go)
    process.audit()
    ground.before.remove(come_and_go)
    assert looks >= 3
    assert task_ids(ground) == []

    ground.stop(lost)
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_an_audit_that_is_asked_for_does_not_wait(ground: Ground) -> None:
    with pytest.raises(InvalidArgumentError, match="no auditor"):
        control(ground).trigger_audit()
    writer, _, process = waiting_for_one(ground)

    control(ground).trigger_audit()
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_a_delay_that_is_no_number_is_none_and_is_said(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote it: nobody waits for it, and what is asked says so."""
    writer = written(ground)
    is_junk = [True]

    def junk(_place: str, operation: str, path: str) -> None:
        if operation == "read_delay" and is_junk:
            raise MetadataFormatError("it holds 'abc'", path=path)
        if operation == "set_delay":
            is_junk.clear()

    process = audited(ground, "one", junk)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    for _ in range(3):
        process.audit()
    assert task_ids(ground) == [writer.ledger_id]
    said = [record for record in caplog.records if "holds 'abc'" in record.getMessage()]
    assert len(said) == 1, "once"

    asked = AutorecoveryControl(process.context, lambda _: LocalRunner(process.context))
    status = asked.status()
    assert status.lost_bookie_recovery_delay == 0
    assert "holds 'abc'" in (status.warning or "")
    found = {each.check: each for each in cluster_diagnoses(process.context, metadata_only=True)}
    assert found["autorecovery"].verdict != "problem"
    assert found["recovery delay"].verdict == "warning"
    assert "holds 'abc'" in found["recovery delay"].detail
    asked.lost_bookie_recovery_delay = 60
    assert asked.status().warning is None


def test_what_is_tidied_is_told_by_lists_once_a_minute(ground: Ground) -> None:
    """However often a bookie comes or goes, and however many tasks wait."""
    bookie = ground.bookie_ids[0]
    writers = written_on(ground, bookie, 5, Quorum(4, 4, 2))
    ground.stop(bookie)
    process = audited(ground)
    process.work()
    notes = Notes(ground.context.store.registers)
    assert len(list(notes.ledger_ids())) == len(writers), "no bookie can take a copy"
    process.runtime.sleep(61)
    ground.forget()

    for _ in range(10):
        process.daemon.audit_once()
        process.daemon.check_once()

    count = ground.count()
    assert count["read_task"] == 0
    assert count["task_ids"] == 2, "one is for a gauge"


@pytest.mark.parametrize("with_racks", [1, 0])
def test_doctor_asks_for_a_delay_where_the_cluster_is_not_there_to_be_tried(
    ground: Ground, with_racks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks() -> bool:
        found = [each.check for each in cluster_diagnoses(ground.context)]
        return "recovery delay" in found

    process = audited(ground)
    assert not asks()
    if not with_racks:
        monkeypatch.setattr(examination, "are_for_trying", lambda _: False)
    for bookie in ground.bookie_ids[:with_racks]:
        ground.stop(bookie)
        ground.start(bookie, rack="/a")
    assert asks()
    control(ground).lost_bookie_recovery_delay = 600
    assert not asks()
    control(ground).lost_bookie_recovery_delay = 0
    process.die()
    assert not asks(), "without autorecovery a restart costs nothing"


def test_another_delay_begins_anew(ground: Ground) -> None:
    writer, _, process = waiting_for_one(ground)
    process.runtime.sleep(500)
    control(ground).lost_bookie_recovery_delay = 300
    process.audit()
    process.runtime.sleep(290)
    process.audit()
    assert task_ids(ground) == []
    process.runtime.sleep(11)
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_a_bookie_that_is_back_empty_within_its_delay_is_audited_at_once(ground: Ground) -> None:
    writer, lost, process = waiting_for_one(ground)
    ground.stop(lost, destroy=True)

    ground.format(lost)
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_what_went_while_autorecovery_was_disabled_is_found_when_it_is_enabled(
    ground: Ground,
) -> None:
    """Also a bookie that came meanwhile, and of which the auditor never heard."""
    process = audited(ground)
    control(ground).disable()
    process.audit()
    new = ground.add_bookie()
    writer = written_on(ground, new, 1)[-1]
    ground.stop(new)
    process.audit()
    assert task_ids(ground) == []

    control(ground).enable()
    process.runtime.sleep(process.audit())  # as one that is new

    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def test_a_new_auditor_gives_who_is_away_the_time_of_a_session_to_come_back(ground: Ground) -> None:
    """Its predecessor went with a bookie's agent, say, or all were cut off at once."""
    writer = written(ground)
    one, *_ = writer.metadata.last_fragment.ensemble
    ground.stop(one)
    process = Process(ground)

    left = process.daemon.audit_once()

    assert 9 < left <= 10
    assert task_ids(ground) == []
    ground.start(one)
    process.daemon.audit_once()
    process.runtime.sleep(left)
    process.audit()
    assert task_ids(ground) == [], "it came back in time"
    ground.stop(one)
    process.audit()
    assert task_ids(ground) == [writer.ledger_id], "the auditor is not new any more"


def test_an_auditor_that_was_cut_off_and_is_elected_again_waits_as_one_that_is_new(
    ground: Ground,
) -> None:
    writer = written(ground)
    process = audited(ground)
    store = process.context.store
    assert isinstance(store, MemoryStore)
    store.on_session_lost(process.daemon.session_lost)
    ground.stop(writer.metadata.last_fragment.ensemble[0])

    store.expire()

    left = process.daemon.audit_once()
    assert (9 < left <= 10, task_ids(ground)) == (True, [])
    process.runtime.sleep(left)
    process.audit()
    assert task_ids(ground) == [writer.ledger_id]


def test_where_most_are_away_an_auditor_waits_for_as_long_as_a_session_lasts(
    ground: Ground,
) -> None:
    writer = written(ground)
    process = audited(ground)
    for bookie in ground.bookie_ids:
        ground.stop(bookie)

    left = process.audit()

    assert 9 < left <= 10
    assert task_ids(ground) == []
    process.runtime.sleep(left)
    process.audit()
    assert task_ids(ground) == [writer.ledger_id]


def test_an_audit_that_failed_is_done_again(ground: Ground) -> None:
    writer = written(ground)
    broken = [True]

    def fail(place: str, operation: str, path: str) -> None:
        if operation == "mark" and broken:
            raise BookieUnavailableError("no answer", bookie_id="x")

    process = audited(ground, "one", fail)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    with pytest.raises(UnfinishedScanError, match="no answer"):
        process.audit()

    broken.clear()
    process.audit()

    assert task_ids(ground) == [writer.ledger_id]


def disabling(ground: Ground, at: str) -> list[str]:
    """Disables autorecovery after the first of these operations."""
    told: list[str] = []

    def after(place: str, operation: str, path: str) -> None:
        if operation == at and not told:
            told.append(path)
            control(ground).disable()

    ground.after.append(after)
    return told


def test_an_audit_that_meets_the_switch_says_what_it_published_and_what_is_left(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_bookkeeper.autorecovery.scan.SCANNED_AT_ONCE", 1)
    writers = [written(ground, Quorum(4, 2, 2)) for _ in range(3)]
    ground.stop(ground.bookie_ids[0])
    disabling(ground, "mark")

    planned = publish_lost_bookies(ground.context, dry_run=True)
    report = publish_lost_bookies(ground.context)

    assert [row.status for row in planned.rows] == [Outcome.PLANNED] * 3
    assert [(row.ledger_id, row.status) for row in report.rows] == [
        (-1, Outcome.LEFT),
        (writers[0].ledger_id, Outcome.PUBLISHED),
    ]
    assert "autorecovery enable" in str(report.rows[0].reason)
    with pytest.raises(InvalidArgumentError, match="disabled"):
        publish_lost_bookies(ground.context)


def test_an_auditor_that_meets_the_switch_goes_on_when_it_is_enabled_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it was enabled so soon that it never saw it disabled."""
    monkeypatch.setattr("spark_bookkeeper.autorecovery.scan.SCANNED_AT_ONCE", 1)
    process = audited(ground)
    writers = [written(ground, Quorum(4, 2, 2)) for _ in range(3)]
    ground.stop(ground.bookie_ids[0])
    disabling(ground, "mark")
    process.audit()
    assert len(task_ids(ground)) == 1
    control(ground).enable()

    process.audit()

    assert task_ids(ground) == [writer.ledger_id for writer in writers]


def test_what_cannot_be_looked_at_is_not_counted_as_published(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_bookkeeper")
    broken, lacking = (written(ground, Quorum(4, 2, 2)).ledger_id for _ in range(2))
    ground.stop(ground.bookie_ids[0])
    process = Process(ground)
    store = process.context.store
    whole = store.read_ledgers

    def read(ids: Sequence[LedgerId], **options: Any) -> Any:
        for ledger_id, found in whole(ids, **options):
            is_broken = ledger_id == broken
            yield ledger_id, MetadataFormatError("garbage") if is_broken else found

    monkeypatch.setattr(store, "read_ledgers", read)

    process.audit()

    assert task_ids(ground) == [lacking]
    assert {line[-19:] for line in caplog.messages if "published" in line} == {
        "1 ledgers published"
    }


def test_a_foreign_auditor_is_recognised_and_said(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    other = ground.client().store.underreplication
    other.stand("10.0.0.7:3181", lambda: None)

    Process(ground).audit()

    assert "10.0.0.7:3181, a process of Apache BookKeeper" in caplog.text
    status = control(ground).status()
    assert status.auditor == "10.0.0.7:3181"
    assert "marks every replica" in (status.warning or "")


def test_a_lock_counts_as_long_as_its_ledger_is_to_be_repaired(ground: Ground) -> None:
    """A worker releases those of several ledgers together."""
    tree, holder = ground.client().store.underreplication, Holder("a")
    for ledger_id in (LedgerId(1), LedgerId(2)):
        assert tree.mark(ledger_id, ["10.0.0.1:3181"], 1)
        assert tree.lock(ledger_id, holder)
    assert (control(ground).status().underreplicated, control(ground).status().locked) == (2, 2)

    assert tree.remove(there(tree.read(LedgerId(1))))

    assert (control(ground).status().underreplicated, control(ground).status().locked) == (1, 1)


def test_a_bookie_that_only_takes_no_data_is_not_lost(ground: Ground) -> None:
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.start(bookie, is_readonly=True)

    assert publish_lost_bookies(ground.context).rows == ()


# The checks


def test_what_is_missing_is_marked_and_a_time_out_is_not(ground: Ground) -> None:
    lacking = written(ground)
    victim, silent, _ = lacking.metadata.last_fragment.ensemble
    for path in ground.files(victim, "slots"):
        path.unlink()
    whole = written(ground)

    def time_out(place: str, operation: str, path: str) -> None:
        if place == silent and "read" in operation:
            raise BookieUnavailableError("no answer in 20 s", bookie_id=place)

    client = ground.client(InlineRuntime(), time_out)

    report = check_all_ledgers(client, LocalRunner(client))

    assert whole.ledger_id not in task_ids(ground)
    task = there(ground.context.store.underreplication.read(LedgerId(lacking.ledger_id)))
    assert task.value.missing == (victim,)
    assert Outcome.PUBLISHED in {row.status for row in report.rows if row.source == victim}
    told = {row.status for row in report.rows if row.source == silent}
    assert told <= {Outcome.UNAVAILABLE, Outcome.UNREADABLE}
    assert told


def test_what_a_bookie_cannot_read_that_is_there_is_for_a_person_to_mend(ground: Ground) -> None:
    """Nobody publishes it, as nobody knows whether it is damaged. Who is gone, or was formatted
    again, is found by the check of bookies."""
    writer = written(ground)
    unreadable, gone, formatted = writer.metadata.last_fragment.ensemble
    file = ground.files(unreadable, "slots")[0]
    file.unlink()
    file.mkdir()
    ground.stop(gone, destroy=True)
    ground.format(formatted)
    process = Process(ground)

    process.audit()

    (kept,) = (each for each in control(ground).checks() if each.check == "all_ledgers")
    assert kept.found == {Outcome.UNREADABLE.value: 1, Outcome.UNAVAILABLE.value: 1}
    (told,) = (d for d in cluster_diagnoses(ground.context) if d.check == "checks of the auditor")
    assert (told.verdict, f": {writer.ledger_id}" in told.detail) == ("warning", True)
    (row,) = (
        each
        for each in check_all_ledgers(ground.context, LocalRunner(ground.context)).rows
        if each.source == unreadable
    )
    remedy = f"`spark-bookkeeper bookie recover {unreadable} --skip-open-ledgers --even-if-alive "
    assert f"{remedy}--ledger {writer.ledger_id}`" in str(row.reason)


def test_damage_that_a_deep_check_found_is_looked_for_as_deeply(ground: Ground) -> None:
    """A look at the ends of the replica, as without that finding, would see nothing."""
    writer = written(ground, count=40)
    bookie = writer.metadata.last_fragment.ensemble[0]
    slots = sorted(ground.files(bookie, "slots"))
    damage_file(slots[len(slots) // 2])
    client = ground.client(InlineRuntime())
    assert check_all_ledgers(client, LocalRunner(client), 0).counts == {}
    report = check_all_ledgers(client, LocalRunner(client), 100)
    assert task_ids(ground) == [writer.ledger_id]
    assert [(row.source, row.status) for row in report.rows] == [(bookie, Outcome.PUBLISHED)]

    Process(ground).work()

    assert task_ids(ground) == []
    assert check_all_ledgers(client, LocalRunner(client), 100).counts == {}


def test_the_next_check_is_announced(ground: Ground) -> None:
    config = replace(CONFIG, ledger_check_interval_s=20)
    process = Process(ground, config=config)

    assert process.audit() <= 20


def test_a_check_that_is_due_while_a_bookie_is_waited_for_does_not_keep_the_auditor_busy(
    ground: Ground,
) -> None:
    _, _, process = waiting_for_one(ground, replace(CONFIG, ledger_check_interval_s=20))
    process.runtime.sleep(21)

    assert process.audit() > 30, "the check waits until the bookie is back or lost"


def test_a_note_that_came_after_its_task_had_gone_is_forgotten(ground: Ground) -> None:
    """Its worker had lost its session, and another one was quicker."""
    writer = written(ground)
    notes = Notes(ground.context.store.registers)
    notes.change(LedgerId(writer.ledger_id), lambda note: replace(note, attempts=7))

    Process(ground).audit()

    assert list(notes.ledger_ids()) == []


# What would be lost


def test_new_ledgers_are_on_as_many_racks_as_there_can_be(ground: Ground) -> None:
    for number, bookie in enumerate(ground.bookie_ids):
        ground.start(bookie, rack=f"/rack-{min(number, 1)}")  # all but one stand in one rack

    writers = [written(ground, Quorum(2, 2, 2)) for _ in range(8)]
    writers += [written(ground) for _ in range(4)]

    for writer in writers:
        assert ground.bookie_ids[0] in writer.metadata.bookies()
    assert check_placement(ground.context).rows == ()


def test_a_bookie_that_is_replaced_is_replaced_on_a_rack_without_a_copy(ground: Ground) -> None:
    writer = written(ground, Quorum(2, 2, 2), close=False)
    stays, goes = writer.metadata.last_fragment.ensemble
    beside, elsewhere = (b for b in ground.bookie_ids if b not in (stays, goes))
    for bookie, rack in ((stays, "/a"), (goes, "/b"), (beside, "/a"), (elsewhere, "/b")):
        ground.start(bookie, rack=rack)
    ground.stop(goes)

    writer.append(b"on whom?")
    writer.close()

    assert writer.metadata.last_fragment.ensemble == (stays, elsewhere)


def test_of_a_ledger_that_cannot_be_decoded_nobody_can_say_whether_a_loss_is_safe(
    ground: Ground,
) -> None:
    writer = written(ground)
    garbage = failing("read_ledger", lambda path: MetadataFormatError("garbage", path=path))

    found = losses(ground.client(None, garbage), [writer.metadata.last_fragment.ensemble[0]])

    assert (bool(found), found.at_risk, found.unreadable) == (False, (), (writer.ledger_id,))
    assert "of 1 ledger nobody can say" in str(found)
    assert "Qa" not in str(found)


def test_safe_to_lose_says_which_ledgers_would_have_too_few_copies(ground: Ground) -> None:
    three = written(ground, Quorum(3, 3, 2))
    one = written(ground, Quorum(1, 1, 1))
    a, b, _ = three.metadata.last_fragment.ensemble
    (only,) = one.metadata.last_fragment.ensemble

    assert bool(losses(ground.context, [a])) == (a != only)
    both = losses(ground.context, [a, b])
    assert three.ledger_id in {each.ledger_id for each in both.at_risk}
    (found,) = [x for x in losses(ground.context, [only]).at_risk if x.ledger_id == one.ledger_id]
    assert (found.live_copies, found.copies_without, found.ack_quorum_size) == (1, 0, 1)
    ground.stop(a)
    assert not losses(ground.context, [b]), "what is away already counts"
    with pytest.raises(InvalidArgumentError, match="unknown"):
        losses(ground.context, [BookieId("10.9.9.9:1")])
    with pytest.raises(InvalidArgumentError, match="no bookie was named"):
        losses(ground.context, [])


def counted(process: Process, *names: str) -> list[float]:
    shown = process.context.metrics.as_dict()
    return [shown[name] for name in names]


def test_a_loss_is_counted_from_its_being_published_to_ledgers_that_are_whole(
    ground: Ground,
) -> None:
    writers = [written(ground) for _ in range(3)]
    process = Process(ground, runtime=StandingStill())
    process.audit()
    lost = writers[0].metadata.last_fragment.ensemble[0]
    named = sum(lost in writer.metadata.bookies() for writer in writers)
    ground.stop(lost)
    audits = counted(process, "auditor_AUDIT_BOOKIES_TIME_count")[0]

    process.audit()

    assert counted(process, "auditor_ledgers_published_total") == [named]
    AutorecoveryControl(ground.context, lambda _: LocalRunner(ground.context)).trigger_audit()
    process.audit()
    assert counted(process, "auditor_ledgers_published_total") == [named], "each ledger once"
    audits += 1
    assert counted(process, "auditor_AUDIT_BOOKIES_TIME_count") == [audits + 1]
    process.runtime.sleep(30)
    process.work()
    done, timed, seconds = counted(
        process,
        "replication_worker_ledgers_replicated_total",
        "replication_worker_underreplicated_seconds_count",
        "replication_worker_underreplicated_seconds_sum",
    )
    assert (done, timed) == (named, named)
    assert 30 * named <= seconds < 31 * named


def test_who_is_waited_for_and_who_came_back_are_counted(ground: Ground) -> None:
    lost = written(ground).metadata.last_fragment.ensemble[0]
    ground.context.store.underreplication.set_delay_seconds(600)
    process = Process(ground)
    names = (
        "auditor_NUM_BOOKIE_AUDITS_DELAYED_total",
        "auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED_total",
    )
    process.audit()
    assert counted(process, *names) == [0, 0]

    ground.stop(lost)
    process.audit()
    assert counted(process, *names) == [1, 0]

    ground.start(lost)
    process.audit()
    assert counted(process, *names) == [1, 1]


def test_each_check_of_all_ledgers_is_timed(ground: Ground) -> None:
    written(ground)
    process = Process(ground, config=replace(CONFIG, ledger_check_interval_s=3_600))

    process.audit()
    process.runtime.sleep(3_601)
    process.audit()

    assert counted(process, "auditor_CHECK_ALL_LEDGERS_TIME_count") == [2]
