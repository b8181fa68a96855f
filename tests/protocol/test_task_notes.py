"""When a task is tried again."""

from __future__ import annotations

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS, Marked, TaskNote

A, B, C = (BookieId(f"{name}:3181") for name in "abc")
TASK = Marked((A,), 500)


def failed(note: TaskNote, *, waits_for_event: bool = False) -> TaskNote:
    return note.failed(
        "e",
        None,
        1000,
        TASK,
        waits_for=[A],
        writable=2,
        first_ms=10,
        most_ms=100,
        waits_for_event=waits_for_event,
    )


def test_a_note_waits_longer_each_time_and_a_bookie_ends_the_wait() -> None:
    note = TaskNote()
    for expected in (10, 20, 40, 80, 100, 100):
        note = failed(note)
        assert note.next_try_at_ms == 1000 + expected
    assert not note.is_due(1050, TASK, [B, C], 2, 100)
    assert note.is_due(1050, TASK, [A, B], 2, 100), "the one that was missing is there"
    assert note.is_due(1050, TASK, [B, C], 3, 100), "there is one more to copy to"
    assert note.is_due(1100, TASK, [], 0, 100)
    assert note.is_due(0, TASK, [], 0, 100), "a time that far off is another clock's"


def test_the_grace_period_is_that_of_one_fragment() -> None:
    first, later = Fragment(EntryId(0), (A, B)), Fragment(EntryId(7), (A, B))
    note = TaskNote().with_grace(first, 1000, 30, TASK, [A], 2)
    assert not note.grace_over(first, 1029, 30)
    assert note.grace_over(first, 1030, 30)
    assert not note.grace_over(later, 5000, 30), "its writer has made another fragment"
    assert note.with_grace(first, 1020, 30, TASK, [A], 2).open_since_ms == 1000
    assert note.with_grace(later, 1020, 30, TASK, [A], 2).open_since_ms == 1020
    assert note.with_grace(first, 900, 30, TASK, [A], 2).open_since_ms == 900
    assert not note.grace_over(first, 9029, 30, 9000), "the clock went from about 1020 to 9000"
    assert note.grace_over(first, 9030, 30, 9000)
    assert note.with_grace(first, 9020, 30, TASK, [A], 2, 9000).open_since_ms == 9000


def test_a_writer_that_replaced_a_bookie_before_anything_was_acknowledged_has_its_time() -> None:
    """The fragment begins at the same entry, and yet it is another one."""
    note = TaskNote().with_grace(Fragment(EntryId(0), (A, B)), 1000, 30, TASK, [A], 2)
    replaced = Fragment(EntryId(0), (A, C))

    assert not note.grace_over(replaced, 5000, 30)
    assert note.with_grace(replaced, 1020, 30, TASK, [A], 2).open_since_ms == 1020


def test_a_task_that_was_published_again_is_tried_again_whatever_it_waits_for() -> None:
    again, more = Marked((A,), 700), Marked((A, B), 500)
    anew = Marked((A,), 500, version=1)
    for note in (
        failed(TaskNote()),
        failed(TaskNote(), waits_for_event=True),
        TaskNote().with_grace(Fragment(EntryId(0), (A, B)), 1000, 30, TASK, [A], 2),
    ):
        assert not note.is_due(1005, TASK, [B, C], 2, 100)
        assert note.is_due(1005, again, [B, C], 2, 100)
        assert note.is_due(1005, more, [B, C], 2, 100)
        assert note.is_due(1005, anew, [B, C], 2, 100), "by the same bookies, once more"
        assert not note.is_due(1005, None, [B, C], 2, 100), "one that cannot be read is no other"


def test_what_waits_for_an_event_is_tried_by_the_clock_after_a_day() -> None:
    note = failed(TaskNote(), waits_for_event=True)

    assert not note.is_due(1000 + WAIT_FOR_EVENT_MS - 1, TASK, [A, B, C], 3, 100)
    assert note.is_due(1000 + WAIT_FOR_EVENT_MS, TASK, [], 0, 100)
    assert not note.is_due(0, TASK, [], 0, 100), "of a clock that is a little behind"
    assert note.is_due(999 - WAIT_FOR_EVENT_MS, TASK, [], 0, 100), "far behind"
    uncertain = failed(note)
    assert not uncertain.is_due(1019, TASK, [B], 2, 100)
    assert uncertain.is_due(1020, TASK, [B], 2, 100)


def test_a_bookie_that_refuses_keeps_only_the_worker_beside_it_waiting() -> None:
    note = TaskNote()
    for expected in (10, 20, 40, 80, 100, 100):
        note = note.refused(B, "full", 1000, first_ms=10, most_ms=100)
        assert note.waits_until_ms(B) == 1000 + expected
    assert not note.is_due(1050, TASK, [B, C], 2, 100, B)
    assert note.is_due(1100, TASK, [B, C], 2, 100, B)
    assert note.is_due(800, TASK, [B, C], 2, 100, B), "a time that far off is another clock's"
    assert note.is_due(1050, TASK, [B, C], 2, 100, C)
    assert note.is_due(1050, TASK, [B, C], 2, 100, None)
    assert [each.bookie for each in note.refusals] == [B], "one for each bookie"


def test_a_bookie_that_refuses_after_the_event_keeps_its_worker_waiting_for_no_event() -> None:
    for waited in (failed(TaskNote(), waits_for_event=True), failed(failed(failed(TaskNote())))):
        note = waited.refused(B, "full", 1000, first_ms=10, most_ms=100)

        assert note.waits_until_ms(B) == 1010
        assert not note.is_due(1009, TASK, [B, C], 2, 100, B)
        assert note.is_due(1010, TASK, [B, C], 2, 100, B)
        assert note.is_due(1000, TASK, [B, C], 2, 100, C), "what was waited for is there"
        assert (note.waits_for_event, note.blocker) == (False, None)


def test_a_note_says_when_the_last_attempt_ended() -> None:
    fragment = Fragment(EntryId(0), (A, B))
    note = TaskNote()

    assert note.suspected(A).cleared([A], None).without_grace().tried_at_ms == 0
    assert failed(note).tried_at_ms == 1000
    assert note.refused(A, "e", 2000, first_ms=10, most_ms=100).tried_at_ms == 2000
    assert note.with_grace(fragment, 3000, 30, TASK, [A], 2).tried_at_ms == 3000
