"""Refill many small ledgers of a bookie whose disk was replaced, in batches.

``refill_ledger.py`` decides when a ledger is refilled, and its metadata then. This module only
batches the calls. It leaves large ledgers, and any ledger with a problem, to ``refill_ledger``.
Each ledger takes the same steps in the same order as there (rule R13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_bookkeeper.client.bookies.batch_client import BatchClient
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.batch_copy import SMALL_BYTES, SMALL_ENTRIES, SmallCopy
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import LedgerChange, Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata
from spark_bookkeeper.replication.batch_publish import PlannedCopies, copy_and_publish
from spark_bookkeeper.replication.rates import throttle_for
from spark_bookkeeper.replication.refill_ledger import (
    RefillRefusedError,
    RefillWork,
    entries_of,
    filled,
    fragments_with,
    refill_blocker,
    with_refilled_bookie,
)
from spark_bookkeeper.replication.rereplicate import ShareCopied
from spark_bookkeeper.replication.runner import Bounds
from spark_bookkeeper.replication.shares import share_bytes


def refill_many(
    context: ClientContext, works: Sequence[RefillWork], bounds: Bounds
) -> Sequence[Sequence[ShareCopied] | None]:
    """Return the shares of the refilled ledgers; ``None`` for every other, which ``refill_ledger``
    must do. No error is raised for a ledger.

    Args:
        works: of different ledgers, all with the same limit, as a job gives it to them.
        bounds: its ``told`` gets the shares of each ledger as soon as they are refilled.
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

    throttle = throttle_for(context, works[0].bytes_per_second, shares=bounds.shares)
    done: dict[int, Sequence[ShareCopied]] = {}
    for number, shares in copy_and_publish(context, small, plan, throttle, bounds.is_ending):
        done[number] = shares
        bounds.told(number, shares)
    return [done.get(number) for number in range(len(works))]


def _planned(
    context: ClientContext, together: BatchClient, works: Mapping[int, RefillWork]
) -> Mapping[int, PlannedCopies]:
    """Return the planned copies by number of the work; leave out works with a problem."""
    numbers = {work.ledger_id: number for number, work in works.items()}
    known = list(context.store.read_ledgers(list(numbers)))
    # The session delivered every earlier change before the last of these replies.
    alive = context.bookies.last_registrations()
    planned: dict[int, PlannedCopies] = {}
    for ledger_id, found in known:
        if isinstance(found, Versioned):
            number = numbers[ledger_id]
            try:
                ledger = _plan(together, works[number], found, alive)
            except (BookKeeperError, RefillRefusedError):
                continue
            if ledger is not None:
                planned[number] = ledger
    return planned


def _plan(
    together: BatchClient,
    work: RefillWork,
    found: Versioned[LedgerMetadata],
    alive: Mapping[BookieId, Registration],
) -> PlannedCopies | None:
    metadata, bookie = found.value, work.bookie
    if work.nonce is not None and work.nonce != metadata.nonce:
        return None
    ledger = Ledger.of(work.ledger_id, metadata)
    fragments = fragments_with(metadata, bookie)
    if refill_blocker(alive, work, metadata) is not None:
        return None
    new = with_refilled_bookie(metadata, work, metadata, fragments)
    if new is None:
        return None
    if sum(map(_entries, fragments)) > SMALL_ENTRIES:
        return None
    copies: list[SmallCopy] = []
    for fragment in fragments:
        entries = entries_of(ledger, fragment, bookie)
        if not entries:
            return None  # without a copy, no call would notice that the bookie is away
        replica = together.replica(bookie, ledger, work.incarnation)
        others = [p for p, each in enumerate(fragment.ensemble) if each != bookie]
        copies.append(SmallCopy(ledger, fragment.ensemble, entries, replica, others))
    size = sum(share_bytes(metadata, f) for f in fragments) if metadata.is_closed else None

    def done() -> Sequence[ShareCopied]:
        return [
            filled(work, fragment, len(share.entries), share.size_bytes)
            for fragment, share in zip(fragments, copies, strict=True)
        ]

    return PlannedCopies(copies, size, LedgerChange(work.ledger_id, new, found), done)


def _entries(fragment: FragmentRange) -> int:
    """Return the number of entries; 0 for an open fragment, of which nothing is copied."""
    if fragment.last_entry_id is None:
        return 0
    return fragment.last_entry_id - fragment.first_entry_id + 1
