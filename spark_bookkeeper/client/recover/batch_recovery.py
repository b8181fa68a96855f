"""Recover many ledgers in batches: all of them take each step at the same time.

Each ledger has its own ``LedgerRecovery``, which decides from the answers of the ledger's own
bookies. This module only schedules the calls: one batch of writes flags all ledgers, one call
fences them on each bookie, one call verifies their entries there, and one batch closes them. A
ledger with any problem (another writer, damage, a silent bookie, changed metadata) leaves the
batch. Then ``recover_ledger`` repeats its steps, finds most of them done, and can wait.

Source: as ``recovery.py``; the order of the steps of each ledger is the same (SLOT-LOG "Recover").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_bookkeeper.bookie.bookie import Bookie, LedgerRef, Verification
from spark_bookkeeper.bookie.holdings import LedgerTail
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.client.bookies.batch_client import BatchClient
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.batch_copy import SmallCopy, copy_many
from spark_bookkeeper.client.recover.recovery import LedgerRecovery, flag
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError
from spark_bookkeeper.metadata.store import LedgerChange, Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.recovery import Decision
from spark_bookkeeper.runtime.answer import Answer

Found = Mapping[LedgerId, Versioned[LedgerMetadata]]


def recover_many(context: ClientContext, wanted: Found) -> Found:
    """Close ledgers that no client closed; return the metadata of those that are closed now.

    The caller passes the others to ``recover_ledger``, which also reports their problem. Nothing is
    raised for any of them.

    Args:
        wanted: the ledgers, with their metadata as it was read before.
    """
    return _ManyRecoveries(context).run(wanted)


class _ManyRecoveries:
    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._together = BatchClient(context.bookies, context.runtime)
        self._ledgers: dict[LedgerId, Ledger] = {}
        self._under_way: dict[LedgerId, LedgerRecovery] = {}
        """The ledgers that had no problem so far."""

    def run(self, wanted: Found) -> Found:
        began = self._context.runtime.now()
        flagged = self._flag(wanted)
        for ledger_id, found in flagged.items():
            ledger = self._ledgers[ledger_id] = self._ledgers[ledger_id].with_metadata(found.value)
            self._under_way[ledger_id] = LedgerRecovery(self._context, ledger, found)
        self._fence()
        self._verify()
        closed = self._close(flagged, self._written_back())
        took = self._context.metrics.recovering.succeeded
        for _ in closed:  # each took as long as all of them
            took.observe((self._context.runtime.now() - began) * 1000)
        return closed

    # Step 1: flag

    def _flag(self, wanted: Found) -> Found:
        """Flag the ledgers; return those that are IN_RECOVERY now, with their metadata."""
        flagged: dict[LedgerId, Versioned[LedgerMetadata]] = {}
        changes: list[LedgerChange] = []
        for ledger_id, found in wanted.items():
            if found.value.is_closed:
                continue
            try:
                self._ledgers[ledger_id] = Ledger.of(ledger_id, found.value)
            except MetadataFormatError:
                continue  # another client's ledger is refused, and not flagged
            new = flag(found.value)
            if new is None:
                flagged[ledger_id] = found
            else:
                changes.append(LedgerChange(ledger_id, new, found))
        return {**flagged, **self._written(changes)}

    def _written(self, changes: Sequence[LedgerChange]) -> Found:
        if not changes:
            return {}
        answers = self._context.store.write_ledgers(changes)
        return {
            change.ledger_id: answer
            for change, answer in zip(changes, answers, strict=True)
            if isinstance(answer, Versioned)
        }

    # Step 2: fence

    def _fence(self) -> None:
        wanted: dict[tuple[LedgerId, int], tuple[BookieId, LedgerRef]] = {}
        replicas: dict[tuple[LedgerId, int], Replica] = {}
        unknown: dict[tuple[LedgerId, int], BookKeeperError] = {}
        for ledger_id, recovery in self._under_way.items():
            for position, bookie in enumerate(recovery.ensemble):
                at = ledger_id, position
                try:
                    replica = self._together.replica(bookie, self._ledgers[ledger_id]).ending()
                except BookKeeperError as error:
                    unknown[at] = error
                    continue
                replicas[at], wanted[at] = replica, (bookie, replica.ledger)
        purpose = f"fencing {len(self._under_way)} ledgers"
        answers: dict[tuple[LedgerId, int], Answer[LedgerTail]] = {**unknown}
        answers |= self._together.ask(purpose, _fence, wanted)
        for (ledger_id, position), tail in answers.items():
            recovery = self._under_way[ledger_id]
            if isinstance(tail, BookKeeperError):
                recovery.not_fenced(position, tail)
            else:
                recovery.fenced(position, replicas[ledger_id, position], tail)
        for ledger_id, recovery in list(self._under_way.items()):
            if any(map(self._is_silent, recovery.ensemble)):
                del self._under_way[ledger_id]  # only `recover_ledger` waits and reports the bookie

    def _is_silent(self, bookie: BookieId) -> bool:
        return self._together.is_silent(bookie) or self._context.bookies.is_silent(bookie)

    # Step 3: find the last entries, counting only what is verified

    def _verify(self) -> None:
        """Verify until no entries are left: a refuted entry may move an end."""
        unsettled = dict(self._under_way)
        while unsettled:
            wanted: dict[tuple[LedgerId, int], tuple[BookieId, Verification]] = {}
            for ledger_id, recovery in unsettled.items():
                for position, entries in recovery.unverified():
                    bookie = recovery.ensemble[position]
                    asked = recovery.verification(position, entries)
                    wanted[ledger_id, position] = bookie, asked
            answers = self._together.ask("verifying entries of many ledgers", _verify, wanted)
            for (ledger_id, position), verdict in answers.items():
                looked_at = [EntryId(e) for e in wanted[ledger_id, position][1].entry_ids]
                unsettled[ledger_id].verified(position, looked_at, verdict)
            unsettled = {i: each for i, each in unsettled.items() if not each.is_settled}

    # Before the close: copy entries that lack copies

    def _written_back(self) -> dict[LedgerId, tuple[Decision, tuple[BookieId, ...]]]:
        """Return the decided ledgers, with the ensemble that holds the recovered entries. Small
        copies are made in batches; each ledger makes its other copies by itself.
        """
        decided: dict[LedgerId, tuple[Decision, tuple[BookieId, ...]]] = {}
        lacking: list[tuple[LedgerId, Decision]] = []
        copies: dict[tuple[LedgerId, int], SmallCopy] = {}
        for ledger_id, recovery in self._under_way.items():
            decision = recovery.decide()
            if not isinstance(decision, Decision):
                continue
            if decision.missing:
                lacking.append((ledger_id, decision))
                small = recovery.small_copies(decision)
                copies |= {(ledger_id, position): copy for position, copy in small.items()}
            else:
                decided[ledger_id] = decision, recovery.write_back(decision)

        copied = copy_many(self._context, self._together, copies)
        done: dict[LedgerId, set[int]] = {ledger_id: set() for ledger_id, _ in lacking}
        for ledger_id, position in copied:
            done[ledger_id].add(position)

        def write_back(
            each: tuple[LedgerId, Decision],
        ) -> tuple[LedgerId, Decision, tuple[BookieId, ...] | None]:
            ledger_id, decision = each
            try:
                ensemble = self._under_way[ledger_id].write_back(decision, done[ledger_id])
                return ledger_id, decision, ensemble
            except BookKeeperError:
                return ledger_id, decision, None

        for ledger_id, decision, ensemble in self._context.runtime.map(write_back, lacking):
            if ensemble is not None:
                decided[ledger_id] = decision, ensemble
        return decided

    # Step 4: close

    def _close(
        self,
        flagged: Found,
        decided: Mapping[LedgerId, tuple[Decision, tuple[BookieId, ...]]],
    ) -> Found:
        changes: list[LedgerChange] = []
        for ledger_id, (decision, ensemble) in decided.items():
            found = flagged[ledger_id]
            try:
                new = self._under_way[ledger_id].closing(decision, ensemble)(found.value)
            except BookKeeperError:
                continue
            assert new is not None, "all-closes-agree"
            changes.append(LedgerChange(ledger_id, new, found))
        return self._written(changes)


def _fence(bookie: Bookie, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
    return bookie.fence(ledgers)


def _verify(bookie: Bookie, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
    return bookie.verify(wanted)
