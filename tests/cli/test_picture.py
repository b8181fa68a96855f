"""Fragments by bookies, in characters."""

from __future__ import annotations

from spark_bookkeeper.cli.ledger.picture import draw_acks, draw_fragments, legend
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import FragmentRange
from spark_bookkeeper.protocol.quorum import Quorum

A, B, C, D, N = map(BookieId, ("a:1", "b:1", "c:1", "d:1", "n:1"))


def fragment(first: int, last: int | None, *ensemble: BookieId) -> FragmentRange:
    return FragmentRange(0, EntryId(first), None if last is None else EntryId(last), ensemble, True)


def test_every_stripe_class_is_held_by_a_write_quorum() -> None:
    lines = draw_fragments(Quorum(4, 3, 2), [fragment(0, 11, A, B, C, D)])

    assert lines == [
        "entries   0..11",
        "a:1       ██ ·· ██ ██",
        "b:1       ██ ██ ·· ██",
        "c:1       ██ ██ ██ ··",
        "d:1       ·· ██ ██ ██",
    ]


def test_a_lost_bookie_is_shaded_and_its_successor_has_its_stripes() -> None:
    lines = draw_fragments(
        Quorum(4, 3, 2), [fragment(0, 11, A, B, C, D), fragment(12, None, A, N, C, D)], {B}
    )

    assert lines[0] == "entries   0..11         12.."
    assert lines[2] == "b:1       ▒▒ ▒▒ ·· ▒▒                 lost"
    assert lines[5] == "n:1                     ██ ██ ·· ██"


def test_without_striping_a_fragment_is_one_cell() -> None:
    lines = draw_fragments(Quorum(2, 2, 1), [fragment(0, -1, A, B)])

    assert lines == ["entries   0.. (none)", "a:1       ████", "b:1       ████"]
    assert "column" not in legend(Quorum(2, 2, 1))
    assert "first column: the entries 0, 4, 8" in legend(Quorum(4, 3, 2))


def test_many_fragments_go_below_each_other() -> None:
    many = [fragment(10 * n, 10 * n + 9, A, B) for n in range(20)]

    lines = draw_fragments(Quorum(2, 2, 1), many, width=60)

    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("entries") for line in lines) > 1
    assert "190..199" in lines[-3]


def test_who_acknowledged_an_entry_has_a_time_and_who_has_yet_to_is_pending() -> None:
    acks = [
        {"entry_id": 9, "bookie_id": "b:1", "status": "stored", "waited_ms": 12.3},
        {"entry_id": 9, "bookie_id": "a:1", "status": "stored", "waited_ms": 1234.0},
        {"entry_id": 10, "bookie_id": "b:1", "status": "pending", "waited_ms": None},
        {"entry_id": 11, "bookie_id": "b:1", "status": "stored", "waited_ms": 1.0},
    ]

    assert draw_acks(acks, 2) == [
        "entry       a:1      b:1",
        "    9  1,234 ms    12 ms",
        "   10         ·  pending",
    ]
