"""Every bit of every kind of file: no damage is believed, hides an entry, or leaks an error.

One bookie alone: whatever is done to one of its files, it answers with right rows, with an error
of ours, or with doubt; it never says that an entry which it was given is certainly not there.
"""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from typing import Final

import numpy as np
import pytest

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, LedgerEncoding
from spark_bookkeeper.bookie.framing import header_end
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.record import Record, decode, encode_fence
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    CookieMismatchError,
    CorruptEntryError,
)
from spark_bookkeeper.protocol.metadata import DigestType
from tests.support.damage import TYPED, Damage, Specimen, every_damage, some_damages
from tests.support.slotlog import Bookie, damaged_paths

ENCODINGS: Final = {
    f"{name} {digest.name} {compression or 'plain'}": LedgerEncoding(
        schema, digest, b"secret", compression
    )
    for name, schema in (("bytes", PAYLOAD_SCHEMA), ("typed", TYPED))
    for digest in DigestType
    for compression in (None, "lz4", "zstd")
}

FEW: Final = ["bytes CRC32C plain", "bytes MAC plain", "typed CRC32 lz4", "typed DUMMY plain"]
"""Each digest and each sort of rows, for what takes its time."""

EVERY: Final = pytest.mark.parametrize(
    "encoding",
    [
        pytest.param(encoding, id=name, marks=() if name in FEW else pytest.mark.full)
        for name, encoding in ENCODINGS.items()
    ],
)

PER_FILE: Final = 8
"""Flips drawn for each file."""


@pytest.fixture
def specimen(bookie: Bookie, encoding: LedgerEncoding) -> Specimen:
    bookie.encoding = encoding
    return Specimen.write(bookie.log())


def files_of(bookie: Bookie) -> list[str]:
    return sorted(path for path in bookie.disk.files if "retired" not in path)


def check_every_answer(
    bookie: Bookie, specimen: Specimen, path: str, damage: Damage, *, with_files: bool = True
) -> None:
    """Ask for everything that can be asked of a bookie, one of whose files was damaged.

    Args:
        with_files: copy them too, and look at them as a whole, which takes most of the time.
    """
    good = dict(bookie.disk.files)
    bookie.disk.corrupt(path, damage.apply)
    try:
        _check_answers(bookie, specimen, path, with_files)
    except Exception as error:
        raise AssertionError(f"{path}, {damage}") from error
    finally:
        bookie.disk.files.clear()
        bookie.disk.files.update(good)


def _check_answers(bookie: Bookie, specimen: Specimen, path: str, with_files: bool) -> None:
    entries = list(specimen.rows)
    log = bookie.log()
    with suppress(BookieError):
        list(log.records())
    with suppress(BookieError):
        log.tail()
    try:
        index = log.locate(0)
        tail = bookie.log().fence().entries
    except CookieMismatchError:
        assert path == MARKER_PATH
        return
    for answer in (index, tail):
        for entry_id in entries:
            assert is_there_or_doubtful(answer, entry_id), "confirmed: never 'no such entry'"
    check_rows(log, specimen, index, entries)
    Retrieval(log, entries, index).verify(with_files=with_files)
    if with_files:
        check_copying(bookie, index)
        damaged_paths(log)


def is_there_or_doubtful(index: EntryIndex, entry_id: int) -> bool:
    if entry_id in index:
        return True
    with suppress(BookieError):
        index.check_absent(entry_id)
        return False
    return True


def check_rows(log: LedgerLog, specimen: Specimen, index: EntryIndex, entries: list[int]) -> None:
    """What is handed out is what was written, wherever there is a digest that can tell."""
    is_checked = log.encoding.digest_type is not DigestType.DUMMY
    read = Retrieval(log, entries, index).read()
    assert {stored.entry_id for stored in read.found} | read.refused.keys() == set(entries)
    for stored in read.found:
        batch = stored.batch()
        assert not is_checked or batch.equals(specimen.rows[stored.entry_id])
    scanned = Retrieval(log, entries, index).scan()
    told = [entry_id for rows in scanned.found for entry_id in rows.entries]
    assert set(told) | scanned.refused.keys() == set(entries)
    assert len(told) == len(set(told))
    for rows in scanned.found:
        batch = rows.batch
        expected = [row for e in rows.entries for row in specimen.rows[e].to_pylist()]
        assert not is_checked or batch.to_pylist() == expected
    verdict = Retrieval(log, entries, index).verify()
    assert verdict.good.keys() | verdict.refused.keys() == set(entries)
    assert not is_checked or verdict.good.keys() == set(told), "and so without decoding"


def check_copying(bookie: Bookie, index: EntryIndex) -> None:
    log, here = bookie.log(), Replica(bookie.face(), bookie.ref)
    for holding in index.holdings:
        for part in holding.record.parts:
            with suppress(BookieError):
                log.parts.holds(part.ref)
            with suppress(BookieError):
                here.copy_part(here, part.ref)
            with suppress(BookKeeperError):
                log.write_copy((), (part,))


@EVERY
def test_damage_anywhere_in_any_file_is_survived(
    bookie: Bookie, specimen: Specimen, encoding: LedgerEncoding
) -> None:
    dice = random.Random(str(encoding))
    for path in files_of(bookie):
        for damage in some_damages(dice, len(bookie.disk.files[path]), PER_FILE):
            check_every_answer(bookie, specimen, path, damage)


@EVERY
def test_what_is_damaged_is_named(
    bookie: Bookie, specimen: Specimen, encoding: LedgerEncoding
) -> None:
    """Each file with entries, wherever the damage is: what Arrow and no digest can see, too."""
    dice = random.Random(f"{encoding}/named")
    for path in files_of(bookie):
        good = bookie.disk.files[path]
        if path == MARKER_PATH or encode_fence(bookie.key) == good:
            continue
        for damage in some_damages(dice, len(good), PER_FILE):
            is_seen = not may_hide(bookie, path, damage)
            bookie.disk.corrupt(path, damage.apply)
            assert path in damaged_paths(bookie.log()) or not is_seen, f"{path}, {damage}"
            bookie.disk.files[path] = good


def may_hide(bookie: Bookie, path: str, damage: Damage) -> bool:
    """Whether nothing can tell: the rows of a batch within a record have no checksum of any kind
    when the ledger has no digests. Whole parts have one.
    """
    return (
        bookie.encoding.digest_type is DigestType.DUMMY
        and damage.kind == "flip"
        and "/parts/" not in path
    )


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("encoding", [ENCODINGS[n] for n in FEW], ids=FEW)
def test_a_header_is_right_or_refused_whichever_bit_of_it_is_flipped(
    bookie: Bookie, specimen: Specimen, step: int
) -> None:
    """With a step of 9 a bit of each byte, every eighth time the same one."""
    for path in files_of(bookie):
        data = bookie.disk.files[path]
        if path == MARKER_PATH or "/parts/" in path:
            continue
        good = shown(decode(data, bookie.key, bookie.encoding))
        flips = [Damage("flip", bit) for bit in range(0, 8 * header_end(data), step)]
        cuts = [Damage("cut", length) for length in range(0, len(data), step)]
        for damage in [*flips, *cuts, Damage("junk", 8)]:
            with suppress(CorruptEntryError):
                assert shown(decode(damage.apply(data), bookie.key, bookie.encoding)) == good


def shown(record: Record) -> tuple[object, ...]:
    """What a header says, comparable."""
    facts = [getattr(record, field.name) for field in dataclasses.fields(record) if field.init]
    return tuple(fact.tobytes() if isinstance(fact, np.ndarray) else fact for fact in facts)


@pytest.mark.parametrize("encoding", [ENCODINGS["bytes MAC zstd"]], ids=["bytes MAC zstd"])
def test_a_header_that_seems_to_end_where_a_later_message_begins_hides_nothing(
    bookie: Bookie, specimen: Specimen
) -> None:
    """No digest vouches for the length of a header: here its bit of 256 leads to the next mark."""
    path = bookie.slot_path(0)
    damage, good = Damage("flip", 104), bookie.disk.files[path]
    assert decode(damage.apply(good), bookie.key, bookie.encoding).header_bytes > header_end(good)

    check_every_answer(bookie, specimen, path, damage)


@pytest.mark.full
@pytest.mark.parametrize("encoding", [ENCODINGS[n] for n in FEW], ids=FEW)
def test_many_damages_of_every_file_are_survived(bookie: Bookie, specimen: Specimen) -> None:
    dice = random.Random("many")
    for path in files_of(bookie):
        damages = list(every_damage(len(bookie.disk.files[path])))
        for number, damage in enumerate(dice.sample(damages, min(len(damages), 100))):
            check_every_answer(bookie, specimen, path, damage, with_files=number % 16 == 0)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("encoding", [ENCODINGS[n] for n in FEW], ids=FEW)
def test_every_bit_of_every_file_is_survived(bookie: Bookie, specimen: Specimen) -> None:
    for path in files_of(bookie):
        for number, damage in enumerate(every_damage(len(bookie.disk.files[path]))):
            check_every_answer(bookie, specimen, path, damage, with_files=number % 16 == 0)
