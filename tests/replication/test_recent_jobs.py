"""What was done lately is noted where everybody sees it, and costs a job nothing."""

from __future__ import annotations

import threading

import pytest

from spark_bookkeeper.client import cluster_clock
from spark_bookkeeper.client.deletion import Deletion
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError, MetadataUnavailableError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication import recent_jobs
from spark_bookkeeper.replication.recent_jobs import (
    JOBS,
    MOST_NOTES,
    SILENT_SECONDS,
    JobNote,
    Tally,
    add_note,
    jobs_table,
    note_deletion,
    noted,
    read_notes,
)
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.testing.ground import Ground

DONE = RecoveryReport(
    "recover_bookie",
    (
        Row(7, "copy", Outcome.REPLICATED, entries=5, bytes=50),
        Row(7, "copy", Outcome.REPLICATED, entries=5, bytes=50),
        Row(8, "copy", Outcome.NO_LONGER_NEEDED),
    ),
)
LEFT = RecoveryReport("recover_bookie", (Row(7, "copy", Outcome.LEFT, "why"),))


def notes(ground: Ground) -> tuple[JobNote, ...]:
    return read_notes(ground.context.store.registers)


def test_a_job_that_has_ended_is_noted_with_what_it_did(ground: Ground) -> None:
    report = noted(ground.context, "recover_bookie", "bookie a:1", no_progress, lambda _: DONE)
    noted(ground.context, "recover_bookie", None, no_progress, lambda _: LEFT)

    assert report is DONE
    table = jobs_table(ground.context)
    left, done = table.to_pylist()
    assert table.schema == JOBS
    assert (left["state"], left["about"]) == ("left undone", None)
    assert (done["state"], done["about"]) == ("complete", "bookie a:1")
    assert (done["ledgers"], done["entries"], done["bytes"]) == (2, 10, 100)
    assert dict(done["outcomes"]) == {"replicated": 2, "no longer needed": 1}
    assert done["ended_at"] >= done["started_at"]


def test_a_note_that_everybody_reads_has_no_password(ground: Ground) -> None:
    noted(ground.context, "backup", "ftp://u:s3cret@h/b", no_progress, lambda _: DONE)

    (note,) = notes(ground)
    assert note.about == "ftp://u:***@h/b"


def test_a_job_that_runs_gives_signs_of_life(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_jobs, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(recent_jobs, "BEAT_SECONDS", 0.001)
    heard: list[tuple[str, int, int, int]] = []
    may_end = threading.Event()

    def run(progress: Progress) -> RecoveryReport:
        progress("copying fragments", 2, 9, 200)
        may_end.wait()
        return DONE

    def call() -> None:
        noted(ground.context, "recover_bookie", "bookie a:1", lambda *told: heard.append(told), run)

    running = threading.Thread(target=call)
    running.start()
    try:
        ground.until(lambda: any(note.done == 2 for note in notes(ground)))
        (row,) = jobs_table(ground.context).to_pylist()
    finally:
        may_end.set()
        running.join()

    assert (row["state"], row["phase"], row["done"], row["total"]) == (
        *("running", "copying fragments"),
        *(2, 9),
    )
    assert heard == [("copying fragments", 2, 9, 200)]
    (note,) = notes(ground)
    assert note.state(note.seen_ms) == "complete"


def test_since_when_a_job_runs_is_what_its_first_note_says(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's clock runs a little faster than ours, or is another server's."""
    monkeypatch.setattr(recent_jobs, "FIRST_SECONDS", 0.001)
    monkeypatch.setattr(cluster_clock, "ASKED_SECONDS", 0.0)
    ahead_ms = [0]
    ground.cluster.clock_ms = lambda: 1_700_000_000_000 + ahead_ms[0]
    started: list[int] = []

    def run(_: Progress) -> RecoveryReport:
        ground.until(lambda: len(notes(ground)) == 1)
        started.append(notes(ground)[0].started_ms)
        ahead_ms[0] = 3_600_000
        return DONE

    noted(ground.context, "recover_bookie", None, no_progress, run)

    (note,) = notes(ground)
    assert (note.ended_ms or 0) > 1_700_000_000_000
    assert [note.started_ms] == started


def test_a_job_that_gives_no_sign_of_life_is_believed_to_have_died() -> None:
    note = JobNote("t", "recover_bookie", "me", 0, 1_000)

    assert note.state(1_000 + SILENT_SECONDS * 1000) == "running"
    assert note.state(1_001 + SILENT_SECONDS * 1000) == "silent"


def test_a_job_that_is_refused_at_once_leaves_no_note(ground: Ground) -> None:
    def run(_: Progress) -> RecoveryReport:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        noted(ground.context, "recover_bookie", None, no_progress, run)

    assert notes(ground) == ()


@pytest.mark.parametrize(
    ("error", "left"), [(BookKeeperError("was cancelled"), 1), (InvalidArgumentError("wrong"), 0)]
)
def test_a_job_that_fails_at_its_work_leaves_a_note_however_early(
    ground: Ground, error: BookKeeperError, left: int
) -> None:
    def run(told: Progress) -> RecoveryReport:
        told("archiving", 0, 2, 0)
        raise error

    with pytest.raises(type(error)):
        noted(ground.context, "archive_to_delta", None, no_progress, run)

    assert [note.phase for note in notes(ground)] == ["archiving"] * left


def test_a_job_that_is_interrupted_at_once_leaves_a_note(ground: Ground) -> None:
    def run(_: Progress) -> RecoveryReport:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        noted(ground.context, "recover_bookie", None, no_progress, run)

    assert [(note.job, note.error) for note in notes(ground)] == [("recover_bookie", "interrupted")]


def test_a_job_that_fails_later_says_why(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_jobs, "FIRST_SECONDS", 0.001)

    def run(_: Progress) -> RecoveryReport:
        ground.until(lambda: bool(notes(ground)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        noted(ground.context, "recover_bookie", None, no_progress, run)

    (row,) = jobs_table(ground.context).to_pylist()
    assert (row["state"], row["error"]) == ("failed", "interrupted")


def test_only_the_newest_are_kept(ground: Ground) -> None:
    for number in range(MOST_NOTES + 2):
        tally = Tally()
        tally.add(Row(number, "copy", Outcome.REPLICATED))
        add_note(ground.context, f"job {number}", "me", 0.0, tally)

    assert [note.job for note in notes(ground)] == [
        f"job {n}" for n in range(MOST_NOTES + 1, 1, -1)
    ]


def test_deletions_are_noted_together_with_what_was_deleted(ground: Ground) -> None:
    for ledger_id in (7, 9):
        gone = Deletion(LedgerId(ledger_id), "CLOSED", length_bytes=10)
        note_deletion(ground.context, "delete_ledger", f"ledger {ledger_id}", [gone])

    (row,) = jobs_table(ground.context).to_pylist()
    assert (row["job"], row["about"], row["state"]) == (
        "delete_ledger",
        "ledger 7, ledger 9",
        "complete",
    )
    assert (row["ledgers"], row["bytes"], dict(row["outcomes"])) == (2, 20, {"deleted": 2})
    assert row["by"] == str(WriterInfo.of_this_process())
    for number in (*range(100), 98):
        note_deletion(ground.context, "delete_ledger", f"ledger {number}")
    (row,) = jobs_table(ground.context).to_pylist()
    assert row["about"].endswith("ledger 97, ledger 99, ledger 98")
    assert len(row["about"]) <= 400
    for number in range(2 * MOST_NOTES):  # by the retention of so many writers of logs
        add_note(ground.context, "truncate_log", f"writer {number}", 0.0, Tally())
    assert [note.job for note in notes(ground)].count("delete_ledger") == 1


def test_what_many_threads_deleted_at_once_is_told_in_a_few_words(ground: Ground) -> None:
    about = ", ".join(f"ledger {number}" for number in range(1000))
    note_deletion(ground.context, "delete_ledger", about)

    (row,) = jobs_table(ground.context).to_pylist()
    assert row["about"].endswith("ledger 998, ledger 999")
    assert len(row["about"]) <= 400


def test_a_program_whose_name_is_no_text_leaves_notes_too(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/jobs/gel\udcf6scht.py"])  # as Python reads Latin-1

    note_deletion(ground.context, "delete_log", "log orders")

    (row,) = jobs_table(ground.context).to_pylist()
    assert row["by"].endswith("gel?scht.py")


def test_what_a_worker_does_shortly_after_joins_what_it_did(ground: Ground) -> None:
    for _ in range(3):
        tally = Tally()
        tally.add(Row(7, "task", Outcome.REPLICATED, entries=2, bytes=20))
        add_note(ground.context, "autorecovery", "worker", 0.0, tally)
    add_note(ground.context, "autorecovery", "another", 0.0, Tally())

    both = {note.by: note for note in notes(ground)}
    assert both.keys() == {"worker", "another"}
    assert (both["worker"].bytes, both["worker"].outcomes) == (60, {"replicated": 3})


@pytest.mark.parametrize(
    "junk",
    [b"", b"\xff", b"{}", b"[1]", b'[{"token": 1}]', b'[{"job": "x"}]', b"null", b"[" * 5000],
)
def test_notes_that_cannot_be_read_are_begun_anew(ground: Ground, junk: bytes) -> None:
    ground.context.store.registers.create("jobs/recent", junk)

    assert jobs_table(ground.context).num_rows == 0
    noted(ground.context, "recover_bookie", None, no_progress, lambda _: DONE)
    assert jobs_table(ground.context).num_rows == 1


def test_notes_of_a_newer_version_are_read_as_far_as_they_are_known(ground: Ground) -> None:
    ground.context.store.registers.create(
        "jobs/recent",
        b'[{"token": "t", "job": "x", "by": "me", "started_ms": 1, "seen_ms": 2, "ended_ms": 3, '
        b'"outcomes": {"improved": 1}, "colour": "red"}]',
    )

    (row,) = jobs_table(ground.context).to_pylist()
    assert (row["job"], row["state"]) == ("x", "complete")


def test_a_note_that_cannot_be_written_costs_the_job_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(recent_jobs, "change_register", fail)

    assert noted(ground.context, "recover_bookie", None, no_progress, lambda _: DONE) is DONE
    assert notes(ground) == ()
