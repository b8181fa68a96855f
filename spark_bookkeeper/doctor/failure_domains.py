"""Failure domains: bookies that are lost at once, as they share a disk, a bucket or a machine.

The bookies of an entry are chosen by free space and chance. If they share a failure domain, one
failure loses several copies of the entry, and perhaps every copy.
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
"""The directory in which Linux names disks by their numbers."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a bookie's storage."""

    root_uri: str
    disk: str | None = None
    """The disk that holds it, as named by this machine; ``None`` if not visible from here."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A failure domain of several bookies."""

    what: What
    name: str
    bookies: tuple[BookieId, ...]
    """In ascending order."""

    def __str__(self) -> str:
        return f"{' and '.join(self.bookies)} share the {self.what} {self.name}"

    @property
    def is_for_trying(self) -> bool:
        """Whether they belong to a cluster for trials."""
        return are_for_trying(self.bookies)


def are_for_trying(bookies: Iterable[BookieId]) -> bool:
    """Whether all are on the loopback address, as in a cluster for trials."""
    return all(_host(bookie) in _LOOPBACK for bookie in bookies)


def shared(places: Mapping[BookieId, Place]) -> Sequence[Shared]:
    """Return the failure domains of several bookies, by kind and name.

    A machine is left out if exactly its bookies share a disk.
    """
    groups: dict[tuple[What, str], list[BookieId]] = {}
    for bookie in sorted(places):
        for key in _keys(bookie, places[bookie]):
            groups.setdefault(key, []).append(bookie)
    found = [Shared(what, name, tuple(them)) for (what, name), them in groups.items() if them[1:]]
    on_disks = {each.bookies for each in found if each.what == "disk"}
    return [each for each in found if each.what != "machine" or each.bookies not in on_disks]


def shared_with(bookie_id: BookieId, places: Mapping[BookieId, Place]) -> Sequence[Shared]:
    """Return the failure domains that one bookie shares with others."""
    return [each for each in shared(places) if bookie_id in each.bookies]


def place_of(partition: Partition, bookie_id: BookieId, *, is_new: bool = False) -> Place:
    """Return the place of a partition.

    A path names a directory of this machine, which may differ from the directory that the bookie
    means. So the disk is returned only if the bookie's marker is found there.

    Args:
        partition: with a time-out, for it may hang.
        bookie_id: the id that its marker should have.
        is_new: the partition is about to be formatted here, and has no marker yet.
    """
    if not may_be_on_a_disk(partition.uri):
        return Place(partition.uri)
    try:
        marker = partition.marker()
        if is_new or (marker is not None and marker.bookie_id == bookie_id):
            return Place(partition.uri, _disk(unquote(_split(partition.uri).path)))
    except (BookKeeperError, OSError):
        pass  # not visible from here
    return Place(partition.uri)


def may_be_on_a_disk(root_uri: str) -> bool:
    """Whether a root is a directory, which is on some disk, and not a bucket."""
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
    """Return the parts of a root; empty ones if it is no URI: a registration may say anything."""
    try:
        return urlsplit(uri)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _host(bookie: BookieId) -> str:
    return bookie.rpartition(":")[0]


def _disk(path: str) -> str:
    """Return the name of the disk that holds a path; partitions of one disk have one name."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    device = _DEVICES / name
    if not device.exists():  # a mount without a disk of its own, or no Linux
        return name
    device = device.resolve()
    return device.parent.name if (device / "partition").exists() else device.name
