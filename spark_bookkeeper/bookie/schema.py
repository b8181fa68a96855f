"""Names on a bookie: paths, file names and metadata keys; the only place that spells them.

``FORMAT.md`` shows them at work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

MARKER_PATH: Final = "BOOKIE"
"""Proof of which bookie, and which incarnation of it, this partition is."""

LEDGERS: Final = "ledgers"
"""Directory of the ledgers. Made when the partition is formatted and never again: a partition with
a marker and without it lost everything, and is not taken for one that never held anything."""

WITNESS_PATH: Final = f"{LEDGERS}/BOOKIE"
"""Stands for that directory in buckets, which have none; written when they are formatted."""

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

PAYLOAD_SCHEMA: Final = pa.schema([pa.field("payload", pa.binary())])
"""Schema of a ledger that was created without one."""

_SLOT_NAME = re.compile(r"([0-9]{20})\.arrow")
_COPY_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]+)(?:-[0-9]+)?\.arrow")


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """One life of a ledger id: the nonce keeps a new ledger out of an old one's directory."""

    ledger_id: int
    nonce: str
    """Letters and digits, never used before (SLOT-LOG rule R16)."""

    @property
    def directory(self) -> str:
        """``ledgers/<ledger id>-<nonce>``."""
        return f"{LEDGERS}/{self.ledger_id}-{self.nonce}"

    @property
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
        return f"retired/{self.ledger_id}-{self.nonce}"

    def slot(self, number: int) -> str:
        """Path of a slot; 20 digits, so that names sort as numbers."""
        return f"{self.slots}/{number:020d}.arrow"

    def part(self, name: str) -> str:
        """Path of a part."""
        return f"{self.parts}/{name}"

    def copy(self, name: str) -> str:
        """Path of a copy."""
        return f"{self.copies}/{name}"


def part_name(attempt: str, part: int, stripe: int) -> str:
    """Name of a part: ``<attempt>-<part>-<stripe>.arrow``.

    Args:
        attempt: a token of one task attempt, never used before (SLOT-LOG rules R15, R16).
        part: number of the part within the attempt.
        stripe: stripe class (``entry_id mod E``), 0 if the ledger is not striped.
    """
    return f"{attempt}-{part}-{stripe}.arrow"


def slot_number(name: str) -> int | None:
    """The number in a slot's file name; ``None`` for anything else that lies beside it."""
    match = _SLOT_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def copy_range(name: str) -> tuple[int, int] | None:
    """First and last entry in a copy's file name; ``None`` for anything else."""
    match = _COPY_NAME.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None
