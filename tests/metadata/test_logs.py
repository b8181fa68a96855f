"""Logs in the metadata store: heads and chunks as bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_bookkeeper.errors import LogExistsError, MetadataFormatError, NoSuchLogError
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Chunk, LogHead, Position
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

ZNODE_BYTES = 1 << 20


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryCluster().session()
    made.initialize_cluster()
    return made


@pytest.fixture
def registers(store: MemoryStore) -> Registers:
    return store.registers


@pytest.mark.parametrize("count", [20_000, pytest.param(200_000, marks=pytest.mark.full)])
def test_many_ledgers_fit_into_one_head_and_its_chunks(registers: Registers, count: int) -> None:
    logs.create_log(registers, "long", LogHead("n1"))
    for start in range(0, count, 1_000):
        added = tuple(LedgerId(i) for i in range(start, start + 1_000))

        def step(old: LogHead, added: tuple[LedgerId, ...] = added) -> LogHead:
            return replace(old, recent=(*old.recent, *added))

        head = logs.change_log(registers, "long", "n1", step)
        due = head.to_seal()
        if due:
            name = f"c{due[0]}"
            logs.write_chunk(registers, "long", name, due)

            def seal(old: LogHead, name: str = name, due: tuple[LedgerId, ...] = due) -> LogHead:
                return old.with_chunk(name, due)

            logs.change_log(registers, "long", "n1", seal)

    head = logs.read_log(registers, "long")
    stored = registers.read("logs/long")
    assert stored is not None
    assert len(stored.value) < ZNODE_BYTES // 32
    listed = [i for chunk in head.chunks for i in logs.read_chunk(registers, "long", chunk) or ()]
    assert [*listed, *head.recent] == list(range(count))


def test_a_deleted_log_is_not_there_and_its_name_is_free_for_another_life(
    registers: Registers,
) -> None:
    logs.create_log(registers, "orders", LogHead("first"))
    logs.mark_deleted(registers, "orders", "first", lambda old: LogHead("first", is_deleted=True))

    with pytest.raises(NoSuchLogError):
        logs.read_log(registers, "orders")
    again = logs.create_log(registers, "orders", LogHead("second"))
    assert again.nonce == "second"
    with pytest.raises(NoSuchLogError):
        logs.change_log(registers, "orders", "first", lambda old: old.with_ledger(LedgerId(1)))
    with pytest.raises(LogExistsError):
        logs.create_log(registers, "orders", LogHead("third"))


def test_the_end_of_what_was_truncated_is_kept_and_may_be_missing(
    registers: Registers, store: MemoryStore
) -> None:
    end = Position(LedgerId(4), EntryId(7))
    head = LogHead("n", recent=(LedgerId(9),), begins_at=LedgerId(5), truncated_end=end)
    logs.create_log(registers, "orders", head)
    assert logs.read_log(registers, "orders") == head

    stored = json.loads(store.cluster.registers["logs/orders"].value)
    del stored["truncated_end"]  # as earlier versions write it
    store.cluster.registers["logs/orders"] = Versioned(json.dumps(stored).encode(), 1)

    assert logs.read_log(registers, "orders") == replace(head, truncated_end=None)


JUNK = [
    b"",
    b"\xff\xfe",
    b"{}",
    b"[1, 2]",
    b"7",
    b'{"version": 99}',
    b"[" * 100_000,
    json.dumps(
        {
            "version": 1,
            "nonce": "n",
            "options": {},
            "chunks": [],
            "recent": [3, 1],
            "begins_at": 0,
            "deleted_below": 0,
            "is_deleted": False,
        }
    ).encode(),
]


JUNK += [
    json.dumps(json.loads(JUNK[-1]) | {"recent": [], "truncated_end": end}).encode()
    for end in (7, None, [1], "", "x:1", "-1:0", f"{2**63}:0")
]


@pytest.mark.parametrize("data", JUNK)
def test_a_head_that_cannot_be_decoded_is_told_with_its_path(
    store: MemoryStore, data: bytes
) -> None:
    store.cluster.registers["logs/broken"] = Versioned(data, 0)

    with pytest.raises(MetadataFormatError, match="logs/broken"):
        logs.read_log(store.registers, "broken")


@pytest.mark.parametrize("data", [b"", b"null", b'["a"]', b"[1,2,4]", b"[]", b"\xff"])
def test_a_chunk_that_is_not_what_the_head_says_is_told(store: MemoryStore, data: bytes) -> None:
    store.cluster.registers["logs/orders/c1"] = Versioned(data, 0)
    chunk = Chunk("c1", LedgerId(1), LedgerId(3), 3)

    with pytest.raises(MetadataFormatError, match="logs/orders/c1"):
        logs.read_chunk(store.registers, "orders", chunk)
    assert (
        logs.read_chunk(store.registers, "orders", Chunk("c2", LedgerId(1), LedgerId(3), 3)) is None
    )
