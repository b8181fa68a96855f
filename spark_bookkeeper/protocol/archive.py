"""A released ledger: a table stands for some of its copies, and bookies give theirs up.

In ensembles the table has the names ``archive-<16 hex digits>:<position>``, so that an ensemble
still has E distinct members, as BookKeeper's metadata demands. A caller that looks for the holders
of an entry finds the table among the bookies.

Copies are kept by whole bookies: a leaving bookie gives up all that it has of the ledger.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import ARCHIVE, Fragment, LedgerMetadata, is_table
from spark_bookkeeper.protocol.stored_json import decoded, number

FORMAT_VERSION: Final = 1

_INDEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Archived:
    """The table with a released ledger's entries. Kept as custom metadata."""

    table: str
    """The URI of the Delta table."""
    index: str
    """The SHA-256 of the list of entries next to the table, and its name: 64 hex digits."""
    version: int
    """The version of the table when the list was made."""
    keep: int
    """The fewest copies of each entry that bookies keep."""
    released_at_ms: int
    dropping: Mapping[BookieId, str] = field(default_factory=dict)
    """Bookies that may still have a copy that no fragment counts on, with their incarnations."""

    def encode(self) -> bytes:
        """Return one JSON object, readable for people too."""
        values = {
            "format": FORMAT_VERSION,
            "table": self.table,
            "index": self.index,
            "version": self.version,
            "keep": self.keep,
            "released_at_ms": self.released_at_ms,
            "dropping": dict(self.dropping),
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def archived_of(metadata: LedgerMetadata) -> Archived | None:
    """Return the table in a ledger's metadata; ``None``: the ledger was never released.

    Raises:
        MetadataFormatError: it cannot be decoded, or a newer version of this library wrote it.
    """
    if ARCHIVE not in metadata.custom_metadata:
        return None
    data = metadata.custom_metadata[ARCHIVE]
    try:
        return decoded(data, _archived)
    except ValueError as error:
        raise MetadataFormatError(
            f"{ARCHIVE} in a ledger's custom metadata says where its entries are besides on "
            f"bookies, and cannot be read ({error}). Nothing was changed. "
            "A newer version of this library may have written it; else put the value back",
            path=ARCHIVE,
        ) from error


def _archived(values: Any) -> Archived:
    if values["format"] != FORMAT_VERSION:
        raise ValueError(f"its format is {values['format']}, and {FORMAT_VERSION} is known")
    if not _INDEX.fullmatch(values["index"]):
        raise ValueError(f"{values['index']!r} names no list of entries")
    return Archived(
        str(values["table"]),
        values["index"],
        number(values["version"]),
        number(values["keep"]),
        number(values["released_at_ms"]),
        {BookieId(str(b)): str(i) for b, i in values["dropping"].items()},
    )


def table_member(table: str, position: int) -> BookieId:
    """Return the name under which a table stands at a position of an ensemble."""
    return BookieId(f"archive-{hashlib.sha256(table.encode()).hexdigest()[:16]}:{position + 1}")


def copies_kept(metadata: LedgerMetadata, leaving: Collection[BookieId]) -> int:
    """Return the fewest copies on bookies that any entry has without the ``leaving`` bookies."""
    return min(
        sum(
            not is_table(bookie) and bookie not in leaving
            for bookie in (fragment.ensemble[position] for position in write_set)
        )
        for fragment in metadata.fragments
        for write_set in metadata.quorum.write_sets()
    )


def leaving(metadata: LedgerMetadata, keep: int) -> set[BookieId]:
    """Return the bookies that may give up their copies while ``keep`` of every entry are left.

    As many bookies as possible; the last in the first ensemble come first.
    """
    assert keep >= 0, "a number of copies"
    held = [b for f in metadata.fragments for b in f.ensemble if not is_table(b)]
    found: set[BookieId] = set()
    for bookie in reversed(dict.fromkeys(held)):
        if copies_kept(metadata, found | {bookie}) >= keep:
            found.add(bookie)
    return found


def released(old: LedgerMetadata, archived: Archived) -> LedgerMetadata:
    """Return the metadata after copies were given up: the table takes the places of the bookies
    that leave, and of an earlier table.

    Args:
        old: a closed ledger.
        archived: ``dropping`` are the bookies that leave now, and those that have not yet dropped
            their copies.
    """
    assert old.is_closed, "release-needs-an-end"
    fragments = tuple(
        Fragment(
            fragment.first_entry_id,
            tuple(
                table_member(archived.table, position)
                if is_table(bookie) or bookie in archived.dropping
                else bookie
                for position, bookie in enumerate(fragment.ensemble)
            ),
        )
        for fragment in old.fragments
    )
    return replace(old, fragments=fragments).with_custom(**{ARCHIVE: archived.encode()})


def dropped(old: LedgerMetadata, bookies: Collection[BookieId]) -> LedgerMetadata | None:
    """Return the metadata after bookies dropped their copies; ``None``: no change."""
    archived = archived_of(old)
    if archived is None or not set(bookies) & archived.dropping.keys():
        return None
    left = {b: i for b, i in archived.dropping.items() if b not in bookies}
    return old.with_custom(**{ARCHIVE: replace(archived, dropping=left).encode()})
