"""Check whether one bookie holds its share of a fragment as it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.verdict import Refusal, RefusalKind, Verified
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import BookieError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import DigestType, LedgerState
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.shares import pieces_to_read
from spark_bookkeeper.runtime.throttle import Throttle

PIECE_BYTES: Final = 64 << 20
"""About the most bytes of one read. Between two pieces the check waits for the limit, and stops if
it must."""

PIECE_ENTRIES: Final = 131_072


class Seen(NamedTuple):
    """The result of the check of one share."""

    status: Outcome
    reason: str | None = None
    bytes: int = 0
    refused: Sequence[EntryId] = ()


class ShareCheck:
    """Reads and verifies one share piece by piece. Each piece is a call of its own, so that the
    bookie does not count as silent during a wait for the limit.

    Args:
        entries: the entries to check, ascending.
        with_files: also refuse good entries in files that are damaged around them.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        replica: Replica,
        entries: Sequence[EntryId],
        *,
        with_files: bool,
    ) -> None:
        self._ledger = ledger
        self._replica = replica
        self._entries = entries
        self._with_files = with_files
        self._ask = partial(context.bookies.ask, replica, f"checking ledger {ledger.ledger_id}")
        self._bytes = 0
        self._refused: dict[int, Refusal] = {}
        self._spoilt: dict[int, str] = {}

    def run(
        self, first: EntryId, throttle: Throttle, is_stopping: Callable[[], bool]
    ) -> Seen | None:
        """Check the share and return the result; ``None`` if it was stopped on the way.

        Args:
            first: the entry with which the bookie is queried when its share is empty.
            throttle: called with the bytes that were read, after every piece.
            is_stopping: called between two pieces.
        """
        try:
            if not self._entries:
                self._ask(partial(self._replica.holdings, first, first))
                return Seen(Outcome.HEALTHY)
            for number, some in enumerate(self._pieces()):
                if number and is_stopping():
                    return None
                throttle(self._ask(partial(self._look_at, some)))
            if not self._refused and not self._spoilt:
                return Seen(Outcome.HEALTHY, None, self._bytes)
            left = [EntryId(entry_id) for entry_id in sorted({*self._refused, *self._spoilt})]
            # If the bookie went away meanwhile, the refusals show nothing about its entries.
            later = self._ask(partial(self._replica.holdings, left[0]))
        except BookieError as error:
            return Seen(Outcome.UNAVAILABLE, error.message, self._bytes)
        return self._seen(left, later)

    def _pieces(self) -> Iterable[Sequence[EntryId]]:
        """Return the pieces of the share. A large share is cut by the sizes that the bookie
        reports.

        A share without digests is not cut: each piece would read whole parts for their checksums.
        """
        metadata, entries = self._ledger.metadata, self._entries
        is_small = metadata.is_closed and (metadata.length_bytes or 0) <= PIECE_BYTES
        if is_small or metadata.digest_type is DigestType.DUMMY:
            return [entries]
        held = self._ask(partial(self._replica.holdings, entries[0], entries[-1]))
        return pieces_to_read(held, entries, PIECE_BYTES, PIECE_ENTRIES)

    def _look_at(self, entries: Sequence[EntryId]) -> int:
        """Check some entries and return the bytes that were read; a second read counts again."""
        # The lookup for all pieces is not passed on: it names the files of all pieces, and each
        # piece would check all of them.
        verdict = self._replica.verify(entries, with_files=self._with_files)
        read = _bytes(verdict.good)
        self._bytes += read
        if verdict.refused or verdict.spoilt:
            # Again: a writer may have sent entries meanwhile, or compaction have moved them.
            before, again = verdict.good, sorted({*verdict.refused, *verdict.spoilt})
            verdict = self._replica.verify(again, with_files=self._with_files)
            read += _bytes(verdict.good)
            self._bytes += _bytes({e: it for e, it in verdict.good.items() if e not in before})
        self._spoilt |= verdict.spoilt
        self._refused |= verdict.refused
        return read

    def _seen(self, left: Sequence[EntryId], later: Holdings) -> Seen:
        """Return the result of a share with refused entries."""
        entries, refused, spoilt, size = self._entries, self._refused, self._spoilt, self._bytes
        lacking = [e for e in left if e in refused and refused[e].kind is RefusalKind.ABSENT]
        absent = set(lacking)
        bad = [e for e in left if e not in absent]
        lacks = (
            f"{len(lacking)} of {len(entries)} entries, the first is {lacking[0]}"
            if lacking
            else ""
        )
        if bad:
            is_damaged = bool(spoilt) or any(refused[e].kind is RefusalKind.DAMAGED for e in bad)
            why = {e: refused[e].reason if e in refused else spoilt[e] for e in bad[:3]}
            shown = "; ".join(f"entry {e}: {reason}" for e, reason in why.items())
            how = "are damaged" if is_damaged else "could not be read"
            reason = f"{len(bad)} of {len(entries)} entries {how}: {shown}"
            reason = f"{reason}. It lacks {lacks}" if lacking else reason
            status = Outcome.DAMAGED if is_damaged else Outcome.UNREADABLE
            return Seen(status, reason, size, left)
        bookie = BookieId(self._replica.bookie_id)
        if _may_be_on_its_way(self._ledger, bookie, lacking[0], later):
            reason = f"lacks {lacks}: they may still be on their way"
            return Seen(Outcome.PENDING, reason, size, left)
        return Seen(Outcome.MISSING, f"lacks {lacks}", size, left)


def _bytes(good: Mapping[int, Verified]) -> int:
    return sum(entry.size_bytes for entry in good.values())


def _may_be_on_its_way(ledger: Ledger, bookie: BookieId, lacking: EntryId, later: Holdings) -> bool:
    """Whether a writer may still send an entry: it sends a bookie its entries in order."""
    metadata = ledger.metadata
    if metadata.state is not LedgerState.OPEN or bookie not in metadata.last_fragment.ensemble:
        return False
    return len(later) == 0 or lacking in later
