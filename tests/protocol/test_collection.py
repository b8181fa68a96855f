"""What the register says of copies that are removed, and whom it lets name a bookie."""

from __future__ import annotations

import pytest

from spark_bookkeeper.protocol.collection import (
    COLLECTED,
    TOKENS_MOST,
    may_be_named,
    with_collection,
    without_collection,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum

B = BookieId("b:1")


def metadata_of(*, is_closed: bool = True) -> LedgerMetadata:
    ensemble = tuple(BookieId(f"a:{number}") for number in range(3))
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        state=LedgerState.IN_RECOVERY,
        fragments=(Fragment(EntryId(0), ensemble),),
        digest_type=DigestType.CRC32C,
    )
    return metadata.closed(EntryId(4), 5) if is_closed else metadata


@pytest.fixture
def closed() -> LedgerMetadata:
    return metadata_of()


def test_nobody_names_a_bookie_from_which_copies_go(closed: LedgerMetadata) -> None:
    begun = with_collection(closed, B, "i1", "t1")
    assert begun is not None

    assert may_be_named(closed, closed, B)
    assert not may_be_named(begun, begun, B)
    assert may_be_named(begun, begun, BookieId("b:2"))


def test_who_looked_before_copies_went_looks_again(closed: LedgerMetadata) -> None:
    begun = with_collection(closed, B, "i1", "t1")
    assert begun is not None
    ended = without_collection(begun, B, "i1", "t1")

    assert not may_be_named(ended, closed, B)
    assert may_be_named(ended, ended, B)


def test_a_removal_in_one_incarnation_bars_the_bookie_in_every_other(
    closed: LedgerMetadata,
) -> None:
    """It may have looked at the marker before the partition was formatted, and go on in it."""
    former = with_collection(closed, B, "i1", "t1")
    assert former is not None
    later = with_collection(former, B, "i2", "t2")
    assert later is not None
    ended = without_collection(later, B, "i2", "t2")

    assert not may_be_named(ended, ended, B)
    both = without_collection(ended, B, "i1", "t1")
    assert may_be_named(both, both, B)


def test_one_that_was_killed_is_ended_by_nobody_else(closed: LedgerMetadata) -> None:
    killed = with_collection(closed, B, "i1", "t1")
    assert killed is not None
    again = with_collection(killed, B, "i1", "t2")
    assert again is not None
    ended = without_collection(again, B, "i1", "t2")

    assert not may_be_named(ended, ended, B)
    assert without_collection(ended, B, "i1", "t3") == ended


def test_what_an_answer_was_lost_of_is_done_once(closed: LedgerMetadata) -> None:
    begun = with_collection(closed, B, "i1", "t1")
    assert begun is not None
    assert with_collection(begun, B, "i1", "t1") == begun


def test_named_bookies_open_ledgers_and_full_registers_are_refused(closed: LedgerMetadata) -> None:
    (named, *_) = closed.fragments[0].ensemble
    assert with_collection(closed, named, "i1", "t1") is None
    assert with_collection(metadata_of(is_closed=False), B, "i1", "t1") is None
    full = closed
    for number in range(TOKENS_MOST):
        more = with_collection(full, B, "i1", f"t{number}")
        assert more is not None
        full = more
    assert with_collection(full, B, "i1", "one more") is None


@pytest.mark.parametrize("data", [b"", b"[]", b'{"b:1/i1": 3}', b"\xff", b'{"b:1/i1": [[], ""]}'])
def test_what_cannot_be_decoded_lets_nobody_do_anything(
    closed: LedgerMetadata, data: bytes
) -> None:
    damaged = closed.with_custom(**{COLLECTED: data})

    assert not may_be_named(damaged, damaged, B)
    assert not may_be_named(damaged, closed, B)
    assert with_collection(damaged, B, "i1", "t1") is None
