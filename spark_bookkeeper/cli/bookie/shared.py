"""Saying what a bookie shares with others, and would be lost with them."""

from __future__ import annotations

from collections.abc import Sequence

from spark_bookkeeper.cli.shell.cluster_options import Access
from spark_bookkeeper.cluster.sharing import Place, Shared, place_of, shared_with
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime


def what_is_shared(
    access: Access,
    store: MetadataStore,
    place: Place,
    name: BookieId,
    *,
    with_trying: bool = True,
) -> Sequence[str]:
    """A line for each disk, bucket or machine that a bookie shares with others that are known.

    Args:
        place: of this bookie.
        with_trying: also of clusters that are made to be tried.
    """
    runtime = ThreadRuntime()
    roots = {known.value.bookie_id: known.value.root_uri for known in store.cookies()}
    roots |= {live.bookie_id: live.root_uri for live in store.registrations()}
    roots.pop(name, None)
    others = dict(runtime.map(lambda item: (item[0], place_at(access, *item)), list(roots.items())))
    found = shared_with(name, {**others, name: place})
    return [_warning(each) for each in found if with_trying or not each.is_for_trying]


def _warning(found: Shared) -> str:
    return (
        f"{found}: what loses one loses the others, and perhaps every copy of an entry. For "
        f"data that matters, give each bookie its own {found.what}"
    )


def place_at(access: Access, bookie_id: BookieId, root_uri: str) -> Place:
    """Where a bookie's storage is, as far as it is seen from here."""
    try:
        storage = access.open_root(root_uri, ThreadRuntime())
    except BookKeeperError:
        return Place(root_uri)
    try:
        return place_of(storage, bookie_id)
    finally:
        storage.close()
