"""The dry run of ``recover_bookie``: every share that a run would copy, its sources, its target,
and the number of copies afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.client.ledger import Ledger, live_members, registered_incarnations
from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.collection import being_removed
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.underreplication import (
    MissingReplica,
    entries_at,
    live_copies,
    missing_replicas,
    unreadable_without,
)
from spark_bookkeeper.replication.report import ROW_SCHEMA, Outcome, Row, ShareResult, values_of
from spark_bookkeeper.replication.targets import Targets

PLAN_SCHEMA: Final = pa.schema(
    [
        *ROW_SCHEMA,
        pa.field("sources", pa.list_(pa.string())),
        pa.field("live_copies", pa.int64()),
        pa.field("live_copies_after", pa.int64()),
        pa.field("only_if_read", pa.list_(pa.list_(pa.string()))),
    ]
)


@dataclass(frozen=True, slots=True)
class PlanRow(Row):
    """A row of a plan."""

    SCHEMA: ClassVar[pa.Schema] = PLAN_SCHEMA
    sources: tuple[str, ...] | None = None
    """Live bookies that have entries of the share: the run copies from them. If no live bookie has
    an entry, also the lost bookies, because their storage may still be readable."""
    live_copies: int | None = None
    """The fewest live copies of any entry of the fragment, on bookies that are up and not lost."""
    live_copies_after: int | None = None
    """The same once the whole plan for the fragment is done; unchanged where it is unknown whether
    every entry can be read."""
    only_if_read: tuple[tuple[str, ...], ...] | None = None
    """Groups of lost bookies. No live bookie has some entry, so the storage of one bookie in each
    group must still be readable. ``None``: live bookies have every entry."""


@dataclass(frozen=True, slots=True)
class PlannedShare(ShareResult):
    """The planned copy of one lost bookie's share of a fragment, or why a run would leave it."""

    ROW = PlanRow
    VALUES = values_of(PlanRow)
    sources: tuple[BookieId, ...] | None = None
    live_copies: int | None = None
    live_copies_after: int | None = None
    only_if_read: tuple[tuple[BookieId, ...], ...] | None = None

    @property
    @override
    def action(self) -> str:
        # A share without entries only changes metadata. An open share may yet get entries.
        is_empty = self.target is not None and self.last_entry_id is not None and not self.entries
        return "metadata" if is_empty else "copy"


def planned_shares(
    ledger: Ledger,
    lost: Sequence[BookieId],
    targets: Targets,
    alive: Mapping[BookieId, Registration],
    *,
    with_open_end: bool,
) -> Iterator[PlannedShare]:
    """Yield what a run would do for one ledger and what it would leave, as far as that is known.

    Args:
        with_open_end: whether to include the last fragment while it is open.
    """
    metadata = ledger.metadata
    live = live_members(metadata, registered_incarnations(alive), lost)
    removing = being_removed(metadata, alive)
    by_fragment: dict[int, list[MissingReplica]] = {}
    for missing in missing_replicas(metadata, lost):
        if with_open_end or missing.fragment.last_entry_id is not None:
            by_fragment.setdefault(missing.fragment.index, []).append(missing)
    for replicas in by_fragment.values():
        yield from _planned_fragment(ledger, replicas, targets, live, removing)


def _planned_fragment(
    ledger: Ledger,
    replicas: Sequence[MissingReplica],
    targets: Targets,
    live: frozenset[BookieId],
    removing: Mapping[BookieId, str],
) -> Iterator[PlannedShare]:
    fragment = replicas[0].fragment
    quorum = ledger.metadata.quorum
    chosen: dict[int, BookieId] = {}
    refused: dict[int, str] = {}
    for replica in replicas:
        try:
            target = targets.choose(
                ledger, fragment, replica.position, [*chosen.values()], removing
            )
        except NotEnoughBookiesError as error:
            refused[replica.position] = error.message
        else:
            chosen[replica.position] = target
    ensemble = tuple(chosen.get(p, bookie) for p, bookie in enumerate(fragment.ensemble))
    now = live_copies(quorum, fragment, live)
    after = live_copies(quorum, replace(fragment, ensemble=ensemble), live.union(chosen.values()))
    unread = {r.position: _unread(quorum, fragment, r.position, live) for r in replicas}
    if any(unread.values()):
        after = now
    for replica in replicas:
        lone = unread[replica.position]
        doubt = f"; {only_if_read(lone)}" if lone else ""
        share = PlannedShare(
            ledger.ledger_id,
            Outcome.PLANNED,
            f"{now} live {'copy' if now == 1 else 'copies'} at the least{doubt}",
            fragment.first_entry_id,
            fragment.last_entry_id,
            replica.bookie,
            chosen.get(replica.position),
            sources=_sources(ledger.metadata, fragment, replica.position, live.union(*lone)),
            live_copies=now,
            live_copies_after=after,
            only_if_read=tuple(map(tuple, lone)) or None,
        )
        if replica.position in refused:
            yield replace(share, status=Outcome.LEFT, reason=refused[replica.position])
        elif fragment.last_entry_id is None:
            later = f"{share.reason}; how much there is to copy is known when it is closed"
            yield replace(share, reason=later)
        else:
            yield _measured(share, ledger.metadata, fragment, replica.position)


def only_if_read(groups: Sequence[Sequence[str]]) -> str:
    """Return, in words, which storage a share needs when no live bookie has all of it."""
    needed = ", and of ".join(" or ".join(bookies) for bookies in groups)
    return f"only if the storage of {needed} can still be read"


def _measured(
    share: PlannedShare, metadata: LedgerMetadata, fragment: FragmentRange, position: int
) -> PlannedShare:
    """Return the share with the entries and bytes to copy."""
    first, last = fragment.first_entry_id, fragment.last_entry_id
    assert last is not None
    count = sum(map(len, entries_at(metadata.quorum, position, first, last)))
    total = (metadata.last_entry_id or 0) + 1
    size = (metadata.length_bytes or 0) * count // total if total else 0
    return replace(share, entries=count, bytes=size)


def _sources(
    metadata: LedgerMetadata, fragment: FragmentRange, position: int, live: frozenset[BookieId]
) -> tuple[BookieId, ...]:
    """Return the live bookies that share a write set with a position, by their own positions.

    A lost bookie whose storage may still be readable counts as live.
    """
    shared = {
        p for write_set in metadata.quorum.write_sets() if position in write_set for p in write_set
    }
    return tuple(fragment.ensemble[p] for p in sorted(shared) if fragment.ensemble[p] in live)


def _unread(
    quorum: Quorum, fragment: FragmentRange, position: int, live: frozenset[BookieId]
) -> Sequence[Sequence[BookieId]]:
    """Return groups of lost bookies. One of each must be readable: no live one has its entries."""
    if fragment.last_entry_id is not None:
        return unreadable_without(quorum, fragment, position, live)
    # The entries of an open fragment are unknown until it is closed, so it may have any.
    written = ([fragment.ensemble[p] for p in w] for w in quorum.write_sets() if position in w)
    return [bookies for bookies in written if not live.intersection(bookies)]
