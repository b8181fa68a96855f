"""The health of a bookie's storage, and the registration that follows from it.

======================================================  ==================
seen                                                    registration
======================================================  ==================
the right incarnation, writing and reading work         writable
the same, but space is short or the disk is full        read-only
the same, but the bookie's cookie is gone               read-only
the same, but an operator orders it (``readonly.py``)   read-only
the right incarnation can be read and not written       read-only
no answer, another marker, no marker, other bytes,      none
the marker and no directory of ledgers
======================================================  ==================

``observe`` probes the storage; ``decide`` applies this table. A partition that was formatted again
is another incarnation. Its agent serves it once the bookie's cookie names it (``agent.py``).

Source: BookKeeper ``bookie/LedgerDirsMonitor`` (read-only and back, with two marks).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import NotWrittenError, Partition
from spark_bookkeeper.client.cluster_clock import SAME_CLOCK_SECONDS
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import BookieFullError, BookKeeperError
from spark_bookkeeper.metadata.store import CLOCK_AHEAD, READONLY_CAUSES, READONLY_REASON
from spark_bookkeeper.protocol.balance import usable_bytes

log = logging.getLogger(__name__)

BY_HAND: Final = "by-hand"
NO_COOKIE: Final = "no-cookie"
SHORT_OF_SPACE: Final = "short-of-space"
FULL: Final = "full"
NOT_WRITTEN: Final = "not-written"
"""Causes for which a bookie is read-only, as registrations contain them."""

_NEWS = 0.05
"""The share of all bytes, or inodes, by which the free ones must change to be published again."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one probe of the storage."""

    problem: str | None = None
    """Why the storage cannot be relied on; ``None`` when it is the right one and answers."""
    is_full: bool = False
    """Whether a write was refused for lack of space."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    inodes: tuple[int, int] | None = None
    """Free inodes, and all inodes."""
    lacks_cookie: bool = False
    """Whether the bookie's cookie was deleted. Its data can still be read. It takes no new data,
    because it could not start again once stopped."""
    order: str | None = None
    """Why an operator made it read-only by hand; ``None`` without such an order."""
    write_error: str | None = None
    """Why writing fails though reading works: the file system became read-only after an error, or a
    bucket lacks the permission."""
    clock_ahead_s: int = 0
    """How far this machine's clock is ahead of the cluster's; negative if it is behind."""
    other: Marker | None = None
    """The marker that was found, if it is not the expected one."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published registration, and its reasons.

    A bookie is read-only because space is short, its cookie is gone, an operator ordered it, or it
    cannot be written. Several reasons may hold, and each is kept, since each may end by itself.
    """

    is_short: bool
    """Whether space is short."""
    seen: Observation

    lacks_inodes: bool = False
    """Whether inodes, and not bytes, are short."""

    @property
    def is_readonly(self) -> bool:
        """Whether the bookie takes no new data."""
        return self.readonly_reason is not None

    @property
    def readonly_reason(self) -> str | None:
        """Why it takes no new data, for people: every reason that holds. ``None`` if none holds."""
        return "; ".join(self.readonly_causes.values()) or None

    @property
    def readonly_causes(self) -> Mapping[str, str]:
        """The reasons, by cause."""
        causes: dict[str, str] = {}
        if self.seen.order is not None:
            causes[BY_HAND] = f"set by hand: {self.seen.order}"
        if self.seen.lacks_cookie:
            causes[NO_COOKIE] = "its cookie was deleted"
        if self.is_short:
            what = "inodes are" if self.lacks_inodes else "space is"
            causes[SHORT_OF_SPACE] = f"{what} short"
        if self.seen.is_full:
            causes[FULL] = "its disk is full"
        if self.seen.write_error is not None:
            causes[NOT_WRITTEN] = f"it cannot be written: {self.seen.write_error}"
        return causes

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that a registration contains."""
        told = {CLOCK_AHEAD: str(self.seen.clock_ahead_s)} if self.seen.clock_ahead_s else {}
        if self.readonly_reason is not None:
            told[READONLY_REASON] = self.readonly_reason
            told[READONLY_CAUSES] = ",".join(self.readonly_causes)
        return told


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep the registration, or its absence, as it is."""


@dataclass(frozen=True, slots=True)
class Register:
    """Publish this state for the first time, or in place of the published one."""

    state: Published


@dataclass(frozen=True, slots=True)
class Unregister:
    """Remove the registration."""

    reason: str


def decide(
    published: Published | None, seen: Observation, config: BookieConfig
) -> Stay | Register | Unregister:
    """Return what to do with the registration, from the published state and the latest probe."""
    if seen.problem is not None:
        return Stay() if published is None else Unregister(seen.problem)
    is_short = _is_short(published, seen, config)
    lacks_inodes = is_short and (
        _left(seen) < config.writable_above_free_bytes <= (seen.free_bytes or 0)
    )
    state = Published(is_short, seen, lacks_inodes)
    if (
        published is None
        or published.readonly_reason != state.readonly_reason
        or _is_news(published.seen, seen)
    ):
        return Register(state)
    return Stay()


def _is_short(published: Published | None, seen: Observation, config: BookieConfig) -> bool:
    """Between the two marks a bookie keeps its state, and a new one is writable."""
    if seen.is_full:
        return True
    was_short = published is not None and published.is_short
    mark = config.writable_above_free_bytes if was_short else config.readonly_below_free_bytes
    return _left(seen) < mark


def _left(seen: Observation) -> float:
    if seen.free_bytes is None or seen.total_bytes is None:
        return math.inf
    return usable_bytes((seen.free_bytes, seen.total_bytes), seen.inodes)


def _is_news(before: Observation, seen: Observation) -> bool:
    if abs(before.clock_ahead_s - seen.clock_ahead_s) > SAME_CLOCK_SECONDS:
        return True
    (had, _), (has, most) = (each.inodes or (None, None) for each in (before, seen))
    return _moved(had, has, most) or _moved(before.free_bytes, seen.free_bytes, seen.total_bytes)


def _moved(had: int | None, has: int | None, most: int | None) -> bool:
    if had is None or has is None or not most:
        return had != has
    return abs(had - has) > _NEWS * most


def observe(partition: Partition, expected: Marker, token: Callable[[], str]) -> Observation:
    """Probe a partition: its marker, its directory of ledgers, its space, and a small file that is
    written, synced and read.

    Nothing is written to storage without the expected marker.
    """
    try:
        found = partition.marker()
        if found is None:
            return Observation("the storage holds no BOOKIE marker: not mounted, or wiped")
        if found != expected:
            return Observation(
                f"the storage is incarnation {found.incarnation} of bookie {found.bookie_id} in "
                f"cluster {found.instance_id}, not {expected.incarnation} of {expected.bookie_id} "
                f"in {expected.instance_id}",
                other=found,
            )
        lost = partition.lost_directory(found)
        if lost is not None:
            return Observation(lost)
        is_full, write_error = False, None
        try:
            partition.write_and_read(token())
        except BookieFullError:
            is_full = True
        except NotWrittenError as error:
            write_error = str(error)
            if partition.marker() != expected:  # whether it can still be read
                return Observation(write_error)
        free_bytes, total_bytes = partition.space() or (None, None)
        inodes = partition.inodes()
    except BookKeeperError as error:
        return Observation(error.message)
    return Observation(None, is_full, free_bytes, total_bytes, inodes, write_error=write_error)
