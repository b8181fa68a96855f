"""The library with one safety rule switched off, for each rule in turn.

A mutant is a function that patches the real code. It changes as little as takes the rule away;
where an assertion or a second rule would stand in for it, that goes as well, and says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from spark_bookkeeper.agent import collection
from spark_bookkeeper.bookie import file_bookie
from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.compaction import Compactor
from spark_bookkeeper.bookie.index import Doubt, EntryIndex, Tail, possible_range
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import Record, RecordKind, decode
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.slots import SlotReader, _Found
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.client.recover import recovery
from spark_bookkeeper.client.recover.recovery import LedgerRecovery
from spark_bookkeeper.client.write.append_pipeline import AppendPipeline
from spark_bookkeeper.client.write.bookie_channel import BookieChannel, Group
from spark_bookkeeper.client.write.silence_timer import SilenceTimer
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    NoSuchLedgerError,
    SlotTakenError,
)
from spark_bookkeeper.metadata import refusals, update
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import Decision, Recovery
from spark_bookkeeper.protocol.writer import Acknowledge, Command, Send, Writer
from spark_bookkeeper.replication import batch_rereplicate as rereplicate_many
from spark_bookkeeper.replication import fragments, recover_bookie, recover_ledgers, rereplicate
from spark_bookkeeper.replication.fragments import Todo
from spark_bookkeeper.replication.recover_bookie import BookieRecovery
from spark_bookkeeper.replication.rereplicate import (
    FragmentCopy,
    FragmentWork,
    ShareCopied,
    Successor,
)
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.testing import memory_store
from spark_bookkeeper.testing.counting import CountingStorage
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from tests.simulator import lifetime

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]

MUTANTS: Final[dict[str, Mutant]] = {}
"""By the name of the rule, as SLOT-LOG has it in brackets; the last five are named here."""


def mutant(apply: Mutant) -> Mutant:
    MUTANTS[apply.__name__] = apply
    return apply


# The writer


@mutant
def prefix_ack(patch: Patch) -> None:
    """After an unknown outcome the channel goes on to the next slot, whose ack counts."""
    stored, store_group = AppendPipeline.stored, BookieChannel.store

    def store(self: BookieChannel, group: Group) -> None:
        if group.bulk is not None or not group.is_striped_to(self.position):
            store_group(self, group)
            return
        replica = self._prepared()
        record = group.record(self.position, self._slot)
        self._slot += 1
        try:
            replica.add(record)
        except SlotTakenError:
            raise
        except BookieUnavailableError:
            self.skipped = group  # type: ignore[attr-defined]  # of the mutant

    def count(self: AppendPipeline, channel: BookieChannel, group: Group) -> None:
        if getattr(channel, "skipped", None) is group:
            channel.next_entry = EntryId(group.last + 1)
        else:
            stored(self, channel, group)

    patch.setattr(BookieChannel, "store", store)
    patch.setattr(AppendPipeline, "stored", count)


@mutant
def exists_check(patch: Patch) -> None:
    """A name that is taken counts as one's own success."""
    patch.setattr(LedgerLog, "_check_exists", lambda *_: None)


@mutant
def content_fixed(patch: Patch) -> None:
    """A repeated put takes in what has gathered since; one's own token is enough to count."""
    store_group = BookieChannel.store

    def store(self: BookieChannel, group: Group) -> None:
        if group.bulk is not None or not group.is_striped_to(self.position):
            store_group(self, group)
            return
        replica = self._prepared()
        few = _part_of(group, slice(0, 1))
        rest = _part_of(group, slice(1, None)) if group.last > group.first else None
        try:
            if few.is_striped_to(self.position):
                replica.add(few.record(self.position, self._slot))
                self._slot += 1
        except SlotTakenError:
            raise
        except BookieUnavailableError:
            rest = group
        if rest is not None and rest.is_striped_to(self.position):
            record = rest.record(self.position, self._slot)
            self._repeat(lambda: replica.add(record))
            self._slot += 1

    patch.setattr(LedgerLog, "_admit", lambda *_: None)  # it asserts this very rule
    patch.setattr(LedgerLog, "_check_exists", _check_token)
    patch.setattr(BookieChannel, "store", store)


def _check_token(self: LedgerLog, slot: int, path: str, data: bytes) -> None:
    """A name that is taken counts where one's own token is in it."""
    found = self.storage.read(path)
    if found is None:
        raise BookieUnavailableError("gone", bookie_id=self.bookie_id)
    tokens = [decode(d, self.key, self.encoding).token for d in (found, data)]
    if tokens[0] != tokens[1]:
        raise SlotTakenError("taken", bookie_id=self.bookie_id)
    self.storage.sync(path)


def _part_of(group: Group, some: slice) -> Group:
    copy = object.__new__(Group)
    copy.__dict__.update(group.__dict__)
    ids = range(group.first, group.last + 1)[some]
    copy.first, copy.last = EntryId(ids[0]), EntryId(ids[-1])
    run = group._run
    copy._run = run._replace(payloads=run.payloads[some], lengths_after=run.lengths_after[some])
    copy._records = {}
    return copy


@mutant
def contiguous_ack(patch: Patch) -> None:
    """An entry is confirmed when its own write set has it, whatever became of those before."""

    def confirmed_through(self: Quorum, stored: Sequence[int], pushed: EntryId) -> EntryId:
        return max(
            (
                EntryId(e)
                for e in range(pushed + 1)
                if sum(stored[p] >= e for p in self.write_set(EntryId(e))) >= self.ack_quorum_size
            ),
            default=NO_ENTRY,
        )

    patch.setattr(Quorum, "confirmed_through", confirmed_through)


@mutant
def ec_cas_first(patch: Patch) -> None:
    """Entries are confirmed while the next ensemble is not published yet."""

    def confirm(self: Writer) -> list[Command]:
        confirmed = self.quorum.confirmed_through(self._stored_through, self.last_add_pushed)
        if confirmed <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = confirmed
        return [Acknowledge(confirmed)]

    patch.setattr(Writer, "_confirm", confirm)


@mutant
def ec_recount(patch: Patch) -> None:
    """The acks of a replaced bookie go on to count."""

    def adopt(self: Writer, ensemble: tuple[BookieId, ...]) -> list[Command]:
        first = EntryId(self.last_add_confirmed + 1)
        commands: list[Command] = []
        for position, bookie in enumerate(ensemble):
            if bookie != self.ensemble[position]:
                self._failed.pop(position, None)
                commands.append(Send(position, bookie, first))
        self.ensemble = ensemble
        if self._failed:
            return commands + self._change_ensemble()
        self._is_changing = False
        return commands + self._confirm()

    patch.setattr(Writer, "_adopt", adopt)


@mutant
def lac_confirmed(patch: Patch) -> None:
    """A record calls its own entries confirmed."""
    made = Group.__init__

    def init(self: Group, *args: Any) -> None:
        made(self, *args)
        self._last_add_confirmed = self.last

    patch.setattr(Group, "__init__", init)


@mutant
def explicit_lac_confirmed(patch: Patch) -> None:
    """A writer that only seems to pause calls everything confirmed that it was given."""

    def tell(self: SilenceTimer) -> float:
        last = self._pending.last
        if last != NO_ENTRY:
            self._channels.tell(last)
        return self._pause

    patch.setattr(SilenceTimer, "tell_if_idle", tell)


@mutant
def writer_close_cas(patch: Patch) -> None:
    """The writer closes the ledger whatever its state is."""

    def close(self: AppendPipeline) -> None:
        def closed(old: LedgerMetadata) -> LedgerMetadata:
            return _closed(old, self.machine.last_add_confirmed, self.confirmed_length)

        update_ledger(self._context.store, self.ledger.ledger_id, closed)

    patch.setattr(AppendPipeline, "close", close)


@mutant
def cookie_ack(patch: Patch) -> None:
    """An add does not look whether the partition is still the same one."""

    def add(self: LedgerLog, slot: int, data: bytes, held: tuple[int, int]) -> None:
        self._admit(slot, held)
        path = self.paths.slot(slot)
        if not self.storage.put_if_absent(path, data):
            self._check_exists(slot, path, data)

    patch.setattr(LedgerLog, "add", add)


@mutant
def durable_ack(patch: Patch) -> None:
    """A put is answered when it is visible, and not yet durable."""

    def link(self: MemoryStorage, operation: str, path: str, data: bytes) -> bool:
        self._require_directory(path)
        created = self.disk.files.setdefault(path, data) is data
        if created:
            self.faults(operation, path, "visible")
        return created

    patch.setattr(MemoryStorage, "_link", link)


# Leaving a bookie, and going back to it


@mutant
def leave_whole(patch: Patch) -> None:
    """Every bookie is left at once, whatever it has."""
    patch.setattr(Writer, "_is_behind", lambda *_: False)


@mutant
def back_certain(patch: Patch) -> None:
    """A writer goes back to where a put is on its way, or failed; its own token is enough there."""

    def why_not_again(self: BookieChannel, first: EntryId) -> str | None:
        return "not acknowledged" if first < self.next_entry else None

    patch.setattr(LedgerLog, "_admit", lambda *_: None)  # it refuses other bytes in a slot
    patch.setattr(LedgerLog, "_check_exists", _check_token)
    patch.setattr(BookieChannel, "why_not_again", why_not_again)


@mutant
def back_ascending(patch: Patch) -> None:
    """A writer goes back though what it stored there is not acknowledged."""
    why_not_again = BookieChannel.why_not_again
    patch.setattr(LedgerLog, "_admit", lambda *_: None)  # it refuses slots that do not ascend
    patch.setattr(
        BookieChannel, "why_not_again", lambda self, _: why_not_again(self, self.next_entry)
    )


# Fences: of a ledger by itself, and as many are fenced together, which in a bucket each is


def _fence_by(patch: Patch, fence: Callable[[LedgerLog], Tail]) -> None:
    """However a ledger is fenced, by this."""

    def each(_: object, logs: Mapping[int, LedgerLog]) -> dict[int, Tail]:
        return {n: fence(log) for n, log in logs.items()}

    patch.setattr(LedgerLog, "fence", fence)
    patch.setattr(file_bookie, "fence_together", each)


@mutant
def fence_first_hole(patch: Patch) -> None:
    """The fence goes behind the first absent slot."""
    put_fence, usual_fence = LedgerLog._put_fence, LedgerLog.usual_fence

    def usually_behind(self: LedgerLog, occupied: set[int]) -> tuple[str, bytes] | None:
        place = usual_fence(self, occupied)
        return None if place is None else (self.paths.slot(len(occupied) + 1), place[1])

    def behind(self: LedgerLog, occupied: set[int]) -> int:
        hole = max(occupied, default=-1) + 1
        if self._slots.is_fence(hole - 1):
            return hole - 1
        return put_fence(self, occupied | {hole})

    patch.setattr(LedgerLog, "_put_fence", behind)
    patch.setattr(LedgerLog, "usual_fence", usually_behind)


@mutant
def fence_on_durable(patch: Patch) -> None:
    """A fence is put above a slot that a power cut may still take."""
    put_fence = LedgerLog._put_fence

    class FencesOnly(CountingStorage):
        def sync(self, *paths: str) -> None:
            super().sync(*(p for p in paths if b'"kind":"FENCE"' in (self.read(p) or b"")))

    def rashly(self: LedgerLog, occupied: set[int]) -> int:
        log = copy.copy(self)
        log.storage = FencesOnly(self.storage)
        return put_fence(log, occupied)

    patch.setattr(LedgerLog, "_put_fence", rashly)


@mutant
def fenced_negative(patch: Patch) -> None:
    """A bookie that is not fenced says no."""

    def fence(self: LedgerLog) -> Tail:
        return replace(self.tail(), is_fenced=True)

    _fence_by(patch, fence)


@mutant
def fresh_negative(patch: Patch) -> None:
    """The answer was read before the fence."""

    def fence(self: LedgerLog) -> Tail:
        self._slots.forget()
        occupied = self._slots.numbers()
        if not occupied:
            self.storage.make_directory(self.paths.slots)
        tail = self._slots.tail(max(occupied, default=-1), has_copies=len(occupied) > 0)
        fence_at = self._put_fence(occupied)
        self._check_life()
        return replace(tail, slots=fence_at, is_fenced=True)

    _fence_by(patch, fence)


@mutant
def cookie_neg(patch: Patch) -> None:
    """A bookie in another incarnation says no."""

    def fence(self: LedgerLog) -> Tail:
        self._slots.forget()
        occupied = self._slots.numbers()
        if not occupied:
            self.storage.make_directory(self.paths.slots)
        fence_at = self._put_fence(occupied)
        tail = self._slots.tail(max(occupied, default=-1), has_copies=len(occupied) > 0)
        return replace(tail, slots=fence_at, is_fenced=True)

    _fence_by(patch, fence)


@mutant
def observe_sync(patch: Patch) -> None:
    """What was merely found counts without being made durable."""
    patch.setattr(BoundedStorage, "sync", lambda *_: None)


# Recovery


@mutant
def neg_writeset(patch: Patch) -> None:
    """A bookie outside of an entry's write set says no."""
    ask = Recovery._ask

    def ask_all(self: Recovery, entry_id: EntryId) -> tuple[tuple[int, ...], tuple[int, ...]]:
        hits, _ = ask(self, entry_id)
        misses = [p for p, a in self._fenced().items() if a.says_no(entry_id)]
        return hits, tuple(misses)

    patch.setattr(Recovery, "_ask", ask_all)


@mutant
def neg_quorum(patch: Patch) -> None:
    """One miss ends the ledger."""
    patch.setattr(Quorum, "misses_needed", property(lambda _: 1))


@mutant
def wb_quorum(patch: Patch) -> None:
    """Recovered entries are not copied."""
    patch.setattr(LedgerRecovery, "write_back", lambda self, _: self.ensemble)


@mutant
def frag_start(patch: Patch) -> None:
    """Recovery begins behind the highest LAC it saw, also below the last fragment.

    Metadata that end before their last fragment would be refused.
    """
    check = LedgerMetadata.__post_init__

    def unchecked(self: LedgerMetadata) -> None:
        with suppress(InvalidArgumentError):
            check(self)

    def first_recovered(self: Recovery) -> EntryId:
        return EntryId(max((a.last_add_confirmed + 1 for a in self._fenced().values()), default=0))

    patch.setattr(LedgerMetadata, "__post_init__", unchecked)
    patch.setattr(Recovery, "first_recovered", property(first_recovered))
    _close_what_is_there(patch)


@mutant
def in_recovery(patch: Patch) -> None:
    """Recovery does not say that it is at work, so the writer may change its ensemble."""

    def unflagged(
        context: ClientContext, ledger_id: LedgerId, known: object = None
    ) -> Versioned[LedgerMetadata]:
        found = context.store.read_ledger(ledger_id)
        if found.value.is_closed:
            return found
        flagged = replace(found, value=found.value.in_recovery())
        return LedgerRecovery(context, Ledger.of(ledger_id, flagged.value), flagged).run()

    _recover_by(patch, unflagged)
    _close_what_is_there(patch)


@mutant
def rec_reads_orig(patch: Patch) -> None:
    """Recovery reads from an ensemble that was replaced before it began."""

    def outdated(
        context: ClientContext, ledger_id: LedgerId, known: object = None
    ) -> Versioned[LedgerMetadata]:
        before = context.store.read_ledger(ledger_id).value
        context.runtime.sleep(30.0)
        found = update_ledger(context.store, ledger_id, recovery.flag)
        if found.value.is_closed:
            return found
        old = replace(
            found.value, fragments=before.fragments, custom_metadata=before.custom_metadata
        )
        ledger = Ledger.of(ledger_id, old)
        return LedgerRecovery(context, ledger, replace(found, value=old)).run()

    _recover_by(patch, outdated)
    _close_what_is_there(patch)


@mutant
def rec_ec_at_close(patch: Patch) -> None:
    """Recovery publishes its new ensemble before it has copied anything to it."""

    def write_back(self: LedgerRecovery, decision: Decision) -> tuple[BookieId, ...]:
        alive = self._context.bookies.registrations()
        ensemble = list(self.ensemble)
        for position in decision.missing:
            if position in decision.unknown:
                bookie = self._replacement(ensemble, position, {}, alive)
                ensemble[position] = bookie if bookie is not None else ensemble[position]
        added = {b: alive[b].incarnation for b in ensemble if b not in self.ensemble}

        def publish(old: LedgerMetadata) -> LedgerMetadata | None:
            if old.is_closed:
                return None
            first = max(decision.first_recovered, old.last_fragment.first_entry_id)
            return with_incarnations(old.with_new_ensemble(first, tuple(ensemble)), added)

        if added:
            update_ledger(self._context.store, self._ledger.ledger_id, publish)
        quorum = self._ledger.metadata.quorum
        holders = {e: set(positions) for e, positions in decision.sources.items()}
        for position, bookie in enumerate(ensemble):
            entries = tuple(e for e in decision.sources if quorum.holds(position, e))
            if not entries or (bookie not in added and position not in self._replicas):
                continue
            replica = self._replicas.get(position)
            if bookie in added or replica is None:
                bookies = self._context.bookies
                replica = bookies.replica(bookie, self._ledger, added[bookie])
                replica.prepare()
            if self._copy(entries, replica) is None:
                for entry_id in entries:
                    holders[entry_id].add(position)
        self._check_ack_quorum(holders, {})
        return self.ensemble

    patch.setattr(LedgerRecovery, "write_back", write_back)
    _close_what_is_there(patch)


@mutant
def close_cas(patch: Patch) -> None:
    """Recovery closes a ledger that is closed already."""

    def close(
        self: LedgerRecovery, decision: Decision, ensemble: tuple[BookieId, ...]
    ) -> Versioned[LedgerMetadata]:
        last = decision.last_entry_id
        length = self._length_at(last)
        return update_ledger(
            self._context.store, self._ledger.ledger_id, lambda old: _closed(old, last, length)
        )

    patch.setattr(LedgerRecovery, "_close", close)


def _closed(old: LedgerMetadata, last: EntryId, length: int) -> LedgerMetadata:
    return replace(old, state=LedgerState.CLOSED, last_entry_id=last, length_bytes=length)


def _recover_by(patch: Patch, recover: Callable[..., Versioned[LedgerMetadata]]) -> None:
    def told(
        context: ClientContext, ledger_id: LedgerId, known: object = None, **_: object
    ) -> Versioned[LedgerMetadata]:
        return recover(context, ledger_id, known)

    for module in (recovery, lifecycle, recover_ledgers, lifetime):
        patch.setattr(module, "recover_ledger", told)


def _close_what_is_there(patch: Patch) -> None:
    """The close without the assertion that nobody else changed the last fragment."""

    def close(
        self: LedgerRecovery, decision: Decision, ensemble: tuple[BookieId, ...]
    ) -> Versioned[LedgerMetadata]:
        last = decision.last_entry_id
        length = self._length_at(last)
        alive = self._context.bookies.registrations()

        def closed(old: LedgerMetadata) -> LedgerMetadata | None:
            if old.is_closed:
                return None
            if ensemble != self.ensemble:
                first = max(decision.first_recovered, old.last_fragment.first_entry_id)
                added = {b: alive[b].incarnation for b in ensemble if b in alive}
                old = with_incarnations(old.with_new_ensemble(first, ensemble), added)
            return old.closed(last, length)

        return update_ledger(self._context.store, self._ledger.ledger_id, closed)

    patch.setattr(LedgerRecovery, "_close", close)


# Re-replication


@mutant
def rw_closed_only(patch: Patch) -> None:
    """A fragment is re-replicated up to the LAC while its writer writes."""

    def todo(
        ledger_id: LedgerId, metadata: LedgerMetadata, wish: BookieRecovery, alive: object
    ) -> list[tuple[int, Todo]]:
        return [
            (
                0,
                Todo(FragmentWork(ledger_id, f.first_entry_id, wish.bookies, None, True, None)),
            )
            for f in metadata.fragments
            if set(f.ensemble) & set(wish.bookies)
        ]

    def rereplicate_fragment(context: ClientContext, work: FragmentWork) -> Sequence[ShareCopied]:
        try:
            ledger, found = context.ledger(work.ledger_id)
        except NoSuchLedgerError:
            return []
        fragment = next(
            f for f in found.value.fragment_ranges() if f.first_entry_id == work.first_entry_id
        )
        if fragment.last_entry_id is None:
            confirmed = read_last_add_confirmed(context, ledger)
            fragment = replace(fragment, last_entry_id=confirmed)
        return FragmentCopy(context, work, ledger, fragment).run()

    def publish(self: FragmentCopy, chosen: Mapping[int, Successor]) -> LedgerMetadata:
        def replaced(old: LedgerMetadata) -> LedgerMetadata:
            for position, successor in chosen.items():
                first = self.fragment.first_entry_id
                old = old.with_replaced_bookie(first, position, successor.bookie)
            return with_incarnations(old, {s.bookie: s.incarnation for s in chosen.values()})

        return update_ledger(self._context.store, self._work.ledger_id, replaced).value

    patch.setattr(recover_bookie, "_needs_recovery", lambda *_: False)
    patch.setattr(recover_bookie, "_todo", todo)
    patch.setattr(fragments, "rereplicate_fragment", rereplicate_fragment)
    patch.setattr(rereplicate, "rereplicate_fragment", rereplicate_fragment)
    patch.setattr(FragmentCopy, "_publish", publish)


# What hangs, is damaged, or is another ledger's


@mutant
def late_answer(patch: Patch) -> None:
    """What a bookie answers after it was given up counts for the one that took its place."""
    store_group, stored = BookieChannel.store, AppendPipeline.stored

    def store(self: BookieChannel, group: Group) -> None:
        store_group(self, group)
        self._is_retired = False

    def count(self: AppendPipeline, channel: BookieChannel, group: Group) -> None:
        channel.bookie = self.machine.ensemble[channel.position]
        stored(self, channel, group)

    patch.setattr(BookieChannel, "store", store)
    patch.setattr(AppendPipeline, "stored", count)


@mutant
def hole_negative(patch: Patch) -> None:
    """A slot that was lost below an add held nothing."""

    def doubts(self: _Found) -> list[Doubt]:
        return [
            Doubt(*possible_range(low, high, self.adds), "", reason, is_corrupt)
            for low, high, reason, is_corrupt in self._useless
            if is_corrupt
        ]

    patch.setattr(_Found, "doubts", doubts)


@mutant
def hole_below_fence(patch: Patch) -> None:
    """A slot that was lost below nothing but a fence held nothing."""
    doubts = _Found.doubts

    def of_holes_below_adds(self: _Found) -> list[Doubt]:
        top = max((number for number, _ in self.adds), default=-1)
        self.fences = [number for number in self.fences if number < top]
        return doubts(self)

    patch.setattr(_Found, "doubts", of_holes_below_adds)


@mutant
def slot_number(patch: Patch) -> None:
    """A record is believed in whatever slot it stands."""

    def look(self: SlotReader, number: int) -> tuple[Record | None, str | None]:
        found = self._header(self._paths.slot(number))
        return found if found is None or found.kind is not RecordKind.COPY else None, None

    patch.setattr(SlotReader, "_look", look)


@mutant
def same_nonce(patch: Patch) -> None:
    """A ledger is told from another with its id by its version alone."""

    def check_version(
        ledger_id: LedgerId, found: Versioned[LedgerMetadata], known: Versioned[LedgerMetadata]
    ) -> None:
        if found.version != known.version:
            raise refusals.ledger_conflict(ledger_id, known.version, found.version)

    patch.setattr(memory_store, "_check_unchanged", check_version)
    patch.setattr(update, "read_again", lambda store, ledger_id, _: store.read_ledger(ledger_id))


# Who looks after bookies


@mutant
def compact_verified(patch: Patch) -> None:
    """What was written is believed to be there, for every entry that anybody asked to move."""

    def removable(self: Compactor, survey: Any, kept: EntryIndex) -> tuple[list[str], list[str]]:
        paths = [holding.path for holding in survey.leaving if holding.path not in kept.holdings]
        return paths, []

    patch.setattr(Compactor, "_removable", removable)
    patch.setattr(Retrieval, "_reasons", lambda self: {})


@mutant
def compact_own(patch: Patch) -> None:
    """A copy of the same entries will do, whoever made it, and whoever may remove it."""
    write_copy = LedgerLog.write_copy

    def found(self: LedgerLog, entries: Any = (), parts: Any = (), *, token: Any = None) -> str:
        return write_copy(self, entries, parts)

    patch.setattr(LedgerLog, "write_copy", found)


@mutant
def gc_register(patch: Patch) -> None:
    """Whoever names a bookie does not look whether copies are removed from it."""
    patch.setattr(rereplicate, "may_be_named", lambda *_: True)
    for module in (rereplicate, rereplicate_many):
        patch.setattr(module, "being_removed", lambda *_: {})


@mutant
def gc_named(patch: Patch) -> None:
    """Copies go because no fragment named the bookie when one looked; the register is not told."""

    def withdraw(
        context: ClientContext, ledger: Ledger, bookie: BookieId, incarnation: str
    ) -> bool:
        context.bookies.bookie(bookie).clear(LedgerRef(ledger.key, incarnation, ledger.encoding))
        return True

    patch.setattr(collection, "withdraw", withdraw)
