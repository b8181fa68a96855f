"""The Rereplication process for many small fragments, in batches.

Each fragment has its own ``FragmentCopy`` and ``Reader``, which decide about it. This module only
batches the calls: it reads the metadata of all, copies the shares of all, and replaces the bookies
of all in one batch of writes. It leaves large fragments, and any fragment with a problem, to
``rereplicate_fragment``.

Source: as ``rereplicate.py``; the order of the steps of each share is the same (rule R13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_bookkeeper.client.bookies.batch_client import BatchClient
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.batch_copy import SMALL_BYTES, SMALL_ENTRIES, SmallCopy
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.protocol.collection import being_removed
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.batch_publish import PlannedCopies, copy_and_publish
from spark_bookkeeper.replication.rates import throttle_for
from spark_bookkeeper.replication.rereplicate import (
    FragmentCopy,
    FragmentWork,
    RefusedError,
    ShareCopied,
    Successor,
    with_successors,
)
from spark_bookkeeper.replication.runner import Bounds
from spark_bookkeeper.replication.shares import in_order, share_bytes, share_of
from spark_bookkeeper.replication.targets import Targets


def rereplicate_many(
    context: ClientContext, works: Sequence[FragmentWork], bounds: Bounds
) -> Sequence[Sequence[ShareCopied] | None]:
    """Return the results of the fragments whose lost shares were all copied; ``None`` for every
    other, which ``rereplicate_fragment`` must do. No error is raised for a fragment.

    Args:
        works: all with the same limit, as a job gives it to them.
        bounds: its ``told`` gets the results of each fragment as soon as it is done.
    """
    if not works:
        return []
    small = {
        number: work
        for number, work in enumerate(works)
        if work.size_bytes <= SMALL_BYTES and not work.ahead
    }

    def plan(together: BatchClient, numbers: Sequence[int]) -> Mapping[int, PlannedCopies]:
        return _planned(context, together, {number: works[number] for number in numbers})

    throttle = throttle_for(context, works[0].bytes_per_second, works[0].rate_now, bounds.shares)
    done: dict[int, Sequence[ShareCopied]] = {}
    for number, shares in copy_and_publish(context, small, plan, throttle, bounds.is_ending):
        done[number] = shares
        bounds.told(number, shares)
    return [done.get(number) for number in range(len(works))]


def _planned(
    context: ClientContext, together: BatchClient, works: Mapping[int, FragmentWork]
) -> Mapping[int, PlannedCopies]:
    """Return the planned copies by number of the work; leave out works with a problem."""
    numbers = {work.ledger_id: number for number, work in works.items()}
    known = list(context.store.read_ledgers(list(numbers)))
    # The session delivered every earlier change before the last of these replies.
    alive = context.bookies.last_registrations()
    choosers: dict[object, Targets] = {}
    planned: dict[int, PlannedCopies] = {}
    for ledger_id, found in known:
        number = numbers[ledger_id]
        if isinstance(found, Versioned):
            work = works[number]
            key = work.lost, work.target
            if key not in choosers:
                choosers[key] = Targets(context.bookies, alive, *key)
            try:
                fragment = _plan(context, together, work, found, choosers[key])
            except (BookKeeperError, RefusedError):
                continue
            if fragment is not None:
                planned[number] = fragment
    return planned


def _plan(
    context: ClientContext,
    together: BatchClient,
    work: FragmentWork,
    found: Versioned[LedgerMetadata],
    targets: Targets,
) -> PlannedCopies | None:
    metadata = found.value
    ledger = Ledger.of(work.ledger_id, metadata)
    fragment = metadata.fragment_range(work.first_entry_id)
    is_planned = work.nonce is None or work.nonce == metadata.nonce
    if not is_planned or fragment is None or fragment.last_entry_id is None:
        return None
    if fragment.last_entry_id - fragment.first_entry_id >= SMALL_ENTRIES:
        return None
    copy = FragmentCopy(context, work, ledger, fragment, found, targets)
    lost = copy.lost
    if any(copy.is_back(bookie) for _, bookie in lost):
        return None
    removing = being_removed(metadata, copy.alive)
    chosen: dict[int, Successor] = {}
    copies: list[SmallCopy] = []
    for position, _ in lost:
        taken = [successor.bookie for successor in chosen.values()]
        target = targets.choose(ledger, fragment, position, taken, removing)
        incarnation = copy.alive[target].incarnation
        chosen[position] = Successor(target, incarnation)
        entries = share_of(ledger, position, fragment.first_entry_id, fragment.last_entry_id)
        replica = together.replica(target, ledger, incarnation)
        others = [p for p, bookie in enumerate(fragment.ensemble) if bookie != target]
        preference = in_order(fragment.ensemble, others, [bookie for _, bookie in lost])
        copies.append(SmallCopy(ledger, fragment.ensemble, entries, replica, preference))
    new = with_successors(metadata, fragment, chosen, metadata)
    if new is None:
        return None
    size = share_bytes(metadata, fragment) * len(copies) if metadata.is_closed else None

    def done() -> Sequence[ShareCopied]:
        return [
            copy.replicated(bookie, share.target_id, len(share.entries), share.size_bytes)
            for (_, bookie), share in zip(lost, copies, strict=True)
        ]

    change = LedgerChange(work.ledger_id, new, found)
    return PlannedCopies(copies, size, change, done)
