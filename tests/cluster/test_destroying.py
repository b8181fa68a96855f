"""A bookie's storage is destroyed while a writer is adding files to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_bookkeeper.cluster.local import LocalCluster

pytestmark = pytest.mark.integration


def test_files_that_come_while_a_bookie_is_destroyed_go_with_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", bookies=2) as cluster:
        lost = cluster.bookie_ids[0]
        root = cluster.root_of(lost)
        parts = root / "ledgers" / "0-00" / "parts"
        parts.mkdir(parents=True)
        begun, ended = threading.Event(), threading.Event()

        def write() -> None:
            number = 0
            while not ended.is_set() and parts.exists():
                try:
                    (parts / f"{number}.arrow").write_bytes(b"rows")
                except FileNotFoundError:
                    return
                number += 1
                if number == 500:
                    begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert begun.wait(60)
            cluster.stop_bookie(lost, destroy=True)
        finally:
            ended.set()
            writer.join()

        assert not root.exists()
        assert cluster.bookie_ids == [b for b in cluster.bookie_ids if b != lost]
