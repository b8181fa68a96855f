"""Each checker is silent about a sound ledger, and speaks up when its invariant is broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

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
from tests.simulator import checkers
from tests.simulator.checkers import Checker, InvariantError
from tests.simulator.evidence import Evidence, RawEntry, RawRecord, take_apart
from tests.simulator.history import History

A, B, C, D = (BookieId(f"{letter}:3181") for letter in "abcd")
PAYLOADS = [b"zero", b"one", b"two"]
LENGTHS = [4, 7, 10]
FENCE = RawRecord("FENCE", "", -1, {})


def path_of(slot: int) -> str:
    return f"ledgers/7-n/slots/{slot:020d}.arrow"


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
                self.put(bookie, entry_id, add(entry_id))
            self.put(bookie, 3 if bookie != C else 1, FENCE)

    def put(self, bookie: BookieId, slot: int, record: RawRecord) -> None:
        data = repr(record).encode()
        self.records[data] = record
        self.files[bookie][path_of(slot)] = data

    def remove(self, bookie: BookieId, slot: int) -> None:
        del self.files[bookie][path_of(slot)]

    def end_at(self, last: int, length: int) -> None:
        """Let the metadata say so; nobody was told of an end."""
        self.versions[-1] = self.versions[1].closed(EntryId(last), length)
        self.history.closed.clear()

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


def a_lac_beyond_the_end(sound: Sound) -> None:
    sound.end_at(1, 7)
    sound.put(A, 0, add(0, lac=2))


def a_lac_of_an_entry_with_too_few_copies(sound: Sound) -> None:
    sound.remove(B, 2)
    sound.put(A, 0, add(0, lac=2))


def slots_that_do_not_ascend_in_entry_ids(sound: Sound) -> None:
    sound.put(A, 3, add(1))
    sound.put(A, 4, FENCE)


def a_first_fragment_without_entry_0(sound: Sound) -> None:
    object.__setattr__(sound.versions[0], "fragments", (Fragment(EntryId(1), (A, B, C)),))


def a_bookie_twice_in_an_ensemble(sound: Sound) -> None:
    object.__setattr__(sound.versions[-1], "fragments", (Fragment(EntryId(0), (A, B, B)),))


def a_fragment_changed_afterwards(sound: Sound) -> None:
    second = Fragment(EntryId(1), (A, B, C))
    for version, ensemble in enumerate(((A, B, D), (A, B, C))):
        fragments = (Fragment(EntryId(0), ensemble), second)
        sound.versions[version] = replace(sound.versions[version], fragments=fragments)


def no_close(sound: Sound) -> None:
    sound.versions.pop()
    sound.history.closed.clear()


acked, closed = checkers.acked_entries_are_readable, checkers.closed_entries_reach_ack_quorum
confirmed, agree = checkers.confirmed_never_exceeds_last_entry, checkers.all_closes_agree
order, fragments = checkers.entries_in_write_order, checkers.fragments_are_sorted_and_valid

SPOILT: Final[list[tuple[str, Callable[[Sound], object], list[Checker]]]] = [
    ("acknowledged beyond the end", lambda s: s.end_at(0, 4), [acked, confirmed]),
    ("an end below what is acknowledged", lambda s: s.end_at(0, 4), [confirmed, acked]),
    ("acknowledged, with too few copies", lambda s: s.remove(B, 1), [acked, closed]),
    ("recovered, with too few copies", lambda s: s.remove(B, 2), [closed]),
    ("another end told", lambda s: s.history.note_closed("writer", 1, 7), [agree]),
    ("another end", lambda s: s.versions.append(s.versions[1].closed(EntryId(1), 7)), [agree]),
    (
        "open again",
        lambda s: s.versions.append(s.versions[0]),
        [agree, checkers.ledger_gets_closed],
    ),
    ("a LAC beyond the end", a_lac_beyond_the_end, [confirmed]),
    (
        "a LAC that is not confirmed",
        a_lac_of_an_entry_with_too_few_copies,
        [checkers.lac_is_confirmed, closed],
    ),
    ("replicas differ", lambda s: s.put(B, 1, add(1, b"eno")), [checkers.replicas_are_identical]),
    ("appended in another order", lambda s: s.history.appended.reverse(), [order]),
    ("acknowledged in another order", lambda s: s.history.acknowledged.reverse(), [order]),
    ("read as another", lambda s: s.history.note_returned("reader", 2, b"one"), [order]),
    ("slots do not ascend", slots_that_do_not_ascend_in_entry_ids, [order]),
    ("no entry 0", a_first_fragment_without_entry_0, [fragments]),
    ("a bookie twice", a_bookie_twice_in_an_ensemble, [fragments]),
    ("the past changed", a_fragment_changed_afterwards, [fragments]),
    ("no close", no_close, [checkers.ledger_gets_closed]),
]
"""What is wrong, how it came about, and who notices it: the first says so by its name."""


@pytest.mark.parametrize(
    ("spoil", "noticed_by"), [pytest.param(spoil, by, id=what) for what, spoil, by in SPOILT]
)
def test_what_is_wrong_is_noticed(
    spoil: Callable[[Sound], object], noticed_by: list[Checker]
) -> None:
    sound = Sound()
    spoil(sound)

    breaks(sound, *noticed_by)


def test_destroyed_storage_excuses_the_copies_that_were_on_it() -> None:
    sound = Sound()
    sound.files[B].clear()

    evidence = sound.evidence()
    evidence.lost.add((B, ""))

    checkers.check(evidence, checkers.AT_THE_END)


def test_an_acknowledgement_that_counts_an_add_behind_a_fence_is_noticed() -> None:
    sound = Sound()
    sound.put(B, 0, FENCE)
    sound.put(C, 1, FENCE)

    with pytest.raises(InvariantError, match=r"^no-count-behind-a-fence: entry 1 .* only "):
        checkers.no_count_behind_a_fence(sound.evidence())


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
    evidence.damaged.add((B, path_of(1)))
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
