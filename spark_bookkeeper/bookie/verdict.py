"""The result of verifying entries on a bookie: good, or refused with a reason."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class RefusalKind(enum.Enum):
    """The kinds of entries that cannot be used."""

    ABSENT = "absent"
    """The bookie certainly does not have it."""
    DAMAGED = "damaged"
    """It is certainly damaged, or a file that may hold it is lost or damaged."""
    UNREADABLE = "unreadable"
    """It could not be read just now."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an entry cannot be used, from any of its places on the bookie."""

    kind: RefusalKind
    reason: str


class Verified(NamedTuple):
    """An entry that matches its digest."""

    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verifying some entries on a bookie."""

    good: Mapping[int, Verified]
    """Entries that were read, match their digests, and are durable from now on (rule R9b)."""
    refused: Mapping[int, Refusal]
    spoilt: Mapping[int, str] = field(default_factory=dict)
    """Good entries whose files are damaged outside the entries, each with the reason."""
