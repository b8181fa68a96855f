"""A channel: the dense slots of one writer on one bookie, filled one after the other.

During one put, further entries gather and share the next slot (group commit). A put whose outcome
is unknown is repeated with the same bytes in the same slot. Until it is known, nothing else is sent
(SLOT-LOG rules R2, R3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, cycle
from typing import TYPE_CHECKING

from spark_bookkeeper.bookie.bookie import NewRecord
from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.messages import NOTHING, EncodedEntries, encode_columns
from spark_bookkeeper.bookie.new_record import new_record
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.errors import (
    BookieError,
    BookieFullError,
    BookieReadOnlyError,
    BookieUnavailableError,
    ProcessLimitError,
    SlotTakenError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.storage import retry_policy

if TYPE_CHECKING:
    from spark_bookkeeper.client.ledger import Ledger
    from spark_bookkeeper.client.write.pending import BulkBlock, Run
    from spark_bookkeeper.runtime.runtime import Runtime
    from spark_bookkeeper.storage.bookie_client import BookieClient
    from spark_bookkeeper.storage.call import Call


class Group:
    """The content of one slot: the entries of a run, of which each channel sends its own.

    Channels share a group, and also the encoding of its entries if the ledger is not striped. A
    group without entries is an explicit LAC: it only says how far is confirmed, to every bookie.
    """

    def __init__(
        self,
        ledger: Ledger,
        token: str,
        run: Run,
        last_add_confirmed: EntryId,
        runtime: Runtime,
        appended_at_ms: int,
    ) -> None:
        self.first = run.first
        self.last = run.last
        self.bulk = run.bulk
        self.is_empty = run.last < run.first
        self.is_shared = not ledger.metadata.quorum.is_striped
        """Whether every bookie's record is the same."""
        self.taken_at = runtime.now()
        self._ledger = ledger
        self._token = token
        self._run = run
        self._last_add_confirmed = last_add_confirmed
        """The LAC when the group was made: the records' bytes are fixed from then on (R10)."""
        self.appended_at_ms = appended_at_ms
        """By this machine's clock, and the same in every bookie's record."""
        self._encoding = runtime.condition()
        self._records: dict[int, NewRecord] = {}

    def is_next(self, first: int, last: int, last_add_confirmed: int) -> bool:
        """Whether the group is the one that would be made now."""
        made = self.first, self.last, self._last_add_confirmed
        return made == (first, last, last_add_confirmed)

    def encode_ahead(self, position: int, slot: int) -> None:
        """Encode the record for a slot of every bookie. No other thread has the group yet."""
        self._records[slot] = self._encode(position, slot)

    def record(self, position: int, slot: int) -> NewRecord:
        """Return the record for a slot of the bookie at a position that holds some of the group."""
        if not self.is_shared:
            return self._encode(position, slot)
        with self._encoding:
            if slot not in self._records:
                self._records[slot] = self._encode(position, slot)  # the same at each position
            return self._records[slot]

    def parts(self, position: int) -> list[PlacedPart]:
        """Return the part files of a bulk block that belong on the bookie at a position."""
        if self.bulk is None:
            return []
        quorum, classes = self._ledger.metadata.quorum, self.bulk.classes
        return [
            part
            for part in self.bulk.parts
            if quorum.holds(position, EntryId(classes[part.ref.name]))
        ]

    def _encode(self, position: int, slot: int) -> NewRecord:
        return new_record(
            self._ledger.key,
            self._ledger.encoding,
            self._token,
            slot,
            self._last_add_confirmed,
            (self.first, self.last),
            entries=self._entries(position),
            parts=self.parts(position),
            spans=self.bulk.spans if self.bulk else (),
            appended_at_ms=self.appended_at_ms,
        )

    def _entries(self, position: int) -> EncodedEntries:
        """Return the entries within the record of the bookie at a position."""
        if self.bulk is not None or self.is_empty:
            return NOTHING
        ids: Sequence[int] = range(self.first, self.last + 1)
        payloads, lengths = self._run.payloads, self._run.lengths_after
        if not self.is_shared:
            held = self._held(position)
            ids = list(compress(ids, cycle(held)))
            payloads = list(compress(payloads, cycle(held)))
            lengths = list(compress(lengths, cycle(held)))
        return encode_columns(self._ledger.encoding, ids, lengths, payloads)

    def is_striped_to(self, position: int) -> bool:
        """Whether the bookie at a position holds any entry of the group."""
        return (
            self.is_shared
            or self.is_empty
            or any(self._held(position)[: self.last + 1 - self.first])
        )

    def _held(self, position: int) -> list[bool]:
        """Return whether the bookie at a position holds the first entry, the second, and so on."""
        quorum = self._ledger.metadata.quorum
        return [
            quorum.holds(position, EntryId(self.first + n)) for n in range(quorum.ensemble_size)
        ]


class BookieChannel:
    """One writer's slots on the bookie at one position. Used by one task at a time."""

    def __init__(
        self,
        position: int,
        bookie: BookieId,
        ledger: Ledger,
        first: EntryId,
        open_replica: Callable[[BookieId, str], Replica],
        find_root: Callable[[], str],
        find_client: Callable[[], BookieClient],
        runtime: Runtime,
    ) -> None:
        self.position = position
        self.bookie = bookie
        self.incarnation = ledger.incarnations[bookie]
        self._ledger_id = ledger.ledger_id
        self.next_entry = first
        """The bookie has stored all entries below this one that are striped to it."""
        self.sending_since: float | None = None
        """When the put that is under way began or last made progress; ``None`` if there is none."""
        self.wake_up = AutoResetEvent(runtime)
        """Set when there is something to send, or the channel is retired."""
        self.told: Group | None = None
        """The last explicit LAC that was sent here."""
        self._open_replica = open_replica
        self._find_root = find_root
        self._find_client = find_client
        self._call: Call[None] | None = None
        """The call in which the channel uses its bookie's storage. Another task watches how long it
        takes.
        """
        self._replica: Replica | None = None
        self._runtime = runtime
        self._is_retired = False
        self.left_because = ""
        """Why another bookie is to replace this one, although it is not lost to the writer."""
        self.is_unsure = False
        """Whether a call failed here, so that the next slot is not known for certain."""
        self._opened: tuple[str, Replica] | None = None
        """Where the bookie's storage was when this writer first used it, and its replica."""
        self._slot = 0
        self._doubt: NewRecord | None = None
        """An explicit LAC that may be in the next slot, or may arrive there."""

    def retire(self) -> None:
        """Send nothing more here, and ignore any answer from here."""
        self._is_retired = True
        self.wake_up.set()

    def is_active(self) -> bool:
        """Whether its answers count."""
        return not self._is_retired

    def go_on_from(self, before: BookieChannel) -> None:
        """Fill the slots after those that an earlier channel on the same bookie has filled.

        All of these are won (rule R2), and no put to the next one is under way (rule R3).
        """
        self._opened, self._slot = before._opened, before._slot

    def why_not_again(self, first: EntryId) -> str | None:
        """Return why a bookie that was left cannot get entries from ``first`` on, or ``None``.

        Slots are dense, so the next slot must be certain: a put without an answer may still arrive
        (rules R2, R3). And slots ascend in entry ids.
        """
        left = f"left by this writer when {self.left_because}"
        if self.sending_since is not None or self.is_unsure or self._doubt is not None:
            return f"{left}; what it was sent last has no answer"
        if first < self.next_entry:
            return f"{left}; what it has, up to entry {self.next_entry - 1}, is not acknowledged"
        return None

    def encode_ahead(self, group: Group) -> None:
        """Encode the record for the next slot before any channel sends it."""
        group.encode_ahead(self.position, self._slot)

    def store(self, group: Group) -> None:
        """Store a group's own entries in the next slot; return when that is durable.

        Raises:
            LedgerFencedError: the slot is a fence.
            BookieError: the bookie is lost to this writer.
        """
        if not group.is_striped_to(self.position):
            return
        if self._call is None:
            purpose = f"storing entries of {self._ledger_id}"
            self._call = self._find_client().attend(purpose, insists=True)
        self._call.in_person(lambda: self._store(group))

    def _store(self, group: Group) -> None:
        replica = self._prepared()
        if group.bulk is not None:
            for part in group.parts(self.position):
                self._bring(replica, group.bulk, part)
        if self._doubt is not None:  # the next slot must be known before it is filled (R3)
            self._put(replica, self._doubt)
            self._doubt = None
        record = group.record(self.position, self._slot)
        if group.is_empty:
            return self._tell(replica, record)
        self._put(replica, record)

    def _put(self, replica: Replica, record: NewRecord) -> None:
        self._repeat(lambda: replica.add(record))
        self._slot += 1

    def _tell(self, replica: Replica, record: NewRecord) -> None:
        """Put an explicit LAC once, without repeats: no bookie is given up for it."""
        try:
            replica.add(record)
            self._slot += 1
        except BookieReadOnlyError:
            return  # nothing was put
        except SlotTakenError:
            raise
        except BookieUnavailableError:  # even if no space was left: it may have been put
            self._doubt = record

    def _prepared(self) -> Replica:
        if self._replica is None:
            root = self._find_root()
            if self._opened is None:
                replica = self._open_replica(self.bookie, self.incarnation)
                self._repeat(replica.prepare)
                self._opened = root, replica
            elif root != self._opened[0]:
                raise BookieUnavailableError(
                    f"bookie {self.bookie} has moved from {self._opened[0]} to {root} since this "
                    "writer left it",
                    bookie_id=self.bookie,
                )
            self._replica = self._opened[1]  # its directory is not made again (R11)
        return self._replica

    def _bring(self, replica: Replica, bulk: BulkBlock, part: PlacedPart) -> None:
        """Copy a part that this bookie lacks from a bookie that has it."""
        holders = bulk.holders[part.ref.name]
        if self.bookie in holders:
            return
        causes = []
        for bookie, incarnation in list(holders.items()):
            try:
                source = self._open_replica(bookie, incarnation)
                copied = replica.copy_part(source, part.ref, self._note_progress, is_copy=False)
            except (BookieReadOnlyError, ProcessLimitError):
                raise
            except BookieError as error:
                causes.append(f"{bookie}: {error.message}")
                self._note_progress(0)  # the source may have been the slow one
                continue
            if copied.name != part.ref.name:  # every bookie's slot lists this name
                raise SlotTakenError(
                    f"bookie {self.bookie} has something else under the name of part "
                    f"{part.ref.name}; the bookie must be replaced in the ensemble",
                    bookie_id=self.bookie,
                )
            holders[self.bookie] = self.incarnation
            return
        raise BookieUnavailableError(
            f"part {part.ref.name} could not be copied to bookie {self.bookie} from any bookie "
            f"that stores it: {'; '.join(causes)}",
            bookie_id=self.bookie,
        )

    def _note_progress(self, _: int) -> None:
        """Note that a large copy goes on: it is not a put without an answer."""
        self.sending_since = self._runtime.now()

    def _repeat(self, call: Callable[[], object]) -> None:
        """Repeat a call while its outcome is unknown; raise a certain error at once."""
        for pause in retry_policy.PAUSES_SECONDS:
            try:
                call()
                return
            except BookieError as error:
                if not _is_unknown(error):
                    raise
            if pause:
                self._runtime.sleep(pause)
        call()


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, BookieUnavailableError) and not isinstance(
        error, BookieFullError | SlotTakenError
    )
