"""What became of entries that a bookie was asked to verify: good, or refused, and why."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class RefusalKind(enum.Enum):
    """What it means that an entry cannot be used."""

    ABSENT = "absent"
    """It is certainly not there."""
    DAMAGED = "damaged"
    """It is certainly not as it was written, or what it may be in is lost or damaged."""
    UNREADABLE = "unreadable"
    """It could not be read just now."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an entry cannot be used, from whichever of its places on the bookie."""

    kind: RefusalKind
    reason: str


class Verified(NamedTuple):
    """An entry that is as it was written."""

    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a bookie really has of some entries."""

    good: Mapping[int, Verified]
    """Read, compared with their digests, and durable from now on (SLOT-LOG rule R9b)."""
    refused: Mapping[int, Refusal]
    spoilt: Mapping[int, str] = field(default_factory=dict)
    """Of the good ones, those in files that are damaged around them, with the reason."""
