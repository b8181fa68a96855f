"""Each checker is silent about a sound ledger, and speaks up when its invariant is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import NewEntry, PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.record import encode_add, encode_fence
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.simulation import checkers
from spark_bookkeeper.testing.simulation.checkers import Checker, InvariantError
from spark_bookkeeper.testing.simulation.evidence import (
    Evidence,
    RawEntry,
    RawRecord,
    take_apart,
)
from spark_bookkeeper.testing.simulation.history import History

A, B, C, D = (BookieId(f"{letter}:3181") for letter in "abcd")
PAYLOADS = [b"zero", b"one", b"two"]
LENGTHS = [4, 7, 10]


class Sound:
    """A closed ledger of three entries, 3/3/2; tests break one thing of it."""

    def __init__(self) -> None:
        self.history = History()
        for payload in PAYLOADS:
            self.history.note_appended("writer", payload)
        for entry_id in (0, 1):
            self.history.note_acknowledged("writer", entry_id, PAYLOADS[entry_id])
        self.history.note_closed("recoverer", 2, 10)
        self.history.note_returned("reader", 2, b"two")
        opened = LedgerMetadata(
            Quorum(3, 3, 2), LedgerState.OPEN, (Fragment(EntryId(0), (A, B, C)),)
        )
        self.versions = [opened, opened.in_recovery(), opened.in_recovery().closed(EntryId(2), 10)]
        self.records: dict[bytes, RawRecord] = {}
        self.files: dict[BookieId, dict[str, bytes]] = {A: {}, B: {}, C: {}, D: {}}
        for bookie in (A, B, C):
            for entry_id in range(3 if bookie != C else 1):
                self.put(bookie, f"slots/{entry_id:020d}", add(entry_id))
            self.put(
                bookie, f"slots/{3 if bookie != C else 1:020d}", RawRecord("FENCE", "", -1, {})
            )

    def put(self, bookie: BookieId, name: str, record: RawRecord) -> None:
        data = repr(record).encode()
        self.records[data] = record
        self.files[bookie][f"ledgers/7-n/{name}.arrow"] = data

    def remove(self, bookie: BookieId, name: str) -> None:
        del self.files[bookie][f"ledgers/7-n/{name}.arrow"]

    def evidence(self) -> Evidence:
        def files(bookie: BookieId) -> Mapping[str, bytes]:
            return self.files[bookie]

        evidence = Evidence(self.history, files, self.records.get)
        evidence.versions = self.versions
        for bookie in self.files:
            evidence.log(bookie)
        return evidence


def add(entry_id: int, payload: bytes | None = None, lac: int = -1) -> RawRecord:
    content = payload or PAYLOADS[entry_id]
    entry = RawEntry(LENGTHS[entry_id], len(content), (content,))
    return RawRecord("ADD", "w", lac, {entry_id: entry})


def breaks(sound: Sound, checker: Checker, *others: Checker) -> None:
    """The checker fails by its name; and what is not in ``others`` holds."""
    evidence = sound.evidence()
    name = checker.__name__.replace("_", "-")
    with pytest.raises(InvariantError, match=f"^{name}: "):
        checker(evidence)
    for bystander in checkers.AT_THE_END:
        if bystander not in (checker, *others):
            bystander(sound.evidence())


def test_a_sound_ledger_passes_every_checker() -> None:
    checkers.check(Sound().evidence(), (*checkers.AT_THE_END, *checkers.AFTER_TELLING))


def test_an_acknowledged_entry_beyond_the_last_one_is_lost() -> None:
    sound = Sound()
    sound.versions[-1] = sound.versions[1].closed(EntryId(0), 4)
    sound.history.closed.clear()

    breaks(sound, checkers.acked_entries_are_readable, checkers.confirmed_never_exceeds_last_entry)
    breaks(sound, checkers.confirmed_never_exceeds_last_entry, checkers.acked_entries_are_readable)


def test_an_acknowledged_entry_with_too_few_copies_is_in_danger() -> None:
    sound = Sound()
    sound.remove(B, f"slots/{1:020d}")

    breaks(sound, checkers.acked_entries_are_readable, checkers.closed_entries_reach_ack_quorum)


def test_destroyed_storage_excuses_the_copies_that_were_on_it() -> None:
    sound = Sound()
    sound.files[B].clear()

    evidence = sound.evidence()
    evidence.lost.add((B, ""))

    checkers.check(evidence, checkers.AT_THE_END)


def test_a_recovered_entry_must_reach_the_ack_quorum_before_the_close() -> None:
    sound = Sound()
    sound.remove(B, f"slots/{2:020d}")

    breaks(sound, checkers.closed_entries_reach_ack_quorum)


def test_two_ends_of_one_ledger_are_noticed_in_the_metadata_and_in_what_clients_were_told() -> None:
    sound = Sound()
    sound.history.note_closed("writer", 1, 7)

    breaks(sound, checkers.all_closes_agree)

    sound = Sound()
    sound.versions.append(sound.versions[1].closed(EntryId(1), 7))

    breaks(sound, checkers.all_closes_agree)

    sound = Sound()
    sound.versions.append(sound.versions[0])

    breaks(sound, checkers.all_closes_agree, checkers.ledger_gets_closed)


def test_a_record_with_a_lac_beyond_the_end_is_noticed() -> None:
    sound = Sound()
    sound.versions[-1] = sound.versions[1].closed(EntryId(1), 7)
    sound.history.closed.clear()
    sound.put(A, f"slots/{0:020d}", add(0, lac=2))

    breaks(sound, checkers.confirmed_never_exceeds_last_entry)


def test_a_lac_that_was_not_confirmed_is_noticed() -> None:
    sound = Sound()
    sound.remove(B, f"slots/{2:020d}")
    sound.put(A, f"slots/{0:020d}", add(0, lac=2))

    breaks(sound, checkers.lac_is_confirmed, checkers.closed_entries_reach_ack_quorum)


def test_two_replicas_that_differ_are_noticed_even_when_one_is_gone_again() -> None:
    sound = Sound()
    sound.put(B, f"slots/{1:020d}", add(1, b"eno"))

    breaks(sound, checkers.replicas_are_identical)


def test_entries_out_of_order_are_noticed_on_disk_when_acknowledged_and_when_read() -> None:
    sound = Sound()
    sound.history.appended.reverse()

    breaks(sound, checkers.entries_in_write_order)

    sound = Sound()
    sound.history.acknowledged.reverse()

    breaks(sound, checkers.entries_in_write_order)

    sound = Sound()
    sound.history.note_returned("reader", 2, b"one")

    breaks(sound, checkers.entries_in_write_order)


def test_slots_that_do_not_ascend_in_entry_ids_are_noticed() -> None:
    sound = Sound()
    sound.put(A, f"slots/{3:020d}", add(1))
    sound.put(A, f"slots/{4:020d}", RawRecord("FENCE", "", -1, {}))

    breaks(sound, checkers.entries_in_write_order)


def test_fragments_that_do_not_ascend_or_repeat_a_bookie_or_change_the_past_are_noticed() -> None:
    sound = Sound()
    object.__setattr__(sound.versions[0], "fragments", (Fragment(EntryId(1), (A, B, C)),))
    breaks(sound, checkers.fragments_are_sorted_and_valid)

    sound = Sound()
    object.__setattr__(sound.versions[-1], "fragments", (Fragment(EntryId(0), (A, B, B)),))
    breaks(sound, checkers.fragments_are_sorted_and_valid)

    sound = Sound()
    second = Fragment(EntryId(1), (A, B, C))
    sound.versions[0] = replace(
        sound.versions[0], fragments=(Fragment(EntryId(0), (A, B, D)), second)
    )
    sound.versions[1] = replace(
        sound.versions[1], fragments=(Fragment(EntryId(0), (A, B, C)), second)
    )
    breaks(sound, checkers.fragments_are_sorted_and_valid)


def test_an_acknowledgement_that_counts_an_add_behind_a_fence_is_noticed() -> None:
    sound = Sound()
    sound.put(B, f"slots/{0:020d}", RawRecord("FENCE", "", -1, {}))
    sound.put(C, f"slots/{1:020d}", RawRecord("FENCE", "", -1, {}))

    with pytest.raises(InvariantError, match=r"^no-count-behind-a-fence: entry 1 .* only "):
        checkers.no_count_behind_a_fence(sound.evidence())


def test_a_ledger_that_stays_open_is_noticed() -> None:
    sound = Sound()
    sound.versions.pop()
    sound.history.closed.clear()

    breaks(sound, checkers.ledger_gets_closed)


def test_a_file_is_taken_apart_without_the_library() -> None:
    key = LedgerKey(7, "n")
    entries = [NewEntry(EntryId(e), LENGTHS[e], PAYLOADS[e]) for e in (1, 2)]

    record = take_apart(encode_add(key, LedgerEncoding(), "w", 4, 0, entries))

    one, two = RawEntry(7, 3, (b"one",)), RawEntry(10, 3, (b"two",))
    assert record == RawRecord("ADD", "w", 0, {1: one, 2: two})
    assert take_apart(encode_fence(key)) == RawRecord("FENCE", "", -1, {})
    assert take_apart(b"ARROW1 and no more") is None


def part_of_two_entries() -> tuple[PlacedPart, bytes]:
    pieces: list[bytes] = []
    encoder = PartEncoder(
        LedgerKey(7, "n"), LedgerEncoding(), lambda data: pieces.append(bytes(data))
    )
    encoder.add(pa.record_batch({"payload": [b"a", b"b"]}))
    encoder.add(pa.record_batch({"payload": [b"c"]}))
    ref = encoder.finish("t-0-0.arrow")
    return PlacedPart(ref, (3, 4), (10 + ref.sizes[0], 10 + sum(ref.sizes))), b"".join(pieces)


def test_a_part_counts_only_whole_and_beside_the_record_that_lists_it() -> None:
    key = LedgerKey(7, "n")
    placed, part = part_of_two_entries()
    slot = encode_add(key, LedgerEncoding(), "w", 0, 2, parts=[placed], spans=[(3, 4)])
    files = {LedgerPaths(key).slot(0): slot, LedgerPaths(key).part("t-0-0.arrow"): part}
    evidence = Evidence(History(), lambda _: files)

    assert evidence.log(A).held == {3, 4}
    assert evidence.content[3].rows == (b"a", b"b")
    assert evidence.content[4].rows == (b"c",)

    files[LedgerPaths(key).part("t-0-0.arrow")] = part[:-1]
    evidence.changed(A)
    assert evidence.log(A).held == set()

    del files[LedgerPaths(key).part("t-0-0.arrow")]
    evidence.changed(A)
    assert evidence.log(A).held == set()
    assert evidence.log(A).slots == {0: ("ADD", set())}


def test_a_damaged_file_counts_as_nothing() -> None:
    sound = Sound()
    evidence = sound.evidence()
    evidence.damaged.add((B, f"ledgers/7-n/slots/{1:020d}.arrow"))
    evidence.changed(B)

    with pytest.raises(InvariantError, match=r"^acked-entries-are-readable: entry 1 "):
        checkers.acked_entries_are_readable(evidence)

    evidence.lost.add((B, ""))
    checkers.check(evidence, checkers.AT_THE_END)


def test_a_table_may_be_several_entries_and_a_payload_only_one() -> None:
    sound = Sound()
    sound.history.acknowledged.clear()
    sound.history.note_acknowledged("writer", 1, *PAYLOADS[:2])
    checkers.check(sound.evidence(), checkers.AT_THE_END)

    sound.history.acknowledged.clear()
    sound.history.note_acknowledged("writer", 1, b"zeroone")
    breaks(sound, checkers.entries_in_write_order, checkers.acked_entries_are_readable)


def test_a_fragment_of_an_open_ledger_may_change_only_where_somebody_copies() -> None:
    sound = Sound()
    second = Fragment(EntryId(1), (A, B, C))
    before, after = Fragment(EntryId(0), (A, B, D)), Fragment(EntryId(0), (A, B, C))
    sound.versions[0] = replace(sound.versions[0], fragments=(before, second))
    sound.versions[1] = replace(sound.versions[1], fragments=(after, second))
    sound.versions[2] = replace(sound.versions[2], fragments=(after, second))
    evidence = sound.evidence()

    with pytest.raises(InvariantError, match=r"^fragments-are-sorted-and-valid: "):
        checkers.fragments_are_sorted_and_valid(evidence)

    evidence.is_rereplicated = True
    checkers.fragments_are_sorted_and_valid(evidence)
