"""A snapshot's bytes, which somebody else may have written."""

from __future__ import annotations

import struct

import pytest

from spark_bookkeeper.backup.snapshot import (
    Snapshot,
    closed_ledgers,
    decode_snapshot,
    encode_snapshot,
)
from spark_bookkeeper.errors import InvalidArgumentError


@pytest.mark.parametrize("name", ["logs/../x", "../x", "/x", "logs//x", ""])
def test_a_register_whose_name_leads_elsewhere_is_no_part_of_a_snapshot(name: str) -> None:
    good = Snapshot("cluster", 1, (), {"logs/orders": b"{}"})
    assert decode_snapshot(encode_snapshot(good)) == good

    bad = encode_snapshot(Snapshot("cluster", 1, (), {name: b"{}"}))

    with pytest.raises(InvalidArgumentError, match="is no name of a register"):
        decode_snapshot(bad)


def test_a_snapshot_that_points_out_of_itself_is_damaged() -> None:
    data = encode_snapshot(Snapshot("cluster", 1, (), {"logs/orders": b"{}"}))
    head, _, names = data.rpartition(struct.pack("<ii", 0, len("logs/orders")))
    bad = head + struct.pack("<ii", 0, 2_000_000_000) + names

    for decode in (decode_snapshot, closed_ledgers):
        for bytes_ in (bad, b"", data[: len(data) // 2]):
            with pytest.raises(InvalidArgumentError, match="the snapshot is damaged"):
                decode(bytes_)
