"""Ranges of entries cut for many readers: in order, without gaps, of about one size."""

from __future__ import annotations

from hypothesis import strategies as st

from spark_bookkeeper.bookie.bookie import Span
from spark_bookkeeper.client.read.splits import pack
from tests.examples import drawn

MIB = 1 << 20


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    spans: list[Span] = []
    following = draw(st.integers(0, 100))
    for _ in range(draw(st.integers(1, 30))):
        count = draw(st.integers(1, 50))
        spans.append(Span(following, following + count - 1, draw(st.floats(0, 500 * MIB))))
        following += count
    return spans


@drawn(span_lists(), st.floats(MIB, 128 * MIB), plain=30, full=100)
def test_the_pieces_are_the_range_in_order_without_gaps(spans: list[Span], target: float) -> None:
    pieces = list(pack(spans, target))

    entries = [entry for first, last in pieces for entry in range(first, last + 1)]
    assert entries == [*range(spans[0].first, spans[-1].last + 1)]
    assert all(first <= last for first, last in pieces)


@drawn(span_lists(), st.floats(MIB, 128 * MIB), plain=30, full=100)
def test_a_span_is_cut_only_when_it_is_much_larger_than_a_piece(
    spans: list[Span], target: float
) -> None:
    starts = {first for first, _ in pack(spans, target)}

    for span in spans:
        if span.size_bytes <= 1.5 * target:
            assert not starts & {*range(span.first + 1, span.last + 1)}


def test_small_neighbours_are_read_together_and_a_large_one_is_shared_out() -> None:
    spans = [Span(0, 0, 1.0 * MIB), Span(1, 2, 2.0 * MIB), Span(3, 10, 64.0 * MIB)]

    pieces = list(pack(spans, 16.0 * MIB))

    assert pieces == [(0, 2), (3, 4), (5, 6), (7, 8), (9, 10)]
