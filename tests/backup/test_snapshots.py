"""The files of snapshots, which hold the passwords of ledgers."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.backup.snapshot import Snapshot
from spark_bookkeeper.backup.snapshots import Snapshots
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import InlineRuntime


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
