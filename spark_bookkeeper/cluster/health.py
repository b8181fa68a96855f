"""What an agent sees of its bookie's storage, and what the cluster is to be told of it.

======================================================  ==================
seen                                                    registration
======================================================  ==================
the right incarnation, writing and reading work         writable
the same, but space is short or the disk is full        read-only
the same, but the bookie's cookie is gone               read-only
no answer, a failed write, another marker, no marker,   none
the marker and no directory of ledgers
======================================================  ==================

``observe`` looks, and ``decide`` is that table.

Source: BookKeeper ``bookie/LedgerDirsMonitor`` (read-only and back, with two marks).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_bookkeeper.bookie.marker import Marker, lost_directory, read_marker
from spark_bookkeeper.bookie.partition import AGENT_PROBE_PREFIX
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import BookieFullError, BookieUnavailableError, BookKeeperError

log = logging.getLogger(__name__)

_NEWS = 0.05
"""Share of the total space by which free space changes before it is published anew."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look at the storage showed."""

    problem: str | None = None
    """Why the storage cannot be relied on; ``None`` when it is the right one and answers."""
    is_full: bool = False
    """A write was refused for lack of space."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    lacks_cookie: bool = False
    """The cluster has forgotten the bookie. What it has can be read; once stopped it could not be
    started, so it takes nothing new."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the cluster was told, and why.

    A bookie is read-only for want of space, of its cookie, or of both. Each reason is kept, since
    each may end while the other goes on.
    """

    is_short: bool
    """Space is short."""
    free_bytes: int | None
    total_bytes: int | None
    lacks_cookie: bool = False

    @property
    def is_readonly(self) -> bool:
        """Whether the bookie takes nothing new."""
        return self.is_short or self.lacks_cookie


@dataclass(frozen=True, slots=True)
class Stay:
    """What is published (or that nothing is) is still right."""


@dataclass(frozen=True, slots=True)
class Register:
    """Publish this instead of what is published, or for the first time."""

    state: Published


@dataclass(frozen=True, slots=True)
class Unregister:
    """Take back what is published."""

    reason: str


def decide(
    published: Published | None, seen: Observation, config: BookieConfig
) -> Stay | Register | Unregister:
    """What to tell the cluster, from what it was told and what is seen now."""
    if seen.problem is not None:
        return Stay() if published is None else Unregister(seen.problem)
    is_short = _is_short(published, seen, config)
    state = Published(is_short, seen.free_bytes, seen.total_bytes, seen.lacks_cookie)
    if published is None or _reasons(published) != _reasons(state) or _is_news(published, seen):
        return Register(state)
    return Stay()


def _reasons(state: Published) -> tuple[bool, bool]:
    return state.is_short, state.lacks_cookie


def _is_short(published: Published | None, seen: Observation, config: BookieConfig) -> bool:
    """Between the two marks a bookie stays what it is, and a new one is writable."""
    if seen.is_full:
        return True
    if seen.free_bytes is None:
        return False
    if published is not None and published.is_short:
        return seen.free_bytes < config.writable_above_free_bytes
    return seen.free_bytes < config.readonly_below_free_bytes


def _is_news(published: Published, seen: Observation) -> bool:
    if published.free_bytes is None or seen.free_bytes is None or not seen.total_bytes:
        return published.free_bytes != seen.free_bytes
    return abs(published.free_bytes - seen.free_bytes) > _NEWS * seen.total_bytes


def observe(storage: Storage, expected: Marker, token: Callable[[], str]) -> Observation:
    """Look at a partition: its marker, whether there is anything that holds its ledgers, its space,
    and a small file written, synced and read.

    Nothing is written to storage that does not show the expected marker.
    """
    try:
        found = read_marker(storage)
        if found is None:
            return Observation("the storage holds no BOOKIE marker: not mounted, or wiped")
        if found != expected:
            return Observation(
                f"the storage is incarnation {found.incarnation} of bookie {found.bookie_id} in "
                f"cluster {found.instance_id}, not {expected.incarnation} of {expected.bookie_id} "
                f"in {expected.instance_id}"
            )
        lost = lost_directory(storage, found)
        if lost is not None:
            return Observation(lost)
        is_full = not _write_and_read(storage, f"{AGENT_PROBE_PREFIX}{token()}")
        free_bytes, total_bytes = storage.space() or (None, None)
    except BookKeeperError as error:
        return Observation(error.message)
    return Observation(None, is_full, free_bytes, total_bytes)


def _write_and_read(storage: Storage, path: str) -> bool:
    """Whether there was space for a small file.

    Raises:
        BookieUnavailableError: the file could not be written or read back.
    """
    data = path.encode() * 16
    try:
        if not storage.put_if_absent(path, data) or storage.read(path) != data:
            raise BookieUnavailableError(
                f"{storage.uri}/{path} was written and does not read back as it was written"
            )
    except BookieFullError:
        return False
    finally:
        try:
            storage.delete(path)
        except BookKeeperError as error:
            log.info("%s/%s could not be removed: %s", storage.uri, path, error)
    return True
