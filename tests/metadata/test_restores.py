"""The registers of restores: which ids are kept, and who is at work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.restores import KeptIds
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.testing.memory_store import MemoryCluster


@given(st.lists(st.lists(st.integers(0, 30)), max_size=4))
def test_kept_ids_are_those_that_were_kept(several: list[list[int]]) -> None:
    ids = KeptIds()
    for some in several:
        ids = KeptIds.decode(Versioned(ids.with_ids(some).encode(), 0))

    assert [i for i in range(-2, 35) if i in ids] == sorted({i for some in several for i in some})


def test_ids_in_a_row_are_one_range() -> None:
    assert KeptIds().with_ids(range(100_000)).encode() == b"[[0, 99999]]"


def test_what_two_restores_keep_is_kept_together() -> None:
    store = MemoryCluster().session()
    store.initialize_cluster()
    registers = store.registers
    for ledger_id in (1, 3, 2):
        restores.keep(registers, [LedgerId(ledger_id)])

    assert [i for i in range(5) if i in restores.kept(registers)] == [1, 2, 3]


@pytest.mark.parametrize("junk", [b"junk", b"7", b"[7]", b'[["a", "b"]]'])
def test_what_is_no_list_of_ranges_is_an_error(junk: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="kept-ids"):
        KeptIds.decode(Versioned(junk, 0))
