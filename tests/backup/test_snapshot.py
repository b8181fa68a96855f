"""A snapshot's bytes, which somebody else may have written."""

from __future__ import annotations

import logging
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.backup.snapshot import (
    Snapshot,
    Snapshots,
    closed_ledgers,
    decode_snapshot,
    encode_snapshot,
)
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import InlineRuntime


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


@pytest.fixture
def shown() -> Iterator[Path]:
    """A backup in a directory that everybody may enter; those of pytest are their owner's."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    (directory / "snapshots").mkdir()
    yield directory
    shutil.rmtree(directory)


def test_a_snapshot_is_its_owners_alone_and_one_that_is_not_is_told_of(
    shown: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(LocalStorage(shown), str(shown), InlineRuntime())
    number = snapshots.put(Snapshot("cluster", 1, (), {"logs/orders": b"{}"}))
    (file,) = shown.glob("snapshots/*.arrow")
    assert file.stat().st_mode & 0o777 == 0o600

    with caplog.at_level(logging.WARNING):
        Snapshots(LocalStorage(shown), str(shown), InlineRuntime()).read(number)
        assert caplog.messages == []
        file.chmod(0o644)
        for _ in range(2):
            snapshots.read(number)

    (told,) = caplog.messages
    assert f"chmod 600 {file}" in told
