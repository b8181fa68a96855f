"""Recovery of a ledger on real files: what it finds, what it must not decide, and killing it."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieUnavailableError,
    CorruptEntryError,
    MetadataFormatError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime, Killed
from tests.hooks import NO_ANSWER, At
from tests.snapshots import Snapshot
from tests.spoiling import spoil, spoil_at_random
from tests.support.slotlog import find, log_of, read_one
from tests.worlds import USUAL, bulk_written, first_of, payloads, written


def left(ground: Ground, count: int, quorum: Quorum = USUAL) -> LedgerWriter:
    """An open ledger whose writer has gone; everything is on the whole write set."""
    writer = written(ground, count, quorum, close=False)
    writer._pipeline.drain()
    return writer


def half_written(ground: Ground, quorum: Quorum, whole: int, reaching: list[int]) -> LedgerWriter:
    """An open ledger: ``whole`` entries are acknowledged, then each of some more reached only so
    many bookies of its write set, the first of it first, when its writer died.
    """
    writer = left(ground, whole, quorum)
    ensemble = writer.metadata.last_fragment.ensemble
    adds = writer._pipeline
    length = sum(len(b"%d" % i) for i in range(whole))
    of_it = str(adds.ledger.key)
    slots = {
        p: sum(of_it in str(path) for path in ground.files(b, "slots"))
        for p, b in enumerate(ensemble)
    }
    for entry_id, reached in enumerate(reaching, whole):
        payload = b"%d" % entry_id
        length += len(payload)
        for position in quorum.write_set(EntryId(entry_id))[:reached]:
            log = log_of(ground.context, ensemble[position], adds.ledger)
            log.prepare()
            entry = NewEntry(entry_id, length, payload)
            data = encode_add(
                log.key, log.encoding, adds._channels.token, slots[position], whole - 1, [entry]
            )
            log.add(slots[position], data)
            slots[position] += 1
    return writer


def assert_on_ack_quorum(ground: Ground, ledger_id: LedgerId) -> None:
    """closed-entries-reach-ack-quorum, asked of each bookie by reading."""
    ledger, found = ground.context.ledger(ledger_id)
    metadata = found.value
    assert metadata.last_entry_id is not None
    for entry_id in map(EntryId, range(metadata.last_entry_id + 1)):
        ensemble = metadata.fragment_of(entry_id).ensemble
        holders = 0
        for position in metadata.quorum.write_set(entry_id):
            with suppress(BookieUnavailableError):
                log = log_of(ground.context, ensemble[position], ledger)
                holders += is_readable(log, entry_id)
        assert holders >= metadata.quorum.ack_quorum_size, f"entry {entry_id} is on {holders}"


def is_readable(log: LedgerLog, entry_id: EntryId) -> bool:
    for place in log.locate(entry_id, entry_id).places(entry_id):
        with suppress(CorruptEntryError):
            return read_one(log, place).entry_id == entry_id
    return False


def test_p10_a_recovery_is_two_cas_and_a_fence_for_each_bookie(tmp_path: Path) -> None:
    for sizes in ((3, 3, 2), (4, 3, 2)):
        ground = Ground(tmp_path / "".join(map(str, sizes)))
        writer = left(ground, 9, Quorum(*sizes))
        client = ground.client()
        found = client.store.read_ledger(writer.ledger_id)
        ground.forget()

        recover_ledger(client, writer.ledger_id, known=found)

        count = ground.count()
        assert count["write_ledger"] == 2
        assert count["put_if_absent"] == sizes[0]
        assert count["read_ledger"] == 0


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 3, 3), (4, 3, 2), (4, 2, 2), (2, 2, 1)])
def test_acknowledged_entries_survive_and_the_ledger_is_closed(
    ground: Ground, sizes: tuple[int, int, int]
) -> None:
    writer = left(ground, 10, Quorum(*sizes))

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert (closed.state, closed.last_entry_id, closed.length_bytes) == (LedgerState.CLOSED, 9, 10)
    assert payloads(ground.context, writer.ledger_id) == [b"%d" % i for i in range(10)]
    assert_on_ack_quorum(ground, writer.ledger_id)


def test_an_entry_that_reached_one_bookie_is_kept_and_copied(ground: Ground) -> None:
    writer = half_written(ground, USUAL, 3, [1, 1])

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == 4
    assert payloads(ground.context, writer.ledger_id) == [b"0", b"1", b"2", b"3", b"4"]
    assert_on_ack_quorum(ground, writer.ledger_id)


def test_a_ledger_without_entries_is_closed_empty(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert (closed.last_entry_id, closed.length_bytes) == (-1, 0)


def test_many_tiny_entries_are_recovered(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    futures = [writer.append_async(b"") for _ in range(50_000)]
    futures[-1].result(60)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert (closed.last_entry_id, closed.length_bytes) == (49_999, 0)


def test_a_recovery_that_is_repeated_changes_nothing(ground: Ground) -> None:
    writer = half_written(ground, USUAL, 2, [2])
    first = recover_ledger(ground.client(), writer.ledger_id)
    ground.forget()

    assert recover_ledger(ground.client(), writer.ledger_id) == first
    assert ground.count()["write_ledger"] == ground.count()["put_if_absent"] == 0


@pytest.mark.parametrize("trials", first_of(range(4), range(4, 10)), ids=str)
def test_two_recoverers_at_once_agree(ground: Ground, trials: range) -> None:
    for trial in trials:
        writer = half_written(ground, Quorum(4, 3, 2), 4, [1, 2, 1])
        ends: list[LedgerMetadata] = []

        def recover(
            ledger_id: LedgerId = writer.ledger_id, ends: list[LedgerMetadata] = ends
        ) -> None:
            ends.append(recover_ledger(ground.client(), ledger_id).value)

        threads = [threading.Thread(target=recover) for _ in range(2 + trial % 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ends) == len(threads)
        assert all(end == ends[0] for end in ends), "all-closes-agree"
        assert_on_ack_quorum(ground, writer.ledger_id)


def test_r6b_an_entry_behind_another_recoverers_fence_counts(ground: Ground) -> None:
    writer = half_written(ground, USUAL, 1, [1])
    bookie = writer.metadata.last_fragment.ensemble[USUAL.write_set(EntryId(1))[0]]
    slots = ground.files(bookie, "slots")
    fence = log_of(ground.context, bookie, writer._pipeline.ledger)
    kept = slots[1].read_bytes()
    slots[1].unlink()  # its name was lost in a power cut ...
    fence.fence()  # ... so that a fence took its slot, and a late put lands behind it
    slots[1].with_name(f"{2:020}.arrow").write_bytes(kept)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == 1
    assert_on_ack_quorum(ground, writer.ledger_id)


# What must not be decided


def undecided(ground: Ground, writer: LedgerWriter) -> RecoveryUndecidedError:
    with pytest.raises(RecoveryUndecidedError) as caught:
        recover_ledger(ground.client(), writer.ledger_id)
    return caught.value


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 3, 3)])
def test_a_bookie_wiped_and_formatted_again_does_not_truncate(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=6)
    writer = left(ground, 10, Quorum(*sizes))
    for bookie in writer.metadata.last_fragment.ensemble[:1]:
        ground.format(bookie)

    assert payloads(ground.client(), writer.ledger_id) == [b"%d" % i for i in range(10)]


def test_two_wiped_bookies_leave_a_ledger_in_recovery_rather_than_truncated(ground: Ground) -> None:
    writer = left(ground, 10)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.format(a)
    ground.format(b)

    error = undecided(ground, writer)

    assert set(error.blockers) == {a, b}
    for text in (a, b, "must wait", "do not delete it", "do not format"):
        assert text in error.message
    state = ground.context.store.read_ledger(writer.ledger_id).value.state
    assert state is LedgerState.IN_RECOVERY


def test_a_bookie_that_comes_back_unblocks_the_recovery(ground: Ground) -> None:
    writer = left(ground, 5)
    a, b, _ = writer.metadata.last_fragment.ensemble
    ground.stop(a)
    ground.stop(b)
    error = undecided(ground, writer)
    assert set(error.blockers) == {a, b}

    ground.start(error.blockers[0])

    assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 4
    assert_on_ack_quorum(ground, writer.ledger_id)


def test_too_few_fences_are_told_apart_from_an_entry_that_nobody_can_vouch_for(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=2)
    writer = left(ground, 3, Quorum(2, 2, 1))
    there, away = writer.metadata.last_fragment.ensemble
    ground.stop(away)

    error = undecided(ground, writer)

    message = error.message
    assert "too few of its bookies are fenced" in message
    assert f"could still be acknowledged to a writer by 1 of {away}" in message
    assert f"  {there}: fenced\n" in message
    assert f"bring back {away} with its storage" in message
    assert "holds it" not in message
    assert "exists" not in message
    assert error.blockers == (away,)


def test_all_bookies_whose_fences_are_needed_are_asked_for_at_once(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = left(ground, 3, Quorum(4, 2, 1))
    ensemble = writer.metadata.last_fragment.ensemble
    for bookie in ensemble[1:3]:
        ground.stop(bookie)

    with pytest.raises(RecoveryUndecidedError, match=f"bring back {ensemble[1]} and {ensemble[2]}"):
        recover_ledger(ground.client(), writer.ledger_id)


def test_damaged_copies_of_the_tail_are_passed_over_and_made_again(ground: Ground) -> None:
    writer = half_written(ground, USUAL, 2, [3])
    ensemble = writer.metadata.last_fragment.ensemble
    first, second, _ = USUAL.write_set(EntryId(2))
    cut = ground.files(ensemble[first], "slots")[-1]
    cut.write_bytes(cut.read_bytes()[:200])  # nobody can say what was in it
    log = log_of(ground.context, ensemble[second], writer._pipeline.ledger)
    place = find(log.locate(2, 2), 2)
    assert place is not None
    path = ground.root(ensemble[second]) / place.path
    spoil(path, place.offset + place.extent // 2)  # it says that it has entry 2, which is bad

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == 2
    assert_on_ack_quorum(ground, writer.ledger_id)


def test_a_tail_whose_every_copy_is_damaged_is_undecided(ground: Ground) -> None:
    writer = half_written(ground, USUAL, 2, [3])
    for bookie in writer.metadata.last_fragment.ensemble:
        path = ground.files(bookie, "slots")[-1]
        path.write_bytes(path.read_bytes()[:200])

    assert undecided(ground, writer).entry_id == 2


def record_here_and_part_there(ground: Ground, quorum: Quorum) -> tuple[LedgerWriter, pa.Table]:
    """A bulk append is all that an open ledger has. The record of it is damaged on one bookie, and
    the bytes of some entries on all others.
    """
    writer, table = bulk_written(ground, quorum, close=False)
    one, *others = writer.metadata.last_fragment.ensemble
    (record,) = ground.files(one, "slots")
    spoil(record, record.stat().st_size // 4)
    for other in others:
        (part,) = ground.files(other, "parts")
        for fraction in (2, 3, 5):
            spoil(part, part.stat().st_size // fraction)
    return writer, table


@pytest.mark.parametrize("quorum", [Quorum(2, 2, 2), USUAL, Quorum(3, 3, 3)])
def test_what_one_bookies_record_tells_of_anothers_part_is_recovered(
    tmp_path: Path, quorum: Quorum
) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer, table = record_here_and_part_there(ground, quorum)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == writer.last_add_confirmed > 3
    assert closed.length_bytes == writer.length_bytes
    assert_on_ack_quorum(ground, writer.ledger_id)
    assert lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow().equals(table)


def test_of_a_part_that_is_damaged_everywhere_each_entry_is_taken_from_where_it_is_good(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer, table = bulk_written(ground, close=False)
    for number, bookie in enumerate(writer.metadata.last_fragment.ensemble):
        (part,) = ground.files(bookie, "parts")
        spoil(part, part.stat().st_size * (2 * number + 1) // 6)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert closed.last_entry_id == writer.last_add_confirmed
    assert_on_ack_quorum(ground, writer.ledger_id)
    assert lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow().equals(table)


def test_what_no_two_bookies_have_together_stays_undecided(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer, _ = record_here_and_part_there(ground, Quorum(2, 2, 2))
    one, other = writer.metadata.last_fragment.ensemble
    (part,), (same,) = ground.files(other, "parts"), ground.files(one, "parts")
    spoil(same, part.stat().st_size // 2)

    with pytest.raises(RecoveryUndecidedError, match="holds a damaged copy") as caught:
        recover_ledger(ground.client(), writer.ledger_id)

    assert caught.value.entry_id > 3, "the damaged ones before it are not in the way"
    assert set(caught.value.blockers) == {one, other}


# Copies before the close


def test_a_lost_bookie_of_the_tail_is_replaced_when_the_ledger_is_closed(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer = half_written(ground, Quorum(3, 3, 2), 6, [2, 2])
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)

    closed = recover_ledger(ground.client(), writer.ledger_id).value

    assert lost not in closed.last_fragment.ensemble
    assert closed.last_fragment.first_entry_id == 6
    assert payloads(ground.context, writer.ledger_id) == [b"%d" % i for i in range(8)]
    assert_on_ack_quorum(ground, writer.ledger_id)


def test_who_takes_the_place_of_a_full_bookie_gets_all_that_it_held_of_the_tail(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = half_written(ground, USUAL, 1, [2, 1])
    full = writer.metadata.last_fragment.ensemble[1]  # holds entry 1, lacks entry 2
    client = ground.client()
    error = BookieFullError(f"bookie {full}: no space left", bookie_id=full)

    # Entry 1 is on the bookies at 1 and 2, entry 2 at 2 alone: what is replaced is the bookie
    # at 1, and with it one of the two copies of entry 1.
    ground.before.append(At("put_if_absent", error, on=full, within="/copies/"))
    closed = recover_ledger(client, writer.ledger_id).value
    ground.before.clear()

    assert closed.last_entry_id == 2
    assert full not in closed.last_fragment.ensemble
    for entry_id in (1, 2):
        ledger, _ = ground.context.ledger(writer.ledger_id)
        holders = [
            b
            for b in closed.last_fragment.ensemble
            if find(log_of(ground.context, b, ledger).locate(entry_id, entry_id), entry_id)
        ]
        assert len(holders) == 3, f"entry {entry_id} is on {holders}"


def test_a_bookie_formatted_between_the_copy_and_the_close_is_not_named_as_a_holder(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=4)
    writer = half_written(ground, USUAL, 2, [2, 2])
    ensemble = writer.metadata.last_fragment.ensemble
    (spare,) = set(ground.bookie_ids) - set(ensemble)
    ground.stop(ensemble[2], destroy=True)
    has_copies: list[str] = []
    before = ground.context.store.read_cookie(BookieId(spare))
    assert before is not None

    def format_after_the_copy(place: str, operation: str, path: str) -> None:
        if place == spare and operation == "put_if_absent":
            has_copies.append(path)
        elif place == METADATA and has_copies:
            has_copies.clear()
            ground.format(spare)

    client = ground.client(InlineRuntime(), format_after_the_copy)
    closed = recover_ledger(client, writer.ledger_id).value

    assert spare in closed.last_fragment.ensemble
    named = Ledger.of(writer.ledger_id, closed).incarnations[spare]
    assert named == before.value.incarnation, "the one that took the copies"
    assert payloads(ground.client(), writer.ledger_id) == [b"0", b"1", b"2", b"3"]


def test_r6_without_an_ack_quorum_of_copies_the_ledger_is_not_closed(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writer = half_written(ground, USUAL, 1, [1])
    holder = writer.metadata.last_fragment.ensemble[USUAL.write_set(EntryId(1))[0]]

    def read_only(place: str, operation: str, path: str) -> None:
        if place != holder and "/copies/" in path and operation == "put_if_absent":
            raise BookieFullError(f"bookie {place}: no space left", bookie_id=place)

    ground.before.append(read_only)
    with pytest.raises(NotEnoughBookiesError, match="fewer than 2 bookies"):
        recover_ledger(ground.client(), writer.ledger_id)
    assert ground.context.store.read_ledger(writer.ledger_id).value.state is LedgerState.IN_RECOVERY

    ground.before.clear()
    assert recover_ledger(ground.client(), writer.ledger_id).value.last_entry_id == 1


# The metadata


@pytest.mark.parametrize("moment", ["list", "put_if_absent"])
def test_a_recovery_that_fails_after_another_closed_the_ledger_adopts_that(
    tmp_path: Path, moment: str
) -> None:
    ground = Ground(tmp_path, bookies=3)
    writer = left(ground, 4, Quorum(3, 3, 2))
    writer.abandon()

    def recover() -> None:
        recover_ledger(ground.client(), writer.ledger_id)
        for bookie in writer.metadata.last_fragment.ensemble[:2]:
            ground.stop(bookie)

    meeting = At(moment, recover, only=[0])
    found = recover_ledger(ground.client(None, meeting), writer.ledger_id)
    assert meeting.met
    assert (found.value.state, found.value.last_entry_id) == (LedgerState.CLOSED, 3)


def test_a_ledger_deleted_meanwhile_is_never_made_again(ground: Ground) -> None:
    writer = left(ground, 3)
    ledgers = ground.cluster.ledgers
    ground.before.append(At("put_if_absent", lambda: ledgers.pop(writer.ledger_id, None)))
    with pytest.raises(NoSuchLedgerError):
        recover_ledger(ground.client(), writer.ledger_id)
    assert list(ground.context.store.ledger_ids()) == []


def test_a_ledger_of_another_client_is_refused_before_it_is_flagged(ground: Ground) -> None:
    store = ground.context.store
    metadata = LedgerMetadata(
        USUAL, LedgerState.OPEN, (Fragment(EntryId(0), tuple(ground.bookie_ids[:3])),)
    )
    ledger_id = store.generate_ledger_id()
    store.create_ledger(ledger_id, metadata, is_generated=True)

    with pytest.raises(MetadataFormatError, match="written by another BookKeeper client"):
        recover_ledger(ground.client(), ledger_id)

    assert store.read_ledger(ledger_id).value.state is LedgerState.OPEN, "its writer goes on"


@pytest.mark.parametrize("which", [0, 1])
def test_r14_a_cas_whose_answer_is_lost_is_compared_with_what_was_meant(
    ground: Ground, which: int
) -> None:
    writer = left(ground, 3)

    ground.after.append(At("write_ledger", NO_ANSWER, only=[which]))
    closed = recover_ledger(ground.client(), writer.ledger_id)

    assert closed.value.last_entry_id == 2
    assert closed.version == 2, "nothing was written twice"


# Killed anywhere


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((3, 3, 2), 3),
        ((4, 3, 2), 5),
        pytest.param((3, 3, 2), 1, marks=pytest.mark.full),
        pytest.param((4, 3, 2), 1, marks=pytest.mark.full),
    ],
)
def test_a_recovery_killed_between_any_two_operations_is_finished_by_the_next(
    tmp_path: Path, sizes: tuple[int, int, int], step: int
) -> None:
    """At some operations, and in the full run at each."""
    begun = Ground(tmp_path / "begun", bookies=5, runtime=InlineRuntime())
    writer = half_written(begun, Quorum(*sizes), 3, [1, 2])
    begun.stop(writer.metadata.last_fragment.ensemble[2], destroy=True)
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        with suppress(Killed):
            recover_ledger(ground.client(InlineRuntime(), kill), writer.ledger_id)
        closed = recover_ledger(ground.client(InlineRuntime()), writer.ledger_id).value
        assert closed.last_entry_id == 4, at
        assert_on_ack_quorum(ground, writer.ledger_id)
    assert at > 20


@pytest.mark.parametrize("seeds", first_of(range(6), range(6, 12)), ids=str)
def test_two_of_three_replicas_of_every_file_damaged_at_random(
    tmp_path: Path, seeds: range
) -> None:
    for seed in seeds:
        dice = random.Random(seed)
        ground = Ground(tmp_path / str(seed), bookies=4)
        writer = left(ground, 8)
        closed = seed % 2 == 0
        if closed:
            recover_ledger(ground.client(), writer.ledger_id)
        ensemble = list(writer.metadata.last_fragment.ensemble)
        names = sorted({p.name for b in ensemble for p in ground.files(b, "slots")})
        for name in names:
            for bookie in dice.sample(ensemble, 2 if closed else 1):
                for path in ground.files(bookie, "slots"):
                    if path.name == name:
                        spoil_at_random(path, dice)

        assert payloads(ground.client(), writer.ledger_id) == [b"%d" % i for i in range(8)]


def test_metadata_is_asked_nothing_else_while_entries_are_found(ground: Ground) -> None:
    writer = left(ground, 3)
    client = ground.client()
    ground.forget()

    recover_ledger(client, writer.ledger_id)

    asked = [s.operation for s in ground.steps if s.place == METADATA]
    assert asked.count("read_ledger") == 1
    assert asked.count("registrations") <= 1
