"""Stories of a recovery: what counts as an answer, whose ledger it is, and what it is read from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.bookie import slots
from spark_bookkeeper.bookie.index import Doubt
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import RecordKind, encode_fence
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover import recovery
from spark_bookkeeper.client.recover.recovery import LedgerRecovery, recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import LedgerFencedError, RecoveryUndecidedError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.recovery import FencedAnswer
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from tests.rules.story import needs, put
from tests.simulation import mutants
from tests.support.slotlog import log_of
from tests.worlds import written

# R5


@needs("cookie_neg", mutants.cookie_neg)
def wiped_bookies_say_nothing(ground: Ground) -> None:
    writer = written(ground, 3, close=False)
    a, b, c = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)
    ground.stop(c)
    try:
        closed = recover_ledger(ground.client(), writer.ledger_id).value
    except RecoveryUndecidedError:
        return
    assert closed.last_entry_id == 2, "acked-entries-are-readable"


def closes_right_or_waits(ground: Ground, writer: LedgerWriter, last: int) -> None:
    """Whoever recovers now finds that end, or says who is needed to know."""
    try:
        closed = recover_ledger(ground.client(), writer.ledger_id).value
    except RecoveryUndecidedError:
        return
    assert closed.last_entry_id == last, "acked-entries-are-readable"


def two_acknowledged(ground: Ground) -> tuple[LedgerWriter, BookieId, BookieId]:
    """Entries 1 and 2 on two bookies, and so acknowledged; the third has only entry 0."""
    writer = written(ground, 1, close=False)
    a, b, _ = writer.metadata.last_fragment.ensemble
    for entry_id in (1, 2):
        put(ground, writer, 0, entry_id, entry_id)
        put(ground, writer, 1, entry_id, entry_id)
    return writer, a, b


def without_lost_slot(patch: pytest.MonkeyPatch) -> None:
    doubts = slots._Found.doubts

    def believing_fences(self: slots._Found) -> list[Doubt]:
        self.fences.clear()
        return doubts(self)

    patch.setattr(slots._Found, "doubts", believing_fences)


@needs("lost_slot", without_lost_slot, bookies=3)
def a_slot_lost_below_others_is_no_miss(ground: Ground) -> None:
    writer, a, b = two_acknowledged(ground)
    ground.files(a, "slots")[1].unlink()
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)
    closes_right_or_waits(ground, writer, 2)  # the lost slot's place was fenced meanwhile
    ground.start(b)
    assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 2


@needs("lost_slot, below a fence", mutants.hole_below_fence, bookies=3)
def a_slot_lost_below_a_fence_is_no_miss(ground: Ground) -> None:
    for is_overwritten in (False, True):
        writer, a, b = two_acknowledged(ground)
        log_of(ground.context, a, writer._pipeline.ledger).fence()
        *_, newest, fence = ground.files(a, "slots")
        newest.unlink()
        if is_overwritten:
            newest.write_bytes(fence.read_bytes())
        ground.stop(b)

        closes_right_or_waits(ground, writer, 2)
        closes_right_or_waits(ground, writer, 2)  # the lost slot's place was fenced meanwhile
        ground.start(b)
        assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 2


@needs("slot_number", mutants.slot_number, bookies=3)
def a_slot_with_anothers_bytes_is_no_miss(ground: Ground) -> None:
    writer, a, b = two_acknowledged(ground)
    files = ground.files(a, "slots")
    data = files[1].read_bytes()
    files[2].unlink()
    files[2].write_bytes(data)
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)


def without_lost_ledgers(patch: pytest.MonkeyPatch) -> None:
    make = LocalStorage.make_directory

    def with_all_parents(self: LocalStorage, path: str) -> None:
        make(self, path.partition("/")[0])
        make(self, path)

    patch.setattr(LocalStorage, "make_directory", with_all_parents)


@needs("lost_ledgers", without_lost_ledgers, bookies=3)
def a_bookie_without_its_ledgers_says_nothing(ground: Ground) -> None:
    writer, a, b = two_acknowledged(ground)
    shutil.rmtree(ground.root(a) / "ledgers")
    ground.stop(b)

    closes_right_or_waits(ground, writer, 2)
    assert not (ground.root(a) / "ledgers").exists(), "nobody makes it anew"


def without_fence_above_all(patch: pytest.MonkeyPatch) -> None:
    def put_fence(self: LedgerLog, occupied: set[int]) -> int:
        number = next(n for n in range(len(occupied) + 1) if n not in occupied)
        self.storage.put_if_absent(self.paths.slot(number), encode_fence(self.key))
        return number

    patch.setattr(LedgerLog, "_put_fence", put_fence)


@needs("fence_above_all", without_fence_above_all, bookies=3)
def a_writer_that_won_what_was_lost_is_fenced_where_it_goes_on(ground: Ground) -> None:
    writer, a, _ = two_acknowledged(ground)
    ledger = writer._pipeline.ledger
    ground.files(a, "slots")[1].unlink()
    log_of(ground.context, a, ledger).fence()

    try:
        put(ground, writer, 0, 3, 3)
    except LedgerFencedError:
        return
    raise AssertionError("no-count-behind-a-fence")


# R6b


def without_wb_sealed(patch: pytest.MonkeyPatch) -> None:
    fenced_answer = LedgerRecovery._fenced_answer

    def below_the_fence(self: LedgerRecovery, position: int) -> FencedAnswer:
        answer = fenced_answer(self, position)
        records = list(log_of(self._context, self.ensemble[position], self._ledger).records())
        fence = min(r.slot for r in records if r.kind is RecordKind.FENCE)
        behind = {EntryId(int(e)) for r in records if r.slot > fence for e in r.ids}
        return replace(answer, held=frozenset(answer.held - behind))

    patch.setattr(LedgerRecovery, "_fenced_answer", below_the_fence)


@needs("wb_sealed", without_wb_sealed)
def an_entry_behind_a_fence_is_kept(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
    members = writer.metadata.last_fragment.ensemble
    ledger = writer._pipeline.ledger
    # The slot before it was lost in a power cut, and another recoverer's fence is in its place.
    put(ground, writer, 0, 2, 1)
    log_of(ground.context, members[0], ledger).fence()

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == 1


# R8


def without_in_recovery(patch: pytest.MonkeyPatch) -> None:
    def update(store: Any, ledger_id: Any, transform: Any, *, known: Any = None) -> Any:
        if transform is recovery.flag:
            found = store.read_ledger(ledger_id)
            return replace(found, value=found.value.in_recovery())
        return update_ledger(store, ledger_id, transform, known=known)

    patch.setattr(recovery, "update_ledger", update)


@needs("in_recovery", without_in_recovery, bookies=6)
def a_recovery_takes_the_ledger_from_its_writer(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
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


@needs("rec_ec_at_close, rec_reads_orig", mutants.rec_ec_at_close)
def a_second_recovery_asks_who_held_the_entries(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
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


# R17


def without_r17_listing(patch: pytest.MonkeyPatch) -> None:
    def trusting(self: LedgerLog, occupied: set[int]) -> int:
        number = max(occupied, default=-1) + 1
        self.storage.put_if_absent(self.paths.slot(number), encode_fence(self.key))
        return number

    patch.setattr(LedgerLog, "_put_fence", trusting)


@needs("R17_listing", without_r17_listing)
def a_listing_that_lags_hides_no_entry_from_a_recovery(ground: Ground) -> None:
    writer = written(ground, 3, close=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "list", lambda self, directory: [])
        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert reader.last_add_confirmed == 2, "an acknowledged entry was thought to be absent"
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2"]
    with pytest.raises(LedgerFencedError):
        writer.append(b"3")


def without_r17_cache(patch: pytest.MonkeyPatch) -> None:
    def believing(store: Any, ledger_id: Any, transform: Any, *, known: Any = None) -> Any:
        now = store.read_ledger(ledger_id)
        old = known if known is not None else now
        intended = transform(old.value)
        return old if intended is None else store.write_ledger(ledger_id, intended, now)

    patch.setattr(recovery, "update_ledger", believing)


@needs("R17_cache", without_r17_cache, bookies=5)
def metadata_that_was_read_long_ago_is_compared_before_it_counts(ground: Ground) -> None:
    writer = written(ground, 1, close=False)
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
