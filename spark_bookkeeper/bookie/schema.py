"""Names on a bookie: paths, file names and metadata keys. Only this module defines them.

``FORMAT.md`` shows their use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.bookie.lazy import lazy
from spark_bookkeeper.bookie.ledger_key import LedgerKey

MARKER_PATH: Final = "BOOKIE"
"""The file that identifies the bookie of a partition, and the bookie's incarnation."""

LEDGERS: Final = "ledgers"
"""The directory of the ledgers. Only a formatting makes it. So a partition with a marker and
without this directory has lost everything, and does not look like one that was always empty."""

WITNESS_PATH: Final = f"{LEDGERS}/BOOKIE"
"""The file that represents that directory in a bucket; a formatting writes it."""

RETIRED: Final = "retired"
"""The directory of the tombstones."""

FORMAT_VERSION: Final = 1
"""The version of the files on a bookie. A reader refuses a higher one."""

RECORD_KEY: Final = b"spark-bookkeeper.record"
"""JSON with the kind and fields of the record (see ``record.py``)."""

ENTRIES_KEY: Final = b"spark-bookkeeper.entries"
"""Three concatenated columns of little-endian int64: entry_id, length_after, size."""

DIGESTS_KEY: Final = b"spark-bookkeeper.digests"
"""The digests of the entries, packed, in the order of the columns."""

DIGEST_KEY: Final = b"spark-bookkeeper.digest"
"""The digest of the three values before."""

PART_KEY: Final = b"spark-bookkeeper.part"
"""JSON in the schema of a part: format version, ledger and nonce."""

_SLOT_NAME = re.compile(r"([0-9]{20})\.arrow")
_LEDGER_NAME = re.compile(r"([0-9]+)-([0-9A-Za-z]{1,200})")  # as `plain_name` has it
COPY_DIGITS: Final = 16
"""The digits for the content in the name of a copy; the digits of the era follow them."""
_COPY_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]+)(?:-[0-9]+)?\.arrow")


@dataclass(frozen=True)
class LedgerPaths:
    """The paths of one ledger's files on a bookie."""

    key: LedgerKey

    @lazy
    def directory(self) -> str:
        """``ledgers/<ledger id>-<nonce>``."""
        return f"{LEDGERS}/{self.key}"

    @lazy
    def slots(self) -> str:
        """The directory of the slots."""
        return f"{self.directory}/slots"

    @property
    def parts(self) -> str:
        """The directory of the parts."""
        return f"{self.directory}/parts"

    @property
    def copies(self) -> str:
        """The directory of the copies."""
        return f"{self.directory}/copies"

    @property
    def tombstone(self) -> str:
        """The file that shows that the ledger is being, or was, deleted here (rule R12)."""
        return f"{RETIRED}/{self.key}"

    def slot(self, number: int) -> str:
        """Return the path of a slot. Its name has 20 digits, so that names sort as numbers."""
        return f"{self.slots}/{number:020d}.arrow"

    def part(self, name: str) -> str:
        """Return the path of a part."""
        return f"{self.parts}/{name}"

    def copy(self, name: str) -> str:
        """Return the path of a copy."""
        return f"{self.copies}/{name}"


def slot_number(name: str) -> int | None:
    """Return the number in a slot's file name; ``None`` for the name of any other file."""
    match = _SLOT_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def copy_name(first: int, last: int, identity: str, era: str) -> str:
    """Return the name of a copy's file.

    Args:
        first, last: its first and last entry.
        identity: ``COPY_DIGITS`` digits that identify its content.
        era: the ``LedgerRef.era``.
    """
    return f"{first}-{last}-{identity}{era}.arrow"


def is_of_era(name: str, era: str) -> bool:
    """Whether a copy was brought in this era, by the name of its file."""
    match = _COPY_NAME.fullmatch(name)
    return match is not None and match.group(3)[COPY_DIGITS:] == era


def has_content_of(name: str, other: str) -> bool:
    """Whether two copies, on any bookies, have the same content, by their names."""
    one, another = _COPY_NAME.fullmatch(name), _COPY_NAME.fullmatch(other)
    if one is None or another is None or one.group(1, 2) != another.group(1, 2):
        return False
    return one.group(3)[:COPY_DIGITS] == another.group(3)[:COPY_DIGITS]


def copy_range(name: str) -> tuple[int, int] | None:
    """Return the first and last entry in a copy's file name; ``None`` for any other name."""
    match = _COPY_NAME.fullmatch(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def ledger_of(name: str) -> LedgerKey | None:
    """Return the ledger in the name of its directory; ``None`` for any other name."""
    match = _LEDGER_NAME.fullmatch(name)
    return LedgerKey(int(match.group(1)), match.group(2)) if match else None
