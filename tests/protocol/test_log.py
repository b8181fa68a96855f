"""The list of ledgers that a log is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Chunk, LogHead, Position, parse_log_name


def ids(*numbers: int) -> tuple[LedgerId, ...]:
    return tuple(LedgerId(number) for number in numbers)


def head(*ledgers: int) -> LogHead:
    return LogHead("n1", recent=ids(*ledgers))


@pytest.mark.parametrize(
    ("ledgers", "fenced"), [((), ()), ((4,), (4,)), ((4, 7), (4, 7)), ((1, 4, 7), (4, 7))]
)
def test_a_new_writer_fences_the_last_two_ledgers_or_one_if_there_is_one(
    ledgers: tuple[int, ...], fenced: tuple[int, ...]
) -> None:
    assert head(*ledgers).to_fence == fenced


def test_a_ledger_is_added_behind_the_newest_and_nowhere_else() -> None:
    assert head(1, 4).with_ledger(LedgerId(9)).recent == (1, 4, 9)
    with pytest.raises(AssertionError, match="entries-in-write-order"):
        head(1, 4).with_ledger(LedgerId(3))


def test_truncation_never_takes_the_newest_ledger() -> None:
    assert head(1, 4, 7).truncated(LedgerId(5)).begins_at == 5
    assert head(1, 4, 7).truncated(LedgerId(100)).begins_at == 7
    assert head().truncated(LedgerId(100)) == head()


def test_truncation_only_moves_up() -> None:
    assert head(1, 4, 7).truncated(LedgerId(5)).truncated(LedgerId(2)).begins_at == 5


@pytest.mark.parametrize(
    ("place", "ends", "is_lost"),
    [
        ((1, 2), [(1, 2)], False),  # all was read
        ((1, 1), [(1, 2)], True),
        ((1, 3), [(1, 2)], True),  # what was read there is not what went
        ((1, 2), [None], True),
        ((1, 2), [(1, 2), (0, 0)], False),  # the second ledger was empty
        ((4, 0), [(1, 2), (0, 0)], False),
        ((4, 1), [(1, 2), (0, 0)], True),
        ((1, 2), [(1, 2), (4, 1)], True),
        ((1, 2), [None, (4, 1)], True),
        ((4, 1), [None, (4, 1)], False),
        ((4, 1), [(1, 2), None], True),
        ((0, 0), [(0, 0), (0, 0)], False),  # no entry was ever there
        ((0, 0), [None, (0, 0)], True),
    ],
)
def test_who_has_read_all_that_was_truncated_has_lost_nothing(
    place: tuple[int, int], ends: list[tuple[int, int] | None], is_lost: bool
) -> None:
    def at(ledger_id: int, entry_id: int) -> Position:
        return Position(LedgerId(ledger_id), EntryId(entry_id))

    log = head(1, 4, 7)
    for before, end in zip((2, 5), ends, strict=False):
        log = log.truncated(LedgerId(before), None if end is None else at(*end))
    assert log.truncated(LedgerId(2), at(9, 9)) == log, "somebody was faster"

    found = log.resumed(at(*place))

    assert found == (None if is_lost else Position(log.begins_at, EntryId(0)))
    assert log.resumed(at(7, 3)) == at(7, 3)


def test_what_was_deleted_leaves_the_list_but_the_last_two_stay_in_it() -> None:
    truncated = head(1, 4, 7, 9).truncated(LedgerId(9))

    deleted = truncated.deleted(LedgerId(9))

    assert truncated.unfinished()
    assert (deleted.recent, deleted.unfinished()) == ((7, 9), False)
    assert deleted.to_fence == (7, 9)


def test_old_ledgers_are_sealed_into_chunks_and_leave_with_them() -> None:
    log = head(*range(10, 20))
    due = log.to_seal(4)

    sealed = log.with_chunk("c1", due)

    assert due == (10, 11, 12, 13)
    assert sealed.chunks == (Chunk("c1", LedgerId(10), LedgerId(13), 4),)
    assert sealed.recent == tuple(range(14, 20))
    assert sealed.to_seal(4) == ()
    gone = sealed.truncated(LedgerId(13)).deleted(LedgerId(13))
    assert [chunk.name for chunk in gone.chunks] == ["c1"], "its last ledger is still there"
    gone = gone.truncated(LedgerId(14)).deleted(LedgerId(14))
    assert gone.chunks == ()
    assert [chunk.name for chunk in sealed.forgotten_chunks(gone)] == ["c1"]


@given(st.lists(st.sampled_from(["add", "seal", "truncate", "delete"]), max_size=60), st.data())
def test_whatever_happens_the_list_is_what_a_plain_list_would_be(
    steps: list[str], data: st.DataObject
) -> None:
    log, plain, sealed = head(), list[int](), dict[str, tuple[int, ...]]()
    for step in steps:
        if step == "add":
            newest = log.newest if log.newest is not None else -1
            plain.append(newest + data.draw(st.integers(1, 3)))
            log = log.with_ledger(LedgerId(plain[-1]))
        elif step == "seal" and (due := log.to_seal(2)):
            name = f"c{len(sealed)}"
            sealed[name] = due
            log = log.with_chunk(name, due)
        elif step == "truncate" and plain:
            before = data.draw(st.integers(0, plain[-1] + 2))
            log = log.truncated(LedgerId(before))
            plain = [ledger for ledger in plain if ledger >= min(before, plain[-1])]
        elif step == "delete":
            log = log.deleted(data.draw(st.integers(0, log.begins_at).map(LedgerId)))
        listed = [i for chunk in log.chunks for i in sealed[chunk.name]] + list(log.recent)
        assert [ledger for ledger in listed if ledger >= log.begins_at] == plain
        assert log.to_fence == tuple(listed[-2:])


def test_positions_are_ordered_as_the_log_is_and_are_read_as_they_are_printed() -> None:
    places = [Position(LedgerId(a), EntryId(b), c) for a in (2, 10) for b in (0, 3) for c in (0, 1)]

    assert sorted(places) == places
    assert [Position.parse(str(place)) for place in places] == places
    assert Position.parse("7:12") == Position(LedgerId(7), EntryId(12), 0)
    for wrong in ("7", "7:x", "", "7:1:2:3", "-1:2"):
        with pytest.raises(InvalidArgumentError, match="7:12:0"):
            Position.parse(wrong)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "-x", "x" * 201, "ä", 7, None])
def test_a_name_that_no_log_can_have_is_refused(name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="orders-2024"):
        parse_log_name(name)


def test_a_head_that_is_out_of_order_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 follows 3"):
        head(1, 3, 2)
    with pytest.raises(InvalidArgumentError, match="not in order"):
        LogHead("n", begins_at=LedgerId(1), deleted_below=LedgerId(2))
