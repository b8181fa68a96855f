"""Which bookies would be lost together: those on one disk, in one bucket or on one machine.

Copies of an entry are on bookies that are chosen by free space and chance. What two of them share
is lost for both at once, and with it, perhaps, every copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId

What = Literal["disk", "bucket", "machine"]

_DEVICES: Final = Path("/sys/dev/block")
"""Where Linux names disks by their numbers."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the storage of a bookie is."""

    root_uri: str
    disk: str | None = None
    """The disk below it, as this machine names it; ``None`` where it is not seen from here."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Something that several bookies have in common."""

    what: What
    name: str
    bookies: tuple[BookieId, ...]
    """In order."""

    def __str__(self) -> str:
        return f"{' and '.join(self.bookies)} share the {self.what} {self.name}"

    @property
    def is_for_trying(self) -> bool:
        """Whether they are of a cluster that is made to be tried."""
        return are_for_trying(self.bookies)


def are_for_trying(bookies: Iterable[BookieId]) -> bool:
    """Whether bookies are of a cluster on the loopback address, which is made to be tried."""
    return all(_host(bookie) in _LOOPBACK for bookie in bookies)


def shared(places: Mapping[BookieId, Place]) -> Sequence[Shared]:
    """What several bookies share, by kind and name.

    Those on one disk are not told again for being on one machine.
    """
    groups: dict[tuple[What, str], list[BookieId]] = {}
    for bookie in sorted(places):
        for key in _keys(bookie, places[bookie]):
            groups.setdefault(key, []).append(bookie)
    found = [Shared(what, name, tuple(them)) for (what, name), them in groups.items() if them[1:]]
    on_disks = {each.bookies for each in found if each.what == "disk"}
    return [each for each in found if each.what != "machine" or each.bookies not in on_disks]


def shared_with(bookie_id: BookieId, places: Mapping[BookieId, Place]) -> Sequence[Shared]:
    """What one bookie shares with others."""
    return [each for each in shared(places) if bookie_id in each.bookies]


def place_of(partition: Partition, bookie_id: BookieId, *, is_new: bool = False) -> Place:
    """Where a partition is.

    A path names a directory of this machine, which need not be the one that the bookie means: its
    disk is told only where the bookie's marker is found.

    Args:
        partition: bounded, for it may hang.
        bookie_id: whose it should be.
        is_new: the partition is about to be formatted here, and has no marker yet.
    """
    if not may_be_on_a_disk(partition.uri):
        return Place(partition.uri)
    try:
        marker = partition.marker()
        if is_new or (marker is not None and marker.bookie_id == bookie_id):
            return Place(partition.uri, _disk(unquote(_split(partition.uri).path)))
    except (BookKeeperError, OSError):
        pass  # not seen from here
    return Place(partition.uri)


def may_be_on_a_disk(root_uri: str) -> bool:
    """Whether a root is a directory, so that it matters on which disk; no bucket."""
    return _split(root_uri).scheme == "file"


def _keys(bookie: BookieId, place: Place) -> Iterable[tuple[What, str]]:
    parts = _split(place.root_uri)
    if parts.scheme not in ("", "file"):
        yield "bucket", f"{parts.scheme}://{parts.netloc}"
        return
    if place.disk is not None:
        yield "disk", place.disk
    yield "machine", _host(bookie)


def _split(uri: str) -> SplitResult:
    """The parts of a root; none of what is no URI, for a registration may say anything."""
    try:
        return urlsplit(uri)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _host(bookie: BookieId) -> str:
    return bookie.rpartition(":")[0]


def _disk(path: str) -> str:
    """The name of the disk that a path is on; partitions of one disk have one name."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    device = _DEVICES / name
    if not device.exists():  # a mount without a disk of its own, or no Linux
        return name
    device = device.resolve()
    return device.parent.name if (device / "partition").exists() else device.name
