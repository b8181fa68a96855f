"""Each rule of data safety is taken out of the real code, and the simulation sees the harm.

A mutant is the library with one rule missing. Lifetimes of ledgers run under it, seed after seed,
until a named invariant breaks. A mutant that lives through all of them would mean that the rule is
not needed, or that the simulation is blind to it.

Source: SLOT-LOG, "Rules"; the names are those in brackets there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.bookie.index import Tail
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.named import NamedStorage
from spark_bookkeeper.client import adds, ensemble, recovery
from spark_bookkeeper.client import reader as client_reader
from spark_bookkeeper.client.lane import Group, Lane
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recovery import _LedgerRecovery
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    MetadataUnavailableError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import LedgerStore, Versioned
from spark_bookkeeper.metadata.update import Transform, update_ledger
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import FencedAnswer, Recovery
from spark_bookkeeper.protocol.writer import Acknowledge, Command, Writer
from spark_bookkeeper.testing.simulation.lifetime import LifetimeError, run_lifetime

SEEDS_MAX = 10_000

INVARIANTS = (
    "acked-entries-are-readable",
    "all-closes-agree",
    "closed-entries-reach-ack-quorum",
    "confirmed-never-exceeds-last-entry",
    "entries-in-write-order",
    "lac-is-confirmed",
    "no-count-behind-a-fence",
    "replicas-are-identical",
    "only a close changes the last fragment in recovery",  # an assertion of rule R8
)

RARE = {"cookie_neg", "ec_cas_first", "ec_recount", "in_recovery", "read_to_the_lac"}
"""Mutants that live for hundreds of lifetimes; scenarios kill them at once (the file beside)."""

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Mutant] = {}


def mutant(make: Mutant) -> Mutant:
    """Register the function as the mutant without the rule that it is named after."""
    MUTANTS[make.__name__] = make
    return make


# R2, R3, R4, R5: the slot log as its users see it


@mutant
def prefix_ack(patch: pytest.MonkeyPatch) -> None:
    """A put whose outcome is unknown is left behind, and the next slot is taken."""

    def store(self: Lane, group: Group) -> None:
        if not group.is_striped_to(self.position):
            return
        log = self._prepared_log()
        for _ in range(5):
            try:
                log.add(self._slot, group.record(self.position, self._slot))
            except BookieUnavailableError:
                log._ranges.clear()
                self._slot += 1
            else:
                break
        self._slot += 1

    patch.setattr(Lane, "store", store)


@mutant
def exists_check(patch: pytest.MonkeyPatch) -> None:
    """A slot that exists is taken for one's own."""
    patch.setattr(LedgerLog, "_check_exists", lambda self, slot, path, data: None)


@mutant
def fenced_negative(patch: pytest.MonkeyPatch) -> None:
    """Bookies are asked without being fenced."""

    def fence(self: LedgerLog, after: int | None = None) -> Tail:
        return replace(self.tail(after), is_fenced=True)

    patch.setattr(LedgerLog, "fence", fence)


@mutant
def fresh_negative(patch: pytest.MonkeyPatch) -> None:
    """The answer is read before the fence is put."""
    fence = LedgerLog.fence

    def stale(self: LedgerLog, after: int | None = None) -> Tail:
        before = self.tail(after)
        fenced = fence(self, after)
        return replace(before, slots=fenced.slots, is_fenced=True)

    patch.setattr(LedgerLog, "fence", stale)


@mutant
def cookie_neg(patch: pytest.MonkeyPatch) -> None:
    """A bookie that was wiped, or formatted again, answers all the same."""
    patch.setattr(LedgerLog, "_check_life", lambda self: None)


@mutant
def neg_quorum(patch: pytest.MonkeyPatch) -> None:
    """One miss is enough."""
    patch.setattr(Quorum, "misses_needed", 1)


@mutant
def neg_writeset(patch: pytest.MonkeyPatch) -> None:
    """A miss counts from any bookie of the ensemble."""
    ask = Recovery._ask

    def anybody(self: Recovery, entry_id: EntryId) -> tuple[tuple[int, ...], tuple[int, ...]]:
        hits, _ = ask(self, entry_id)
        misses = [
            p
            for p, answer in self._answers.items()
            if isinstance(answer, FencedAnswer) and answer.says_no(entry_id)
        ]
        return hits, tuple(misses)

    patch.setattr(Recovery, "_ask", anybody)


# R6: before the close


@mutant
def wb_quorum(patch: pytest.MonkeyPatch) -> None:
    """A ledger is closed with one copy of its recovered entries."""
    patch.setattr(_LedgerRecovery, "_write_back", lambda self, decision: self._ensemble)


# R7, R10: the writer


@mutant
def contiguous_ack(patch: pytest.MonkeyPatch) -> None:
    """An entry is acknowledged though one before it is not."""

    def confirmed_through(self: Quorum, stored_through: list[EntryId], pushed: EntryId) -> EntryId:
        for entry_id in range(pushed, -1, -1):
            write_set = self.write_set(EntryId(entry_id))
            if sum(stored_through[p] >= entry_id for p in write_set) >= self.ack_quorum_size:
                return EntryId(entry_id)
        return EntryId(-1)

    patch.setattr(Quorum, "confirmed_through", confirmed_through)


@mutant
def ec_cas_first(patch: pytest.MonkeyPatch) -> None:
    """Entries are confirmed while the new ensemble is not in the metadata yet."""

    def confirm(self: Writer) -> list[Command]:
        confirmed = self.quorum.confirmed_through(self._stored_through, self.last_add_pushed)
        if confirmed <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = confirmed
        return [Acknowledge(confirmed)]

    patch.setattr(Writer, "_confirm", confirm)


@mutant
def ec_recount(patch: pytest.MonkeyPatch) -> None:
    """Acks of a replaced bookie go on counting."""
    adopt = Writer._adopt

    def keeping(self: Writer, ensemble: tuple[Any, ...]) -> list[Command]:
        stored = list(self._stored_through)
        commands = adopt(self, ensemble)
        self._stored_through = stored
        return commands + self._confirm()

    patch.setattr(Writer, "_adopt", keeping)


@mutant
def lac_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A record names its own last entry as confirmed."""
    init = Group.__init__

    def hasty(
        self: Group, ledger: Ledger, token: str, entries: Any, lac: int, runtime: Any
    ) -> None:
        init(self, ledger, token, entries, EntryId(entries[-1].entry_id), runtime)

    patch.setattr(Group, "__init__", hasty)


@mutant
def read_to_the_lac(patch: pytest.MonkeyPatch) -> None:
    """A reader of an open ledger reads whatever some bookie holds (R10)."""
    read = client_reader.read_last_add_confirmed

    def all_there_is(context: Any, ledger: Ledger) -> EntryId:
        confirmed = read(context, ledger)
        for bookie in ledger.metadata.last_fragment.ensemble:
            try:
                found = context.bookies.log(bookie, ledger).tail().entries
            except BookieUnavailableError:
                continue
            confirmed = EntryId(max(confirmed, found.last_entry_id))
        return confirmed

    patch.setattr(client_reader, "read_last_add_confirmed", all_there_is)


# R8, R14: metadata


@mutant
def in_recovery(patch: pytest.MonkeyPatch) -> None:
    """A recovery begins without taking the ledger from its writer."""

    def update(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Transform,
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        if transform is recovery._flag:
            found = store.read_ledger(ledger_id)
            if found.value.state is LedgerState.OPEN:
                return Versioned(found.value.in_recovery(), found.version)
            return found
        return update_ledger(store, ledger_id, transform, known=known)

    patch.setattr(recovery, "update_ledger", update)


@mutant
def frag_start(patch: pytest.MonkeyPatch) -> None:
    """Reading forward begins below the last fragment."""

    def first(self: Recovery) -> EntryId:
        confirmed = (answer.last_add_confirmed for answer in self._fenced().values())
        return EntryId(max(0, *(lac + 1 for lac in confirmed), 0))

    patch.setattr(Recovery, "first_recovered", property(first))


def forced(
    store: LedgerStore,
    ledger_id: LedgerId,
    transform: Transform,
    *,
    known: Versioned[LedgerMetadata] | None = None,
) -> Versioned[LedgerMetadata]:
    """Write what was meant for the value that is known, over whatever is there now."""
    if transform is recovery._flag:
        return update_ledger(store, ledger_id, transform, known=known)
    assert known is not None
    intended = transform(known.value)
    if intended is None:
        return known
    while True:
        try:
            return store.write_ledger(ledger_id, intended, store.read_ledger(ledger_id).version)
        except VersionConflictError:
            continue


@mutant
def close_cas(patch: pytest.MonkeyPatch) -> None:
    """A recoverer writes its close over that of another."""
    patch.setattr(recovery, "update_ledger", forced)


@mutant
def writer_close_cas(patch: pytest.MonkeyPatch) -> None:
    """The writer writes its close over that of a recoverer."""
    patch.setattr(adds, "update_ledger", forced)


@mutant
def ambiguous_cas(patch: pytest.MonkeyPatch) -> None:
    """A change whose answer was lost is taken for done (R14)."""

    def hopeful(
        store: LedgerStore,
        ledger_id: LedgerId,
        transform: Transform,
        *,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        meant: dict[str, LedgerMetadata | None] = {}

        def remembered(old: LedgerMetadata) -> LedgerMetadata | None:
            meant["value"] = transform(old)
            return meant["value"]

        current = known if known is not None else store.read_ledger(ledger_id)
        while True:
            intended = remembered(current.value)
            if intended is None or intended == current.value:
                return current
            try:
                return store.write_ledger(ledger_id, intended, current.version)
            except MetadataUnavailableError:
                return Versioned(intended, current.version + 1)
            except VersionConflictError:
                current = store.read_ledger(ledger_id)

    for module in (adds, recovery, ensemble):
        patch.setattr(module, "update_ledger", hopeful)


# R9


@mutant
def observe_sync(patch: pytest.MonkeyPatch) -> None:
    """What was merely found counts before it is durable."""
    patch.setattr(NamedStorage, "sync", lambda self, path: None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in MUTANTS],
)
def test_without_the_rule_an_invariant_breaks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)

    for seed in range(SEEDS_MAX):
        try:
            run_lifetime(seed)
        except LifetimeError as error:
            broken = str(error).splitlines()[0]
            assert any(invariant in broken for invariant in INVARIANTS), broken
            return
    pytest.fail(f"the simulation does not miss the rule {name} in {SEEDS_MAX} lifetimes")
