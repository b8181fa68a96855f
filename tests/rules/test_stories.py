"""Each rule of data safety is taken out of the real code, and a small story goes wrong.

Every scenario runs twice: with the rule it must succeed, without it the same assertions must fail.
The simulation does the same with whole lifetimes; here are the rules it meets rarely, those of
layers above it, and the smallest story that shows why a rule is there.

Source: SLOT-LOG, "Rules"; the names are those in brackets there, or the rule's number.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import slots
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.index import Doubt
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import Record, RecordKind, encode_add, encode_fence
from spark_bookkeeper.bookie.reserve import Reserve, reserve_bytes
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.client import context, deletion, lifecycle
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.read import reader as client_reader
from spark_bookkeeper.client.read.confirmed import read_last_add_confirmed
from spark_bookkeeper.client.recover import recovery
from spark_bookkeeper.client.recover.recovery import LedgerRecovery, recover_ledger
from spark_bookkeeper.client.write import ensemble_change
from spark_bookkeeper.client.write.bulk import FanOut, write_local
from spark_bookkeeper.client.write.lane import Lane
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.cluster import formatting
from spark_bookkeeper.cluster.formatting import format_bookie
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieError,
    BookieFullError,
    BookKeeperError,
    InvalidArgumentError,
    LedgerExistsError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.metadata import refusals, update
from spark_bookkeeper.metadata.store import LedgerStore, Versioned
from spark_bookkeeper.metadata.update import Transform, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import Decision, FencedAnswer
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookiesLookedAt,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    Stored,
    Writer,
)
from spark_bookkeeper.replication import refill_ledger as refilling
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_one
from spark_bookkeeper.replication.refill_ledger import RefillWork, refill_ledger
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing import memory_store
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from spark_bookkeeper.testing.memory_store import MemoryCluster
from spark_bookkeeper.testing.slotlog import log_of
from tests.client import test_gone_agents as gone

USUAL = Quorum(3, 3, 2)
A, B, C, D = (BookieId(name) for name in "abcd")


@dataclass(frozen=True)
class Rule:
    """A rule, the story that needs it, and how to take it out."""

    name: str
    story: Callable[[Path], None]
    take_out: Callable[[pytest.MonkeyPatch], None]


RULES: list[Rule] = []


def rule(
    name: str, story: Callable[[Path], None]
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Register the decorated function as what takes out the rule that the story needs."""

    def register(take_out: Callable[[pytest.MonkeyPatch], None]) -> None:
        RULES.append(Rule(name, story, take_out))

    return register


def open_ledger_with(ground: Ground, count: int) -> LedgerWriter:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for i in range(count):
        writer.append(b"%d" % i)
    writer._adds.drain()
    return writer


def put(ground: Ground, writer: LedgerWriter, position: int, slot: int, entry_id: int) -> None:
    """One more entry on one bookie, as the writer would have put it there."""
    ledger = writer._adds.ledger
    log = log_of(ground.context, writer.metadata.last_fragment.ensemble[position], ledger)
    log.prepare()
    entry = NewEntry(entry_id, entry_id + 1, b"x")
    log.add(slot, encode_add(log.key, log.encoding, writer._adds._lanes.token, slot, -1, [entry]))


# R7


def confirmed_only_when_published(_: Path) -> None:
    writer = Writer(USUAL, (A, B, C))
    writer.step(AddRequested(1))
    writer.step(BookieFailed(2, C))
    told = writer.step(Stored(0, A, EntryId(0))) + writer.step(Stored(1, B, EntryId(0)))

    assert told == [], "the metadata does not name the ensemble yet"


@rule("ec_cas_first", confirmed_only_when_published)
def _(patch: pytest.MonkeyPatch) -> None:
    def confirm(self: Writer) -> list[Command]:
        confirmed = self.quorum.confirmed_through(self._stored_through, self.last_add_pushed)
        return [Acknowledge(confirmed)] if confirmed > self.last_add_confirmed else []

    patch.setattr(Writer, "_confirm", confirm)


def a_bookie_that_is_left_has_its_whole_share(_: Path) -> None:
    """It is read-only and serves what it has: nobody would look for what it never got."""
    writer = Writer(USUAL, (A, B, C))
    commands: list[Command] = []
    for event in (AddRequested(2), Stored(0, A, EntryId(0)), Stored(1, B, EntryId(0))):
        commands += writer.step(event)
    assert commands == [Acknowledge(EntryId(0))]

    assert writer.step(BookiesLookedAt({2: C}, {})) == []
    assert writer.step(Stored(0, A, EntryId(1))) == []
    assert writer.step(Stored(1, B, EntryId(1))) == [], "or a slow bookie would never be left"
    assert writer.step(Stored(2, C, EntryId(0))) == [
        ChangeEnsemble(EntryId(1), {2: C}, may_stay=True)
    ]


@rule("leave_whole", a_bookie_that_is_left_has_its_whole_share)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "_is_behind", lambda *_: False)


def who_goes_back_knows_the_next_slot(directory: Path) -> None:
    with gone.world_in(directory) as world:
        gone.test_a_writer_does_not_go_back_while_what_it_sent_last_has_no_answer(world)


@rule("back_certain", who_goes_back_knows_the_next_slot)
def _(patch: pytest.MonkeyPatch) -> None:
    def only_ascending(lane: Lane, first: EntryId) -> str | None:
        return "not acknowledged" if first < lane.next_entry else None

    patch.setattr(Lane, "why_not_again", only_ascending)


def who_goes_back_sends_nothing_again(directory: Path) -> None:
    with gone.world_in(directory) as world:
        gone.test_a_writer_does_not_go_back_while_what_is_there_is_not_acknowledged(world)


@rule("back_ascending", who_goes_back_sends_nothing_again)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lane, "why_not_again", lambda *_: None)


def the_last_space_is_left_to_fences(directory: Path) -> None:
    """Every disk is full of appends: the ledger must still be closed at its end."""
    ground = Ground(directory, bookies=3)
    size, used = 40_000_000, [0]
    kept = reserve_bytes(size)

    def space(storage: LocalStorage) -> tuple[int, int]:
        return size - used[0], size

    def put(storage: LocalStorage, path: str, data: bytes) -> bool:
        used[0] += len(data)
        if used[0] > size - kept // 2:
            raise BookieFullError("no space left on device", bookie_id="b:1")
        return put_if_absent(storage, path, data)

    put_if_absent = LocalStorage.put_if_absent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "space", space)
        patch.setattr(LocalStorage, "put_if_absent", put)
        writer = lifecycle.create_ledger(ground.context, USUAL)
        acknowledged = -1
        with suppress(AppendFailedError):
            while True:
                acknowledged = writer.append(bytes(100_000))

        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed >= acknowledged > 0


@rule("last_space", the_last_space_is_left_to_fences)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reserve, "_look", lambda _, size_bytes: None)


def what_a_lost_bookie_stored_is_not_counted(_: Path) -> None:
    writer = Writer(USUAL, (A, B, C))
    writer.step(AddRequested(1))
    writer.step(Stored(2, C, EntryId(0)))
    writer.step(BookieFailed(2, C))
    writer.step(EnsembleChanged((A, B, D)))
    told = writer.step(Stored(0, A, EntryId(0)))

    assert told == [], "the ensemble a, b, d has one copy of entry 0"


@rule("ec_recount", what_a_lost_bookie_stored_is_not_counted)
def _(patch: pytest.MonkeyPatch) -> None:
    adopt = Writer._adopt

    def keeping(self: Writer, ensemble: tuple[BookieId, ...]) -> list[Command]:
        stored = list(self._stored_through)
        commands = adopt(self, ensemble)
        self._stored_through = stored
        return commands

    patch.setattr(Writer, "_adopt", keeping)


# R5


def wiped_bookies_say_nothing(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_ledger_with(ground, 3)
    a, b, c = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)
    ground.stop(c)
    try:
        closed = recover_ledger(ground.client(), writer.ledger_id).value
    except RecoveryUndecidedError:
        return
    assert closed.last_entry_id == 2, "acked-entries-are-readable"


@rule("cookie_neg", wiped_bookies_say_nothing)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerLog, "check_life", lambda *_: None)
    patch.setattr(LedgerLog, "_check_marker", lambda *_: None)


def closes_right_or_waits(ground: Ground, writer: LedgerWriter, last: int) -> None:
    """Whoever recovers now finds that end, or says who is needed to know."""
    try:
        closed = recover_ledger(ground.client(), writer.ledger_id).value
    except RecoveryUndecidedError:
        return
    assert closed.last_entry_id == last, "acked-entries-are-readable"


def two_acknowledged(ground: Ground) -> tuple[LedgerWriter, BookieId, BookieId]:
    """Entries 1 and 2 on two bookies, and so acknowledged; the third has only entry 0."""
    writer = open_ledger_with(ground, 1)
    a, b, _ = writer.metadata.last_fragment.ensemble
    for entry_id in (1, 2):
        put(ground, writer, 0, entry_id, entry_id)
        put(ground, writer, 1, entry_id, entry_id)
    return writer, a, b


def a_slot_lost_below_others_is_no_miss(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer, a, b = two_acknowledged(ground)
    ground.files(a, "slots")[1].unlink()
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)
    closes_right_or_waits(ground, writer, 2)  # the lost slot's place was fenced meanwhile
    ground.start(b)
    assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 2


@rule("lost_slot", a_slot_lost_below_others_is_no_miss)
def _(patch: pytest.MonkeyPatch) -> None:
    doubts = slots._Found.doubts

    def believing_fences(self: slots._Found) -> list[Doubt]:
        self.fences.clear()
        return doubts(self)

    patch.setattr(slots._Found, "doubts", believing_fences)


def a_slot_lost_below_a_fence_is_no_miss(directory: Path) -> None:
    for is_overwritten in (False, True):
        ground = Ground(directory / f"{is_overwritten}", bookies=3)
        writer, a, b = two_acknowledged(ground)
        log_of(ground.context, a, writer._adds.ledger).fence()
        *_, newest, fence = ground.files(a, "slots")
        newest.unlink()
        if is_overwritten:
            newest.write_bytes(fence.read_bytes())
        ground.stop(b)

        closes_right_or_waits(ground, writer, 2)
        closes_right_or_waits(ground, writer, 2)  # the lost slot's place was fenced meanwhile
        ground.start(b)
        assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 2


@rule("lost_slot, below a fence", a_slot_lost_below_a_fence_is_no_miss)
def _(patch: pytest.MonkeyPatch) -> None:
    doubts = slots._Found.doubts

    def believing_the_newest(self: slots._Found) -> list[Doubt]:
        top = max((number for number, _ in self.adds), default=-1)
        self.fences = [number for number in self.fences if number < top]
        return doubts(self)

    patch.setattr(slots._Found, "doubts", believing_the_newest)


def a_slot_with_anothers_bytes_is_no_miss(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer, a, b = two_acknowledged(ground)
    files = ground.files(a, "slots")
    data = files[1].read_bytes()
    files[2].unlink()
    files[2].write_bytes(data)
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)


@rule("slot_number", a_slot_with_anothers_bytes_is_no_miss)
def _(patch: pytest.MonkeyPatch) -> None:
    def look(self: slots.SlotReader, number: int) -> tuple[Record | None, str | None]:
        return self._header(self._paths.slot(number)), None

    patch.setattr(slots.SlotReader, "_look", look)


def a_bookie_without_its_ledgers_says_nothing(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer, a, b = two_acknowledged(ground)
    shutil.rmtree(ground.root(a) / "ledgers")
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)
    assert not (ground.root(a) / "ledgers").exists(), "nobody makes it anew"


@rule("lost_ledgers", a_bookie_without_its_ledgers_says_nothing)
def _(patch: pytest.MonkeyPatch) -> None:
    make = LocalStorage.make_directory

    def with_all_parents(self: LocalStorage, path: str) -> None:
        make(self, path.partition("/")[0])
        make(self, path)

    patch.setattr(LocalStorage, "make_directory", with_all_parents)


def a_writer_that_won_what_was_lost_is_fenced_where_it_goes_on(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer, a, _ = two_acknowledged(ground)
    ledger = writer._adds.ledger
    ground.files(a, "slots")[1].unlink()
    log_of(ground.context, a, ledger).fence()

    try:
        put(ground, writer, 0, 3, 3)
    except LedgerFencedError:
        return
    raise AssertionError("no-count-behind-a-fence")


@rule("fence_above_all", a_writer_that_won_what_was_lost_is_fenced_where_it_goes_on)
def _(patch: pytest.MonkeyPatch) -> None:
    def put_fence(self: LedgerLog, occupied: set[int]) -> int:
        number = next(n for n in range(len(occupied) + 1) if n not in occupied)
        self.storage.put_if_absent(self.paths.slot(number), encode_fence(self.key))
        return number

    patch.setattr(LedgerLog, "_put_fence", put_fence)


# R6b


def an_entry_behind_a_fence_is_kept(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_ledger_with(ground, 1)
    members = writer.metadata.last_fragment.ensemble
    ledger = writer._adds.ledger
    # The slot before it was lost in a power cut, and another recoverer's fence is in its place.
    put(ground, writer, 0, 2, 1)
    log_of(ground.context, members[0], ledger).fence()

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == 1


@rule("wb_sealed", an_entry_behind_a_fence_is_kept)
def _(patch: pytest.MonkeyPatch) -> None:
    fenced_answer = LedgerRecovery._fenced_answer

    def below_the_fence(self: LedgerRecovery, position: int) -> FencedAnswer:
        answer = fenced_answer(self, position)
        records = list(log_of(self._context, self.ensemble[position], self._ledger).records())
        fence = min(r.slot for r in records if r.kind is RecordKind.FENCE)
        behind = {EntryId(int(e)) for r in records if r.slot > fence for e in r.ids}
        return replace(answer, held=frozenset(answer.held - behind))

    patch.setattr(LedgerRecovery, "_fenced_answer", below_the_fence)


# R8


def a_recovery_takes_the_ledger_from_its_writer(directory: Path) -> None:
    ground = Ground(directory, bookies=6)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    victim = writer.metadata.last_fragment.ensemble[2]
    told: list[int] = []

    def go_on_writing(place: str, operation: str, path: str) -> None:
        if operation != "put_if_absent" or told:
            return
        told.append(0)
        ground.stop(victim)

        def is_replaced() -> bool:
            told.append(writer.append(b"x"))
            return victim not in writer.metadata.last_fragment.ensemble

        try:
            ground.until(is_replaced)
        except LedgerFencedError:
            return

    client = ground.client(InlineRuntime(), go_on_writing)
    closed = recover_ledger(client, writer.ledger_id).value

    assert closed.last_entry_id is not None
    assert max(told) <= closed.last_entry_id


@rule("in_recovery", a_recovery_takes_the_ledger_from_its_writer)
def _(patch: pytest.MonkeyPatch) -> None:
    def update(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Transform,
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        if transform is recovery.flag:
            found = store.read_ledger(ledger_id)
            return replace(found, value=found.value.in_recovery())
        return update_ledger(store, ledger_id, transform, known=known)

    patch.setattr(recovery, "update_ledger", update)


def a_second_recovery_asks_who_held_the_entries(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_ledger_with(ground, 1)
    a, b, c = writer.metadata.last_fragment.ensemble
    (spare,) = set(ground.bookie_ids) - {a, b, c}
    put(ground, writer, 0, 1, 1)
    put(ground, writer, 1, 1, 1)  # entry 1 is acknowledged: a and b have it
    ground.stop(a)
    kill = KillAt(1 << 30)

    def die_before_the_first_copy(place: str, operation: str, path: str) -> None:
        if operation == "put_if_absent" and "/copies/" in path:
            kill.is_dead = True
        kill(place, operation, path)

    with pytest.raises(Killed):
        recover_ledger(ground.client(InlineRuntime(), die_before_the_first_copy), writer.ledger_id)
    ground.stop(b)
    try:
        closed = recover_ledger(ground.client(), writer.ledger_id).value
    except RecoveryUndecidedError:
        return
    assert closed.last_entry_id == 1, f"{c} and {spare} never had entry 1"


@rule("rec_ec_at_close, rec_reads_orig", a_second_recovery_asks_who_held_the_entries)
def _(patch: pytest.MonkeyPatch) -> None:
    write_back = LedgerRecovery.write_back

    def publishing(self: LedgerRecovery, decision: Decision) -> tuple[BookieId, ...]:
        ensemble = list(self.ensemble)
        alive = self._context.bookies.registrations()
        joined = {}
        for position in decision.unknown:
            bookie = self._replacement(ensemble, position, {}, alive)
            if bookie is not None:
                ensemble[position] = bookie
                joined[bookie] = alive[bookie].incarnation
        update_ledger(
            self._context.store,
            self._ledger.ledger_id,
            lambda old: with_incarnations(
                old.with_new_ensemble(decision.first_recovered, tuple(ensemble)), joined
            ),
        )
        return write_back(self, decision)

    patch.setattr(LedgerRecovery, "write_back", publishing)


# R10


def a_reader_stops_at_what_is_confirmed(directory: Path) -> None:
    ground = Ground(directory)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    members = writer.metadata.last_fragment.ensemble
    release = threading.Event()

    def hold(place: str, operation: str, path: str) -> None:
        if place in members[1:] and operation == "put_if_absent":
            assert release.wait(120)

    ground.before.append(hold)
    future = writer.append_async(b"x")
    ground.until(lambda: len(ground.files(members[0], "slots")) == 1)
    try:
        reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)
        assert reader.last_add_confirmed == -1, "entry 0 has one copy"
    finally:
        release.set()
        future.result(60)
        writer.close()


@rule("R10", a_reader_stops_at_what_is_confirmed)
def _(patch: pytest.MonkeyPatch) -> None:
    def all_there_is(context: Any, ledger: Ledger, *kept: Any) -> EntryId:
        confirmed = read_last_add_confirmed(context, ledger, *kept)
        for bookie in ledger.metadata.last_fragment.ensemble:
            try:
                found = log_of(context, bookie, ledger).tail().entries
            except BookieError:
                continue
            confirmed = EntryId(max([confirmed, *found]))
        return confirmed

    patch.setattr(client_reader, "read_last_add_confirmed", all_there_is)


# R13


def an_ensemble_that_is_written_to_is_left_alone(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_ledger_with(ground, 1)
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost)
    work = FragmentWork(writer.ledger_id, EntryId(0), (lost,), None, False, None)

    (row,) = rereplicate_fragment(ground.client(), work)

    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.state is LedgerState.OPEN
    assert metadata.last_fragment.ensemble == writer.metadata.last_fragment.ensemble
    assert row.status == "left"


@rule("rw_closed_only", an_ensemble_that_is_written_to_is_left_alone)
def _(patch: pytest.MonkeyPatch) -> None:
    ranges = LedgerMetadata.fragment_ranges

    def with_ends(self: LedgerMetadata) -> Iterator[FragmentRange]:
        for fragment in ranges(self):
            last = fragment.last_entry_id
            yield replace(fragment, last_entry_id=EntryId(0) if last is None else last)

    patch.setattr(LedgerMetadata, "fragment_ranges", with_ends)


def refill(ground: Ground, ledger_id: LedgerId, bookie: BookieId) -> None:
    client = ground.client()
    incarnation = client.bookies.registrations()[bookie].incarnation
    refill_ledger(client, RefillWork(ledger_id, bookie, incarnation, None))


def a_wiped_bookie_has_no_say_in_a_recovery(directory: Path) -> None:
    """An entry is on two bookies, one of which is wiped; the other is away when it is asked for."""
    ground = Ground(directory, bookies=3)
    writer = open_ledger_with(ground, 1)
    wiped, away, _ = writer.metadata.last_fragment.ensemble
    for position in range(2):
        put(ground, writer, position, 1, 1)
    ground.format(wiped)

    refill(ground, writer.ledger_id, wiped)
    ground.stop(away)
    with suppress(RecoveryUndecidedError):
        recover_ledger(ground.client(InlineRuntime()), writer.ledger_id)
    ground.start(away)
    recover_ledger(ground.client(), writer.ledger_id)

    metadata = ground.context.store.read_ledger(writer.ledger_id).value
    assert metadata.last_entry_id == 1, "what Qa bookies have stored is acknowledged"


@rule("refill_fixed_only", a_wiped_bookie_has_no_say_in_a_recovery)
def _(patch: pytest.MonkeyPatch) -> None:
    ranges = LedgerMetadata.fragment_ranges

    def with_ends(self: LedgerMetadata) -> Iterator[FragmentRange]:
        for fragment in ranges(self):
            last = fragment.last_entry_id
            yield replace(fragment, last_entry_id=EntryId(0) if last is None else last)

    patch.setattr(LedgerMetadata, "fragment_ranges", with_ends)
    patch.setattr(refilling, "_why_not_fixed", lambda metadata, bookie: None)


def a_bookie_that_is_out_of_limbo_holds_everything(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer = open_ledger_with(ground, 3)
    writer.close()
    wiped, *others = writer.metadata.last_fragment.ensemble
    ground.format(wiped)
    for other in others:
        ground.stop(other)
    refill(ground, writer.ledger_id, wiped)
    for other in others:
        ground.start(other)

    refill(ground, writer.ledger_id, wiped)  # now there is somebody to copy from
    for other in others:
        ground.stop(other, destroy=True)

    with lifecycle.open_ledger(ground.client(), writer.ledger_id) as reader:
        assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2"]


@rule("refill_whole", a_bookie_that_is_out_of_limbo_holds_everything)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refilling, "_is_whole", lambda shares: True)


def a_disk_that_holds_data_was_not_replaced(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    writer = open_ledger_with(ground, 1)
    writer.close()
    kept, *others = writer.metadata.last_fragment.ensemble
    ground.stop(kept)
    for other in others:
        ground.stop(other, destroy=True)

    with suppress(InvalidArgumentError):
        format_bookie(
            ground.context.store,
            LocalStorage(ground.root(kept), kept),
            kept,
            token=ground.runtime.token,
            is_replaced=True,
        )
    ground.start(kept)

    with lifecycle.open_ledger(ground.client(), writer.ledger_id) as reader:
        assert [entry.payload for entry in reader.entries()] == [b"0"]


@rule("replaced_empty_only", a_disk_that_holds_data_was_not_replaced)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(formatting, "_check_replaced", lambda claims: None)


# R14


def a_change_that_may_have_been_lost_is_looked_for(directory: Path) -> None:
    ground = Ground(directory)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    victim = writer.metadata.last_fragment.ensemble[0]
    lost: list[str] = []

    def lose_the_request(place: str, operation: str, path: str) -> None:
        if operation == "write_ledger" and not lost:
            lost.append(path)
            raise MetadataUnavailableError("no answer")

    ground.before.append(lose_the_request)
    ground.format(victim)
    ground.until(
        lambda: writer.append(b"x") > 0 and victim not in writer.metadata.last_fragment.ensemble
    )

    stored = ground.context.store.read_ledger(writer.ledger_id).value
    assert stored.last_fragment == writer.metadata.last_fragment
    writer.close()


@rule("R14", a_change_that_may_have_been_lost_is_looked_for)
def _(patch: pytest.MonkeyPatch) -> None:
    def hopeful(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Transform,
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        current = known if known is not None else store.read_ledger(ledger_id)
        intended = transform(current.value)
        assert intended is not None
        try:
            return store.write_ledger(ledger_id, intended, current)
        except MetadataUnavailableError:
            return Versioned(intended, current.version + 1, current.own_writes + 1)

    patch.setattr(ensemble_change, "update_ledger", hopeful)


# R15, R16


def two_attempts_of_a_task_do_not_meet(directory: Path) -> None:
    ground = Ground(directory)
    table = pa.table({"n": range(5000)})
    writer = lifecycle.create_ledger(
        ground.context, USUAL, schema=table.schema, entry_target_bytes=2000
    )
    plan = writer._adds.begin_bulk("this one", None)
    loser = write_local(plan, table.slice(0, 100), ground.context)
    winner = write_local(plan, table, ground.context)
    assert not any(result.failures for result in (*loser, *winner)), "names are unique"
    writer._adds.end_bulk(plan, winner).result(60)
    writer.close()
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(table)


@rule("R15", two_attempts_of_a_task_do_not_meet)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FanOut, "_name", lambda self, c: f"{self._task:05d}-{c}.arrow")


def a_ledger_made_again_under_an_old_id_is_another_one(directory: Path) -> None:
    ground = Ground(directory, bookies=3)
    for payload in (b"old", b"new"):
        with lifecycle.create_ledger(ground.context, USUAL, ledger_id=5) as writer:
            writer.append(payload)
        if payload == b"old":
            lifecycle.delete_ledger(ground.context, 5)
            ground.cluster.used_ids.clear()  # it was made by a version that left no mark
    (entry,) = lifecycle.open_ledger(ground.client(), 5).entries()
    assert entry.payload == b"new"


@rule("R16 nonces", a_ledger_made_again_under_an_old_id_is_another_one)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ThreadRuntime, "token", lambda self: "0" * 32)


def an_id_that_was_used_is_refused(directory: Path) -> None:
    ground = Ground(directory)
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    lifecycle.delete_ledger(ground.client(), 5, even_if_alive=True)
    try:
        new = lifecycle.create_ledger(ground.client(), USUAL, ledger_id=5)
    except LedgerExistsError:
        return
    new.append(b"new")
    old.close()
    found = ground.context.store.read_ledger(LedgerId(5)).value
    assert found.last_entry_id != -1, "acked-entries-are-readable"


@rule("R16 used ids", an_id_that_was_used_is_refused)
def _(patch: pytest.MonkeyPatch) -> None:
    forgetful = property(lambda self: set(), lambda self, ids: None)
    patch.setattr(MemoryCluster, "used_ids", forgetful, raising=False)


def made_again_by_another_tool(ground: Ground) -> LedgerWriter:
    """A writer of another ledger with the id 5, which has appended an entry."""
    metadata = lifecycle.create_ledger(ground.client(), USUAL).metadata
    found = ground.cluster.recreate_by_another_tool(LedgerId(5), metadata)
    writer = LedgerWriter(ground.client(), Ledger.of(LedgerId(5), found.value), found)
    writer.append(b"new")
    return writer


def an_old_writer_means_its_own_ledger(directory: Path) -> None:
    ground = Ground(directory)
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    made_again_by_another_tool(ground)
    with suppress(NoSuchLedgerError):
        old.close()
    found = ground.context.store.read_ledger(LedgerId(5)).value
    assert found.last_entry_id != -1, "acked-entries-are-readable"


@rule("R16 own writes", an_old_writer_means_its_own_ledger)
def _(patch: pytest.MonkeyPatch) -> None:
    def by_version(ledger_id: LedgerId, found: Versioned[Any], known: Versioned[Any]) -> None:
        if found.version != known.version:
            raise refusals.ledger_conflict(ledger_id, known.version, found.version)

    patch.setattr(memory_store, "_check_unchanged", by_version)


@rule("R16 nonces compared", an_old_writer_means_its_own_ledger)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update, "read_again", lambda store, ledger_id, _: store.read_ledger(ledger_id))


def a_reader_stays_with_its_ledger(directory: Path) -> None:
    ground = Ground(directory)
    lifecycle.create_ledger(ground.context, USUAL, ledger_id=5).append(b"old")
    reader = lifecycle.open_ledger_no_recovery(ground.client(), 5)
    made_again_by_another_tool(ground).close()
    with suppress(NoSuchLedgerError):
        reader.refresh()
    assert [entry.payload for entry in reader.entries()] == [], "the LAC of the old one is -1"


@rule("R16 nonces read", a_reader_stays_with_its_ledger)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(context, "read_again", lambda store, ledger_id, _: store.read_ledger(ledger_id))


def planned_work_is_for_the_ledger_it_was_planned_for(directory: Path) -> None:
    ground = Ground(directory)
    old = lifecycle.create_ledger(ground.context, USUAL, ledger_id=5)
    work = RecoverWork(LedgerId(5), ground.context.store.read_ledger(LedgerId(5)))
    new = made_again_by_another_tool(ground)

    (row,) = recover_one(ground.client(), work)

    assert row.status == "gone"
    assert new.append(b"it was not fenced") == 1
    old.abandon()


@rule("R16 nonces of plans", planned_work_is_for_the_ledger_it_was_planned_for)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(update, "read_again", lambda store, ledger_id, _: store.read_ledger(ledger_id))


# R17


def a_listing_that_lags_hides_no_entry_from_a_recovery(directory: Path) -> None:
    ground = Ground(directory)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for i in range(3):
        writer.append(b"%d" % i)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "list", lambda self, directory: [])
        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert reader.last_add_confirmed == 2, "an acknowledged entry was thought to be absent"
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2"]
    with pytest.raises(LedgerFencedError):
        writer.append(b"3")


@rule("R17_listing", a_listing_that_lags_hides_no_entry_from_a_recovery)
def _(patch: pytest.MonkeyPatch) -> None:
    def trusting(self: LedgerLog, occupied: set[int]) -> int:
        number = max(occupied, default=-1) + 1
        self.storage.put_if_absent(self.paths.slot(number), encode_fence(self.key))
        return number

    patch.setattr(LedgerLog, "_put_fence", trusting)


def metadata_that_was_read_long_ago_is_compared_before_it_counts(directory: Path) -> None:
    ground = Ground(directory, bookies=5)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    remembered = ground.context.store.read_ledger(writer.ledger_id)
    for lost in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(lost)
        ground.until(
            lambda lost=lost: (  # type: ignore[misc]  # the bookie of this turn
                writer.append(b"x") > 0 and lost not in writer.metadata.last_fragment.ensemble
            )
        )

    closed = recover_ledger(ground.client(), writer.ledger_id, remembered).value

    assert closed.last_entry_id == writer.last_add_confirmed
    assert closed.fragments == writer.metadata.fragments


@rule("R17_cache", metadata_that_was_read_long_ago_is_compared_before_it_counts)
def _(patch: pytest.MonkeyPatch) -> None:
    def believing(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Transform,
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        now = store.read_ledger(ledger_id)
        old = known if known is not None else now
        intended = transform(old.value)
        return old if intended is None else store.write_ledger(ledger_id, intended, now)

    patch.setattr(recovery, "update_ledger", believing)


def a_writer_that_was_frozen_appends_nothing_to_a_ledger_deleted_meanwhile(
    directory: Path,
) -> None:
    ground = Ground(directory)
    frozen = ground.client()
    writer = lifecycle.create_ledger(frozen, USUAL)
    writer.append(b"before")
    frozen.store.close()  # its session ends, and nothing tells it of anything

    lifecycle.delete_ledger(ground.context, writer.ledger_id)

    try:
        writer.append(b"after")
    except LedgerFencedError:
        return
    raise AssertionError("an entry of a ledger that is gone was acknowledged")


@rule("delete_fence", a_writer_that_was_frozen_appends_nothing_to_a_ledger_deleted_meanwhile)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deletion, "_fence", lambda context, ledger_id, metadata: {})


def a_ledger_is_not_deleted_while_a_frozen_writer_could_go_on(directory: Path) -> None:
    ground = Ground(directory)
    frozen = ground.client()
    writer = lifecycle.create_ledger(frozen, USUAL)
    writer.append(b"before")
    frozen.store.close()
    for bookie in writer.metadata.last_fragment.ensemble[:2]:  # an ack quorum
        ground.stop(bookie)

    with suppress(RecoveryUndecidedError):
        lifecycle.delete_ledger(ground.context, writer.ledger_id)

    assert writer.ledger_id in ground.cluster.ledgers


@rule("delete_coverage", a_ledger_is_not_deleted_while_a_frozen_writer_could_go_on)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "has_coverage", lambda self, answered: True)


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_with_the_rule_the_story_goes_well(case: Rule, tmp_path: Path) -> None:
    case.story(tmp_path)


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_without_the_rule_the_story_goes_wrong(
    case: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.take_out(monkeypatch)

    with pytest.raises((AssertionError, BookKeeperError)):
        case.story(tmp_path)
