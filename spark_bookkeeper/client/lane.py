"""A lane: the dense slots of one writer on one bookie, filled one after the other.

While one put is on its way, further entries gather and share the next slot (group commit).
A put whose outcome is unknown is repeated with the same bytes in the same slot, and nothing
else is sent before it is known (SLOT-LOG rules R2, R3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.errors import (
    BookieError,
    BookieFullError,
    BookieUnavailableError,
    SlotTakenError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId

if TYPE_CHECKING:
    from spark_bookkeeper.client.ledger import Ledger
    from spark_bookkeeper.client.pending import BulkBlock, PendingEntry
    from spark_bookkeeper.client.runtime import Runtime

PUT_ATTEMPTS = 5
"""Repeats of one put whose outcome is unknown, before the bookie is given up."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one slot will hold: the entries ``first .. last``, of which a lane sends its own."""

    first: EntryId
    last: EntryId
    entries: list[PendingEntry]
    last_add_confirmed: EntryId
    """Confirmed when the group was taken: the record's bytes are fixed from then on (R10)."""
    bulk: BulkBlock | None


class Lane:
    """One writer's slots on the bookie at one position. Used by one task at a time."""

    def __init__(
        self,
        position: int,
        bookie: BookieId,
        ledger: Ledger,
        first: EntryId,
        open_log: Callable[[BookieId, str], LedgerLog],
        token: str,
        runtime: Runtime,
    ) -> None:
        self.position = position
        self.bookie = bookie
        self.incarnation = ledger.incarnations[bookie]
        self.next_entry = first
        """Everything below it that is striped here is stored here."""
        self.sending_since: float | None = None
        """When the put that is on its way began; ``None`` while there is none."""
        self._open_log = open_log
        self._log: LedgerLog | None = None
        self._key = ledger.key
        self._encoding = ledger.encoding
        self._quorum = ledger.metadata.quorum
        self._is_retired = False
        self._token = token
        self._runtime = runtime
        self._slot = 0

    def retire(self) -> None:
        """Nothing more is sent here, and no answer from here counts."""
        self._is_retired = True

    def is_active(self) -> bool:
        """Whether its answers count."""
        return not self._is_retired

    def store(self, group: Group) -> None:
        """Store a group's own entries in the next slot; returns when that is durable.

        Raises:
            LedgerFencedError: the slot is a fence.
            BookieError: the bookie is lost to this writer.
        """
        log = self._prepared_log()
        parts = []
        entries = []
        if group.bulk is not None:
            parts = [
                part
                for part in group.bulk.parts
                if self._quorum.holds(self.position, EntryId(group.bulk.classes[part.ref.name]))
            ]
            for part in parts:
                self._bring(log, group.bulk, part.ref.name)
        else:
            entries = [
                NewEntry(e.entry_id, e.length_after, e.payload)
                for e in group.entries
                if e.payload is not None and self._quorum.holds(self.position, e.entry_id)
            ]
        if not parts and not entries:
            return  # nothing of this group is striped here
        data = encode_add(
            self._key,
            self._encoding,
            self._token,
            self._slot,
            group.last_add_confirmed,
            entries=entries,
            parts=parts,
            spans=group.bulk.spans if group.bulk else (),
        )
        for attempt in self._attempts():
            with attempt:
                log.add(self._slot, data)
        self._slot += 1

    def _prepared_log(self) -> LedgerLog:
        if self._log is None:
            log = self._open_log(self.bookie, self.incarnation)
            for attempt in self._attempts():
                with attempt:
                    log.prepare()
            self._log = log
        return self._log

    def _bring(self, log: LedgerLog, bulk: BulkBlock, name: str) -> None:
        """A part that this bookie does not have comes from one that has it."""
        holders = bulk.holders[name]
        if self.bookie in holders:
            return
        part = next(p for p in bulk.parts if p.ref.name == name)
        causes = []
        for bookie, incarnation in list(holders.items()):
            try:
                log.copy_part(self._open_log(bookie, incarnation), part.ref)
            except BookieError as error:
                causes.append(f"{bookie}: {error.message}")
                continue
            holders[self.bookie] = self.incarnation
            return
        raise BookieUnavailableError(
            f"part {name} could not be copied to bookie {self.bookie} from any bookie that stores "
            f"it: {'; '.join(causes)}",
            bookie_id=self.bookie,
        )

    def _attempts(self) -> Retrying:
        """Repeats while the outcome is unknown; what is certain is raised at once."""
        return Retrying(
            retry=retry_if_exception(_is_unknown),
            stop=stop_after_attempt(PUT_ATTEMPTS),
            wait=wait_exponential(multiplier=0.05, max=2.0),
            sleep=self._runtime.sleep,
            reraise=True,
        )


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, BookieUnavailableError) and not isinstance(
        error, BookieFullError | SlotTakenError
    )
