"""The mark of an accepted loss: written, read back, and found damaged."""

from __future__ import annotations

import pytest

from spark_bookkeeper.protocol.accepted_loss import (
    ACCEPTED_LOSS,
    AcceptedLoss,
    accepted_loss_of,
    not_gone,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId

NAMES = tuple(BookieId(name) for name in "abc")


def loss(*missing: tuple[int, int | None]) -> AcceptedLoss:
    spans = tuple((EntryId(f), None if n is None else EntryId(n)) for f, n in missing)
    return AcceptedLoss("ann@host", 1_000, NAMES[:2], spans)


def test_it_is_read_as_it_was_written() -> None:
    written = loss((3, 3), (5, 7), (9, None))

    assert accepted_loss_of({ACCEPTED_LOSS: written.encode()}) == written
    assert accepted_loss_of({}) is None


def test_it_says_what_may_be_missing_with_whom_and_who_accepted_that() -> None:
    told = str(loss((3, 3), (5, 7), (9, None)))

    assert told == ("entries 3..3, 5..7, 9.. may be missing, lost with a, b; accepted by ann@host")


def test_of_very_many_ranges_the_text_has_the_first_and_the_last() -> None:
    holes = [(4 * number, 4 * number) for number in range(1000)]

    told = str(loss(*holes, (4000, None)))

    assert "28..28, 992 ranges more, 4000.. may be missing" in told
    assert told.startswith("entries 0..0, 4..4, 8..8")
    assert "ranges more" not in str(loss(*holes[:9], (4000, None)))


def test_a_hole_lies_before_the_end() -> None:
    found = loss((3, 3), (5, 7), (9, None))

    holes = [entry_id for entry_id in map(EntryId, range(12)) if found.has_hole(entry_id)]
    assert holes == [3, 5, 6, 7]


def test_what_is_given_up_is_within_what_was_shown() -> None:
    found = loss((3, 3), (5, 7), (9, None))

    within = [(0, 3), (3, 3), (3, 4), (5, 6), (6, 8), (8, None), (9, 10), (10, None), (3, None)]
    spans = [(EntryId(a), None if b is None else EntryId(b)) for a, b in within]
    assert [within[n] for n, span in enumerate(spans) if not found.exceeded_by([span])] == [
        *[(3, 3), (5, 6), (9, 10), (10, None)]
    ]


@pytest.mark.parametrize("junk", [b"", b"{}", b"[1]", b'{"missing": []}', b"\xff", b"[" * 9999])
def test_a_mark_that_was_damaged_is_no_clean_bill_of_health(junk: bytes) -> None:
    found = accepted_loss_of({ACCEPTED_LOSS: junk})

    assert found is not None
    assert found.missing == ((0, None),)
    assert "cannot be decoded" in found.accepted_by
    assert not found.has_hole(EntryId(0))


@pytest.mark.parametrize(
    ("named", "answered", "registered", "kept"),
    [
        pytest.param("", "", "", "away only", id="away"),
        pytest.param("", "", "b", "away only", id="registered"),
        pytest.param("b", "", "", None, id="named"),
        pytest.param("b", "", "b", "registered", id="named-and-registered"),
        pytest.param("", "b", "b", "it answers", id="answers"),
        pytest.param("b", "b", "b", None, id="answers-and-what-it-cannot-read-is-gone"),
    ],
)
def test_a_bookie_is_gone_if_it_was_formatted_again_or_a_person_says_so(
    named: str, answered: str, registered: str, kept: str | None
) -> None:
    a, b, _ = NAMES
    others = [set(map(BookieId, each)) for each in (named, answered, registered)]

    found = not_gone([a, b], {a}, *others)

    assert a not in found
    assert (b in found) == (kept is not None)
    assert kept is None or kept in found[b]
