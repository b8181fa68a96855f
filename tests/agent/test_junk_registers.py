"""Registers of ours, and what we keep with a ledger, may hold anything: whoever reads it goes on.

Each was written as it should be, and then something in it is another's: each of its numbers too
large for anything, or all of it of another form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from spark_bookkeeper.agent.readonly import read_order, set_readonly
from spark_bookkeeper.agent.scrubbing import read_mark, scrub, scrub_problems
from spark_bookkeeper.autorecovery.limit import read_limit, share_now, write_limit
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.table import underreplicated_table, why_waiting
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.logs.staged_writes import behind_of
from spark_bookkeeper.metadata import consumers, restores
from spark_bookkeeper.metadata.consumers import Consumer
from spark_bookkeeper.protocol.archive import Archived, archived_of
from spark_bookkeeper.protocol.collection import (
    COLLECTED,
    collections_of,
    may_be_named,
    with_collection,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.metadata import ARCHIVE, Fragment, LedgerMetadata
from spark_bookkeeper.protocol.task_notes import Marked, TaskNote, Whole
from spark_bookkeeper.testing.conformance.metadata import open_ledger
from spark_bookkeeper.testing.ground import Ground
from tests.autorecovery.seen import published
from tests.whole import assert_replicated

FORMS = (
    *(b"", b"\xff", b"[" * 100_000),
    *(b"[]", b"{}", b"null", b"7", b'"x"', b"[[]]", b"[{}]", b"NaN"),
)
NUMBERS = (b"1e999", b"-1e999", b"NaN", b"9" * 400, b"9" * 5_000, b"-7", b'"x"', b"[]", b"null")


def junk_of(real: bytes) -> Iterator[bytes]:
    """What may be there instead."""
    yield from FORMS
    numbers = list(re.finditer(rb"(?<![\w\"])-?\d+(?![\w\"])", real))
    for found in numbers:
        for each in NUMBERS:
            yield real[: found.start()] + each + real[found.end() :]


class Case(NamedTuple):
    """A register: who writes it, and who reads it."""

    write: Callable[[Ground], object]
    name: str
    read: Callable[[Ground], object]


def write_note(ground: Ground) -> None:
    """Everything that a note may hold."""
    fragment = Fragment(EntryId(0), (BookieId("10.0.0.1:1"),))
    marked = Marked(("10.0.0.1:1",), 7, 3)
    whole = Whole((1, 2, 3, 4, 5), 9, (("10.0.0.1:1", "i"),))
    Notes(ground.context.store.registers).change(
        LedgerId(0),
        lambda note: (
            replace(note, percentage=9, findings=2, suspects=("10.0.0.1:1",), whole=whole)
            .with_grace(fragment, 10, 20, marked, ["10.0.0.1:1"], 2)
            .refused("10.0.0.1:1", "e", 1, first_ms=1, most_ms=1)
            .failed("e", "b", 1, marked, waits_for=(), writable=1, first_ms=1, most_ms=1)
        ),
    )


def read_note(ground: Ground) -> None:
    Notes(ground.context.store.registers).read(LedgerId(0))
    for row in underreplicated_table(ground.context).to_pylist():
        why_waiting(row, 0)


def read_scrubbing(ground: Ground) -> None:
    read_mark(ground.context.store.registers, ground.bookie_ids[0])
    scrub_problems(ground.context, ground.bookie_ids)
    scrub(ground.context, ground.bookie_ids[0])


def write_consumer(ground: Ground) -> None:
    position = Position(LedgerId(1), EntryId(2))
    consumer = Consumer("etl", "life", position, 3)
    consumers.publish(ground.context.store.registers, "orders", consumer)


def read_kept(ground: Ground) -> None:
    try:
        restores.kept(ground.context.store.registers)
    except MetadataFormatError as error:
        assert "remove it" in error.message  # noqa: PT017  (or it is read)


CASES = {
    "a note": Case(write_note, "autorecovery/notes/0/0", read_note),
    "the limit": Case(
        lambda ground: write_limit(ground.context.store.registers, 7),
        "autorecovery/bytes-per-second",
        lambda ground: (
            1.5 / (read_limit(ground.context.store.registers) or 1),
            1.5 / (share_now(2, ground.context, None) or 1),
        ),
    ),
    "how far scrubbing came": Case(
        lambda ground: scrub(ground.context, ground.bookie_ids[0]),
        "scrub/127.0.0.1:3181",
        read_scrubbing,
    ),
    "an order": Case(
        lambda ground: set_readonly(ground.context.store, ground.bookie_ids[0], "why", 7),
        "readonly/127.0.0.1:3181",
        lambda ground: read_order(ground.context.store, ground.bookie_ids[0]),
    ),
    "a follower": Case(
        write_consumer,
        "consumers/orders/etl",
        lambda ground: consumers.consumers(ground.context.store.registers, "orders", "life"),
    ),
    "ids for restores": Case(
        lambda ground: restores.keep(ground.context.store.registers, [LedgerId(7)]),
        "kept-ids",
        read_kept,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_register_may_hold_anything(ground: Ground, case: Case) -> None:
    registers = ground.context.store.registers
    ground.context.store.underreplication.mark(LedgerId(0), ["10.0.0.1:1"], 1)
    case.write(ground)
    real = registers.read(case.name)
    assert real is not None
    case.read(ground)

    for junk in junk_of(real.value):
        registers.delete(case.name)
        registers.create(case.name, junk)
        case.read(ground)


@pytest.mark.parametrize("junk", [b"1e999", b"9" * 400, b"[" * 100_000])
def test_a_task_whose_note_is_junk_is_done(ground: Ground, junk: bytes) -> None:
    writer, _, process = published(ground)
    registers = ground.context.store.registers
    name = f"autorecovery/notes/0/{writer.ledger_id}"
    registers.create(name, b'{"next_try_at_ms": %s, "attempts": 1}' % junk)

    process.work()

    assert_replicated(ground, writer)


@pytest.mark.parametrize("name", ["9" * 19, "9" * 5_000, "-1", "x", "٣"])
def test_a_note_of_no_ledger_keeps_no_worker_from_its_tasks(ground: Ground, name: str) -> None:
    ground.context.store.registers.create(f"autorecovery/notes/0/{name}", b"{}")
    writer, _, process = published(ground)

    process.work()

    assert_replicated(ground, writer)


def test_every_field_of_a_note_is_read_as_it_was_written(ground: Ground) -> None:
    write_note(ground)
    registers = ground.context.store.registers
    note = Notes(registers).read(LedgerId(0))
    default = TaskNote()

    fields = TaskNote.__dataclass_fields__
    same = {name for name in fields if getattr(note, name) == getattr(default, name)}
    assert same == {"waits_for", "waits_for_event"}, "as a failure leaves them"
    notes = Notes(registers)
    again = replace(note, waits_for=("a",), waits_for_event=True)
    notes.change(LedgerId(0), lambda _: again)
    assert notes.read(LedgerId(0)) == again


def collections_told(metadata: LedgerMetadata) -> None:
    """Nobody is to copy to where somebody may be removing, nor begin to remove."""
    bookie = BookieId("10.0.0.9:1")
    try:
        collections_of(metadata, bookie, "i")
    except ValueError:
        assert not may_be_named(metadata, metadata, bookie)
        assert with_collection(metadata.closed(EntryId(0), 1), bookie, "i", "t") is None


def archive_told(metadata: LedgerMetadata) -> None:
    try:
        archived_of(metadata)
    except MetadataFormatError as error:
        assert error.path == ARCHIVE  # noqa: PT017  (or it is read)


KEPT: dict[str, tuple[str, bytes, Callable[[LedgerMetadata], object]]] = {
    "who removes": (COLLECTED, b'{"10.0.0.9:1/i": [["t"], 3]}', collections_told),
    "its table": (
        ARCHIVE,
        Archived("file:///t", "0" * 64, 1, 1, 7, {BookieId("a:1"): "i"}).encode(),
        archive_told,
    ),
    "what it is behind": (STAGED, b'{"log": "orders", "behind": 7}', behind_of),
}


@pytest.mark.parametrize(("key", "real", "read"), KEPT.values(), ids=KEPT)
def test_what_is_kept_with_a_ledger_may_be_anything(
    key: str, real: bytes, read: Callable[[LedgerMetadata], object]
) -> None:
    for junk in (real, *junk_of(real)):
        read(open_ledger().with_custom(**{key: junk}))
