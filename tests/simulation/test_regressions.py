"""What lifetimes have found in the library: the seeds, and the mistake itself made small."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.part import PartEncoder
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.retrieval import Retrieval
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.simulator.autorecovery_lifetime import (
    AutorecoveryScript,
    run_autorecovery_lifetime,
)
from tests.simulator.lifetime import run_lifetime
from tests.support.slotlog import Log

KEY = LedgerKey(7, "n")
ENCODING = LedgerEncoding()


@pytest.mark.parametrize(
    "seed",
    [
        2318,  # recovery synced a part and not the record that lists it; then a power cut
        2575,  # the same in a striped ledger
    ],
)
def test_a_seed_that_failed_once(seed: int) -> None:
    run_lifetime(seed)


def test_a_worker_could_not_recover_a_ledger_of_which_its_own_bookie_is_a_member() -> None:
    run_autorecovery_lifetime(72239)  # it released the lock without a note, and began anew at once


def test_two_recoveries_met_a_bucket_without_its_ledgers() -> None:
    # The second believed the fence that the first had put.
    run_autorecovery_lifetime(73316, replace(AutorecoveryScript.drawn(73316), keepers=()))


def test_a_record_found_not_durable_is_synced_with_the_part_that_it_lists() -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    Partition(storage).furnish(Marker("b:1", "i", "cluster"))
    log = Log(storage, LedgerRef(KEY, "i", ENCODING))
    log.prepare()
    sink = log.parts.create("t-0-0.arrow")
    encoder = PartEncoder(KEY, ENCODING, sink.write)
    encoder.add(pa.record_batch({"payload": [b"a", b"b"]}))
    ref = encoder.finish("t-0-0.arrow")
    sink.finish()
    record = encode_add(KEY, ENCODING, "w", 0, -1, parts=[PlacedPart(ref, (0,), ref.sizes)])
    log.add(0, record)
    disk.durable -= {
        LedgerPaths(KEY).slot(0),
        LedgerPaths(KEY).part("t-0-0.arrow"),
    }  # visible, and not yet durable

    verdict = Retrieval(log, [0], log.locate(0, 0)).verify()
    disk.power_cut()

    assert not verdict.refused
    assert verdict.good.keys() == {0}
    assert log.locate(0).entry_ids.tolist() == [0]
