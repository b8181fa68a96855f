"""A ledger in characters: its fragments by bookies, and the acknowledgements of its entries.

Fragments have one row for each bookie, and one block of columns for each fragment. A block has one
cell for each stripe class (``entry id mod E``), or a single wide one if nothing is striped::

    entries          0..11         12..23
    127.0.0.1:3181   ██ ·· ██ ██   ██ ·· ██ ██
    127.0.0.1:3182   ▒▒ ▒▒ ·· ▒▒                 lost
    127.0.0.1:3183   ██ ██ ██ ··   ██ ██ ██ ··
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import FragmentRange
from spark_bookkeeper.protocol.quorum import Quorum

HELD: Final = "██"
LOST: Final = "▒▒"
NOT_HERE: Final = "··"

MOST_CELLS: Final = 12
"""The largest ensemble with a cell for each stripe class; a larger one has a cell per fragment."""


def draw_fragments(
    quorum: Quorum,
    fragments: Sequence[FragmentRange],
    lost: Set[BookieId] = frozenset(),
    width: int = 100,
) -> list[str]:
    """Return lines of at most about ``width`` characters; fragments that do not fit go below.

    Args:
        lost: bookies that are not alive; their cells have another shade.
    """
    named = sorted({bookie for fragment in fragments for bookie in fragment.ensemble})
    margin = max(map(len, [*named, "entries"]))
    blocks = [_block(quorum, fragment, set(lost)) for fragment in fragments]
    lines: list[str] = []
    for shown in _rows_of_blocks(blocks, width - margin - 6):
        if lines:
            lines.append("")
        titles = [title for title, _, _ in shown]
        lines.append("   ".join(["entries".ljust(margin), *titles]).rstrip())
        for bookie in named:
            cells = [cells.get(bookie, " " * size) for _, size, cells in shown]
            state = "   lost" if bookie in lost else ""
            lines.append(("   ".join([bookie.ljust(margin), *cells]) + state).rstrip())
    return lines


def draw_acks(acks: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Return a line for each of the first ``most`` entries, with the time that each bookie took.

    Args:
        acks: rows of ``LedgerWriter.acks``.
        most: the number of entries to draw.
    """
    entries: dict[int, dict[str, str]] = {}
    for row in acks:
        text = f"{row['waited_ms']:,.0f} ms" if row["status"] == "stored" else "pending"
        entries.setdefault(row["entry_id"], {})[row["bookie_id"]] = text
    bookies = sorted({row["bookie_id"] for row in acks})
    shown = dict(list(entries.items())[:most])
    table = [["entry", *bookies]]
    table += [[str(entry), *(shown[entry].get(b, "·") for b in bookies)] for entry in shown]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in table
    ]


def legend(quorum: Quorum) -> str:
    """Return the meaning of the cells, for the ledger's quorum."""
    cells = f"{HELD} held   {LOST} held by a lost bookie"
    if not _has_classes(quorum):
        return cells
    size = quorum.ensemble_size
    column = f"(first column: the entries 0, {size}, {2 * size}, ...)"
    return f"{cells}   {NOT_HERE} not its entry   {column}"


Block = tuple[str, int, Mapping[BookieId, str]]
"""Title, width, and the cells of each bookie in the ensemble."""


def _block(quorum: Quorum, fragment: FragmentRange, lost: set[BookieId]) -> Block:
    last = "" if fragment.last_entry_id is None else str(fragment.last_entry_id)
    title = f"{fragment.first_entry_id}..{last}"
    if fragment.last_entry_id is not None and fragment.last_entry_id < fragment.first_entry_id:
        title = f"{fragment.first_entry_id}.. (none)"
    rows: dict[BookieId, str] = {}
    for position, bookie in enumerate(fragment.ensemble):
        held = LOST if bookie in lost else HELD
        if _has_classes(quorum):
            rows[bookie] = " ".join(
                held if quorum.holds(position, EntryId(stripe)) else NOT_HERE
                for stripe in range(quorum.ensemble_size)
            )
        else:
            rows[bookie] = held * 2
    size = max(len(title), *map(len, rows.values()))
    return title.ljust(size), size, {bookie: text.ljust(size) for bookie, text in rows.items()}


def _has_classes(quorum: Quorum) -> bool:
    return quorum.is_striped and quorum.ensemble_size <= MOST_CELLS


def _rows_of_blocks(blocks: Sequence[Block], width: int) -> Iterator[Sequence[Block]]:
    shown: list[Block] = []
    used = 0
    for block in blocks:
        if shown and used + block[1] > width:
            yield shown
            shown, used = [], 0
        shown.append(block)
        used += block[1] + 3
    if shown:
        yield shown
