"""Names on a bookie: paths, file names and metadata keys; the only place that spells them.

``FORMAT.md`` shows them at work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.bookie.lazy import lazy
from spark_bookkeeper.bookie.ledger_key import LedgerKey

MARKER_PATH: Final = "BOOKIE"
"""Proof of which bookie, and which incarnation of it, this partition is."""

LEDGERS: Final = "ledgers"
"""Directory of the ledgers. Made when the partition is formatted and never again: a partition with
a marker and without it lost everything, and is not taken for one that never held anything."""

WITNESS_PATH: Final = f"{LEDGERS}/BOOKIE"
"""Stands for that directory in buckets, which have none; written when they are formatted."""

RETIRED: Final = "retired"
"""Directory of the tombstones."""

FORMAT_VERSION: Final = 1
"""Of the files on a bookie. A reader refuses a higher one."""

RECORD_KEY: Final = b"spark-bookkeeper.record"
"""JSON: what the record is (see ``record.py``)."""

ENTRIES_KEY: Final = b"spark-bookkeeper.entries"
"""Three little-endian int64 columns, one after the other: entry_id, length_after, size."""

DIGESTS_KEY: Final = b"spark-bookkeeper.digests"
"""The digests of the entries, packed, in the order of the columns."""

DIGEST_KEY: Final = b"spark-bookkeeper.digest"
"""Digest over the three values before."""

PART_KEY: Final = b"spark-bookkeeper.part"
"""JSON in the schema of a part: format version, ledger and nonce."""

_SLOT_NAME = re.compile(r"([0-9]{20})\.arrow")
_LEDGER_NAME = re.compile(r"([0-9]+)-([0-9A-Za-z]{1,200})")  # as `plain_name` has it
COPY_DIGITS: Final = 16
"""In the name of a copy, of what is in it; behind them are those of the era."""
_COPY_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]+)(?:-[0-9]+)?\.arrow")


@dataclass(frozen=True)
class LedgerPaths:
    """Where a bookie keeps what it has of one ledger."""

    key: LedgerKey

    @lazy
    def directory(self) -> str:
        """``ledgers/<ledger id>-<nonce>``."""
        return f"{LEDGERS}/{self.key}"

    @lazy
    def slots(self) -> str:
        """Directory of the slots."""
        return f"{self.directory}/slots"

    @property
    def parts(self) -> str:
        """Directory of the parts."""
        return f"{self.directory}/parts"

    @property
    def copies(self) -> str:
        """Directory of the copies."""
        return f"{self.directory}/copies"

    @property
    def tombstone(self) -> str:
        """The file that says that this ledger is being, or was, deleted here (rule R12)."""
        return f"{RETIRED}/{self.key}"

    def slot(self, number: int) -> str:
        """Path of a slot; 20 digits, so that names sort as numbers."""
        return f"{self.slots}/{number:020d}.arrow"

    def part(self, name: str) -> str:
        """Path of a part."""
        return f"{self.parts}/{name}"

    def copy(self, name: str) -> str:
        """Path of a copy."""
        return f"{self.copies}/{name}"


def slot_number(name: str) -> int | None:
    """The number in a slot's file name; ``None`` for anything else that lies beside it."""
    match = _SLOT_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def copy_name(first: int, last: int, identity: str, era: str) -> str:
    """Name of a copy's file.

    Args:
        first: entry, with ``last``.
        identity: ``COPY_DIGITS`` digits of what is in it.
        era: ``LedgerRef.era``.
    """
    return f"{first}-{last}-{identity}{era}.arrow"


def is_of_era(name: str, era: str) -> bool:
    """Whether the name of a copy's file says that it was brought in an era."""
    match = _COPY_NAME.fullmatch(name)
    return match is not None and match.group(3)[COPY_DIGITS:] == era


def has_content_of(name: str, other: str) -> bool:
    """Whether the names of two copies, on any bookies, say that the same is in them."""
    one, another = _COPY_NAME.fullmatch(name), _COPY_NAME.fullmatch(other)
    if one is None or another is None or one.group(1, 2) != another.group(1, 2):
        return False
    return one.group(3)[:COPY_DIGITS] == another.group(3)[:COPY_DIGITS]


def copy_range(name: str) -> tuple[int, int] | None:
    """First and last entry in a copy's file name; ``None`` for anything else."""
    match = _COPY_NAME.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def ledger_of(name: str) -> LedgerKey | None:
    """The ledger in the name of its directory; ``None`` for anything else."""
    match = _LEDGER_NAME.fullmatch(name)
    return LedgerKey(int(match.group(1)), match.group(2)) if match else None
