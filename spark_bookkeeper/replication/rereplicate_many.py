"""The Rereplication process for many small fragments, which go from step to step together.

Each has its own ``FragmentCopy`` and ``Reader``, and what is decided about it is decided there.
Here is only who is asked when: the metadata of all are read together, the shares are copied
together, and the bookies of all are replaced by writes that travel together. What is large, and
any share with which something is the matter, is for ``rereplicate_fragment``.

Source: as ``rereplicate.py``; the order of the steps of each share is the same (rule R13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.client.bookies.together import Together
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.copying_many import SMALL_BYTES, SmallCopy, copy_many
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.protocol.collection import being_removed
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.replication.rereplicate import (
    FragmentCopy,
    FragmentWork,
    RefusedError,
    ShareCopied,
    Successor,
    with_successors,
)
from spark_bookkeeper.replication.shares import in_order, share_of
from spark_bookkeeper.replication.targets import Targets


def rereplicate_many(
    context: ClientContext, works: Sequence[FragmentWork]
) -> Sequence[Sequence[ShareCopied] | None]:
    """What became of the fragments of which one share was to be made again, and was; ``None`` for
    every other, which is for ``rereplicate_fragment``. Nothing is raised for any of them.
    """
    together = Together(context.bookies, context.runtime)
    shares = _planned(context, together, works)
    copied = copy_many(context, together, {number: s.share for number, s in shares.items()})
    published = _published(context, {number: shares[number] for number in copied})
    return [published.get(number) for number in range(len(works))]


@dataclass(slots=True, eq=False)
class _Share:
    """The only lost share of a fragment, and how far it has come."""

    copy: FragmentCopy
    position: int
    incarnation: str
    """Of the target."""
    share: SmallCopy


_Shares = Mapping[int, _Share]
"""By the number of the work. Those with which something is the matter drop out."""


def _planned(context: ClientContext, together: Together, works: Sequence[FragmentWork]) -> _Shares:
    """Of each ledger one fragment: two would get into each other's way at the end."""
    numbers: dict[LedgerId, int] = {}
    for number, work in enumerate(works):
        if work.size_bytes <= SMALL_BYTES and work.bytes_per_second is None and not work.ahead:
            numbers.setdefault(work.ledger_id, number)
    known = list(context.store.read_ledgers(list(numbers)))
    # The last of these answers came with every change before it.
    alive = context.bookies.last_registrations()
    choosers: dict[object, Targets] = {}
    shares: dict[int, _Share] = {}
    for ledger_id, found in known:
        number = numbers[ledger_id]
        if isinstance(found, Versioned):
            work = works[number]
            key = work.lost, work.target
            if key not in choosers:
                choosers[key] = Targets(context.bookies, alive, *key)
            try:
                share = _plan(context, together, work, found, choosers[key])
            except BookKeeperError:
                continue
            if share is not None:
                shares[number] = share
    return shares


def _plan(
    context: ClientContext,
    together: Together,
    work: FragmentWork,
    found: Versioned[LedgerMetadata],
    targets: Targets,
) -> _Share | None:
    ledger = Ledger.of(work.ledger_id, found.value)
    fragment = found.value.fragment_range(work.first_entry_id)
    is_planned = work.nonce is None or work.nonce == found.value.nonce
    if not is_planned or fragment is None or fragment.last_entry_id is None:
        return None
    copy = FragmentCopy(context, work, ledger, fragment, found, targets)
    if len(copy.lost) != 1 or copy.is_back(copy.lost[0][1]):
        return None
    position, _ = copy.lost[0]
    removing = being_removed(found.value, copy.alive)
    target = copy.targets.choose(ledger, fragment, position, (), removing)
    incarnation = copy.alive[target].incarnation
    entries = share_of(ledger, position, fragment.first_entry_id, fragment.last_entry_id)
    replica = together.replica(target, ledger, incarnation)
    others = [p for p, bookie in enumerate(fragment.ensemble) if bookie != target]
    preference = in_order(fragment.ensemble, others, [bookie for _, bookie in copy.lost])
    share = SmallCopy(ledger, fragment.ensemble, entries, replica, preference)
    return _Share(copy, position, incarnation, share)


def _published(context: ClientContext, shares: _Shares) -> dict[int, Sequence[ShareCopied]]:
    """Those whose targets have taken the places of the lost bookies."""
    changes: dict[int, LedgerChange] = {}
    for number, share in shares.items():
        found = share.copy.known
        assert found is not None
        successor = Successor(share.share.target_id, share.incarnation)
        try:
            chosen = {share.position: successor}
            new = with_successors(found.value, share.copy.fragment, chosen, found.value)
        except RefusedError:
            continue
        if new is not None:
            changes[number] = LedgerChange(share.copy.ledger.ledger_id, new, found)
    done: dict[int, Sequence[ShareCopied]] = {}
    if not changes:
        return done
    answers = context.store.write_ledgers(list(changes.values()))
    for number, answer in zip(changes, answers, strict=True):
        if isinstance(answer, Versioned):
            share = shares[number]
            (_, lost), copied = share.copy.lost[0], share.share
            entries, size = len(copied.entries), copied.size_bytes
            done[number] = [share.copy.replicated(lost, copied.target_id, entries, size)]
    return done
