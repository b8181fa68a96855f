"""Pictures for failing tests of quorums and ensembles: who holds which entry, and what follows.

A line for each bookie, a column for each entry::

    E=3 Qw=2 Qa=2
    entry   0  1  2  3
    a       #  .  #  #
    b       #  -  .  -
    c       .  -  -  .
    copies  2* 0  1  1

``#`` is stored, ``-`` is not, ``.`` is not striped to that bookie, ``x`` is damaged, ``?`` is not
known, ``*`` marks an ack quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum

STORED: Final = "#"
NOT_STORED: Final = "-"
NOT_STRIPED: Final = "."
DAMAGED: Final = "x"
UNKNOWN: Final = "?"

NAMES: Final = "abcdefghijklmnopqrstuvwxyz"


def describe(
    quorum: Quorum,
    bookies: Sequence[str],
    entries: Sequence[int],
    cell: Callable[[int, EntryId], str],
    notes: Mapping[int, str] | None = None,
) -> str:
    """The picture.

    Args:
        quorum: its sizes.
        bookies: what each line is called.
        entries: of the columns.
        cell: one of the characters above, for the number of a line and an entry.
        notes: what is said behind a line, by its number.
    """
    heads = [str(entry) for entry in entries]
    cells = [[cell(line, EntryId(entry)) for entry in entries] for line in range(len(bookies))]
    counts = [sum(line[column] == STORED for line in cells) for column in range(len(heads))]
    copies = [f"{n}*" if n >= quorum.ack_quorum_size else str(n) for n in counts]
    rows = [
        ("entry", heads, ""),
        *((name, cells[line], (notes or {}).get(line, "")) for line, name in enumerate(bookies)),
        ("copies", copies, ""),
    ]
    margin = max(len(name) for name, _, _ in rows) + 2
    width = max((len(text) for _, texts, _ in rows for text in texts), default=1) + 1
    sizes = f"E={quorum.ensemble_size} Qw={quorum.write_quorum_size} Qa={quorum.ack_quorum_size}"
    lines = [
        f"{name:<{margin}}{''.join(f'{text:<{width}}' for text in texts)}{note}".rstrip()
        for name, texts, note in rows
    ]
    return "\n".join(["", sizes, *lines])


def describe_prefixes(quorum: Quorum, stored_through: Sequence[int], pushed: int) -> str:
    """One ensemble whose bookies each store everything striped to them, up to some entry."""

    def cell(position: int, entry_id: EntryId) -> str:
        if not quorum.holds(position, entry_id):
            return NOT_STRIPED
        return STORED if stored_through[position] >= entry_id else NOT_STORED

    notes = {position: f"through {last}" for position, last in enumerate(stored_through)}
    bookies = NAMES[: quorum.ensemble_size]
    return describe(quorum, bookies, range(pushed + 1), cell, notes)


def describe_answers(quorum: Quorum, answered: Set[int]) -> str:
    """Which bookies have answered, and how many of each write set; a column for each of these."""

    def cell(position: int, entry_id: EntryId) -> str:
        if not quorum.holds(position, entry_id):
            return NOT_STRIPED
        return STORED if position in answered else UNKNOWN

    notes = {p: "answered" if p in answered else "silent" for p in range(quorum.ensemble_size)}
    bookies = NAMES[: quorum.ensemble_size]
    picture = describe(quorum, bookies, range(len(quorum.write_sets())), cell, notes)
    return f"{picture}\n{quorum.misses_needed} answers of each write set are needed"


def describe_fragments(
    quorum: Quorum,
    fragments: Sequence[tuple[EntryId, tuple[BookieId, ...]]],
    stored: Mapping[BookieId, Set[EntryId]],
    last: int,
) -> str:
    """A ledger of several ensembles: each with the entry that it begins at."""
    bookies = sorted({bookie for _, ensemble in fragments for bookie in ensemble})

    def cell(line: int, entry_id: EntryId) -> str:
        ensemble = next(e for first, e in reversed(fragments) if first <= entry_id)
        bookie = bookies[line]
        if bookie not in ensemble or not quorum.holds(ensemble.index(bookie), entry_id):
            return NOT_STRIPED
        return STORED if entry_id in stored.get(bookie, ()) else NOT_STORED

    picture = describe(quorum, bookies, range(last + 1), cell)
    ensembles = "; ".join(f"from {first}: {' '.join(ensemble)}" for first, ensemble in fragments)
    return f"{picture}\nensembles {ensembles}"
