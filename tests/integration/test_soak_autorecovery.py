"""A cluster that is hurt every few seconds for a long time, and is whole at the end.

``AUTORECOVERY_SOAK_SECONDS=1800`` is the long form.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.rows import numbered
from spark_bookkeeper.testing.sessions import connect_without_spark

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(7200)]

SECONDS = float(os.environ.get("AUTORECOVERY_SOAK_SECONDS", "90"))
WHOLE_SECONDS = 300.0
"""After the last blow every ledger is whole within this."""

CONFIG = AutorecoveryConfig(open_ledger_grace_ms=2_000, retry_first_ms=500, retry_most_ms=5_000)


class Writer:
    """Makes one ledger after the other; what was acknowledged is remembered."""

    def __init__(self, bk: BookKeeper) -> None:
        self._bk = bk
        self._is_stopping = threading.Event()
        self.acknowledged: dict[int, int] = {}
        """The last entry that was acknowledged, by ledger."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(300)
        assert not self._thread.is_alive(), "a writer waits for ever"

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            with suppress(BookKeeperError):  # too few bookies, or fenced: the next one
                with self._bk.create_ledger() as writer:
                    for number in range(50):
                        self.acknowledged[writer.ledger_id] = writer.append(numbered(number))
                        if self._is_stopping.wait(0.02):
                            break


def until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.2)


def test_hurt_again_and_again_it_is_whole_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="spark_bookkeeper")
    seed = int(os.environ.get("AUTORECOVERY_SOAK_SEED", "1"))
    dice = random.Random(seed)
    with ExitStack() as opened:
        cluster = opened.enter_context(LocalCluster(tmp_path / "c", bookies=6))

        def connect() -> BookKeeper:
            return opened.enter_context(connect_without_spark(cluster.metadata_uri))

        bk = connect()
        running = []
        for _ in range(3):
            session = connect()
            running.append((session, session.autorecovery.start(config=CONFIG)))
        writers = [Writer(connect()) for _ in range(2)]
        end = time.monotonic() + SECONDS
        blows = 0
        while time.monotonic() < end:
            time.sleep(min(60.0, max(5.0, SECONDS / 15)))
            blow = dice.choice(["kill bookie", "destroy bookie", "kill process", "switch", "read"])
            blows += 1
            if blow in ("kill bookie", "destroy bookie") and len(cluster.running_bookie_ids) > 4:
                victim = dice.choice(cluster.running_bookie_ids)
                cluster.stop_bookie(victim, destroy=blow == "destroy bookie")
                if blow == "kill bookie":
                    time.sleep(dice.uniform(0, 4))
                    cluster.start_bookie(victim)
                else:
                    until(
                        lambda: is_whole(bk), f"whole after {victim} (seed {seed})", WHOLE_SECONDS
                    )
                    cluster.add_bookie()
            elif blow == "kill process":
                session, _ = running.pop(0)
                session.context.store.close()
                session = connect()
                running.append((session, session.autorecovery.start(config=CONFIG)))
            elif blow == "switch":
                bk.autorecovery.disable()
                time.sleep(dice.uniform(0, 2))
                bk.autorecovery.enable()
            else:
                ledger_id = dice.choice(sorted(writers[0].acknowledged) or [None])
                if ledger_id is not None:
                    with suppress(BookKeeperError):
                        bk.open_ledger_no_recovery(ledger_id).close()
        for writer in writers:
            writer.stop()
        bk.recover_ledgers()
        until(lambda: is_whole(bk), f"whole after {blows} blows (seed {seed})", WHOLE_SECONDS)
        for _, process in running:
            process.stop()
        repaired = bk.repair_ledgers()  # what a writer that died was still sending
        assert not repaired.unfinished, repaired.counts
        assert bk.check_ledgers(percentage=100).is_complete
        for writer in writers:
            for ledger_id, last in writer.acknowledged.items():
                with bk.open_ledger(ledger_id) as reader:
                    assert reader.last_add_confirmed >= last, f"ledger {ledger_id} (seed {seed})"
                    assert len(list(reader.entries())) == reader.last_add_confirmed + 1
        tree = bk.context.store.underreplication
        assert (tree.auditor(), dict(tree.locks()), list(tree.ledger_ids())) == (None, {}, [])
    shutil.rmtree(tmp_path / "c", ignore_errors=True)


def is_whole(bk: BookKeeper) -> bool:
    """Nothing is published, and no ledger names a bookie that is not there."""
    if bk.underreplicated_arrow().num_rows:
        return False
    alive = {row["bookie_id"] for row in bk.bookies_arrow().to_pylist() if row["state"] != "lost"}
    return all(
        set(row["bookies"]) <= alive
        for row in bk.ledgers_arrow().to_pylist()
        if row["state"] == "CLOSED"
    )
