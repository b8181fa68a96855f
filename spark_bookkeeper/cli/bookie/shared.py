"""Warnings about disks, buckets and machines that bookies share: they are lost at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from spark_bookkeeper.cli.shell.cluster_options import Access
from spark_bookkeeper.doctor.failure_domains import (
    Place,
    Shared,
    may_be_on_a_disk,
    place_of,
    shared_with,
)
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime

_LOOKS_AT_ONCE: Final = 64
"""Each look needs one thread, and hardly anything else."""

_OPENING_SECONDS: Final = 5.0
"""The time to open storages, in addition to a bookie's time-out."""


def what_is_shared(
    access: Access,
    store: MetadataStore,
    roots: Mapping[BookieId, str],
    *,
    seen: Mapping[BookieId, Place] | None = None,
    with_trying: bool = True,
) -> Sequence[str]:
    """Return a line for each disk, bucket or machine that these bookies share with each other, or
    with other known bookies.

    Bookies that may be on a disk are examined in parallel, these first. A bookie without an answer
    in time counts as being on a disk that is not visible from here.

    Args:
        roots: the roots of these bookies.
        seen: known places of some bookies, which are not examined again.
        with_trying: also report bookies on the loopback address, which are made for trials.
    """
    known = {each.value.bookie_id: each.value.root_uri for each in store.cookies()}
    known |= {live.bookie_id: live.root_uri for live in store.registrations()}
    places = {**_places(access, {**roots, **known, **roots}, seen or {}), **(seen or {})}
    found = dict.fromkeys(each for name in roots for each in shared_with(name, places))
    return [_warning(each) for each in found if with_trying or not each.is_for_trying]


def _places(
    access: Access, roots: Mapping[BookieId, str], seen: Collection[BookieId]
) -> Mapping[BookieId, Place]:
    """Return the places of bookies, as far as they are known in time."""
    runtime = ThreadRuntime()
    places = {bookie_id: Place(root) for bookie_id, root in roots.items()}

    def look(bookie_id: BookieId) -> None:
        places[bookie_id] = _place_at(access, bookie_id, roots[bookie_id])

    def look_at_all() -> None:
        runtime.map(look, [each for each in roots if each not in seen], _LOOKS_AT_ONCE)

    runtime.spawn("places", look_at_all).join(
        access.conf.client.bookie_timeout_ms / 1000 + _OPENING_SECONDS
    )
    return dict(places)


def _warning(found: Shared) -> str:
    return (
        f"{found}: what loses one loses the others, and perhaps every copy of an entry. For "
        f"data that matters, give each bookie its own {found.what}"
    )


def _place_at(access: Access, bookie_id: BookieId, root_uri: str) -> Place:
    """Return the place of a bookie's storage, as far as it is visible from here."""
    if not may_be_on_a_disk(root_uri):
        return Place(root_uri)
    try:
        partition = access.open_root(root_uri, ThreadRuntime())
    except (BookKeeperError, OSError):
        return Place(root_uri)
    try:
        return place_of(partition, bookie_id)
    finally:
        partition.close()
