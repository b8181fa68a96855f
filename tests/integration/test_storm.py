"""A storm of 503: an object store refuses a share of all requests as too many, for a while.

Each request is answered in the end, within the attempts that the client of S3 makes by itself. So
nothing here can fail by chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_ledgers import recover_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.testing.ground import WRITER
from spark_bookkeeper.testing.memory_store import MemoryCluster

pytest.importorskip("s3fs")
from tests.benchmarks.object_store import FarStore

pytestmark = pytest.mark.s3

ENTRIES = 1

APPENDS = 4

PATIENCE_MS = 300_000
"""A storm of hundreds of ledgers takes minutes on a machine that is busy besides."""


class Buckets:
    """Four bookies, each in a bucket, with metadata in memory."""

    def __init__(self, store: FarStore) -> None:
        self.store = store
        # As users have them, who say nothing of the SDK's own repeats.
        self._options = {**store.storage_options, "config_kwargs": {}}
        self._cluster = MemoryCluster()
        self._runtime = ThreadRuntime()
        agent = self._cluster.session()
        agent.initialize_cluster()
        for number in range(1, 5):
            bookie = BookieId(f"10.0.0.{number}:3181")
            root, incarnation = f"s3://{store.make_bucket()}/root", self._runtime.token()
            storage = open_storage(root, self._options, bookie)
            Partition(storage).furnish(Marker(bookie, incarnation, agent.instance_id()))
            agent.write_cookie(Cookie(bookie, root, incarnation, agent.instance_id()), None)
            agent.register(Registration(bookie, root, incarnation))

    def client(self) -> ClientContext:
        """A new process."""
        store, config = self._cluster.session(), ClientConfig(bookie_timeout_ms=PATIENCE_MS)

        def opened(uri: str, bookie_client: BookieClient) -> FileBookie:
            storage = open_storage(uri, self._options, bookie_client.bookie_id)
            return FileBookie(BoundedStorage(storage, bookie_client))

        bookies = Bookies(store, opened, self._runtime, config)
        return ClientContext(store, bookies, self._runtime, config, writer=WRITER)

    def left_ledgers(self, count: int) -> list[LedgerWriter]:
        """Ledgers whose writers went without closing them."""
        client = self.client()

        def write(_: int) -> LedgerWriter:
            writer = lifecycle.create_ledger(client, Quorum(3, 3, 2))
            for number in range(ENTRIES):
                writer.append(b"%d" % number)
            return writer

        return self._runtime.map(write, list(range(count)), 16)


@pytest.fixture(scope="module")
def store() -> Iterator[FarStore]:
    with FarStore() as store:
        yield store


# s3fs and the SDK pause before they repeat: for minutes in all, so the slow ones pause a hundredth.
@pytest.mark.parametrize(
    ("share", "ledgers", "pauses"),
    [pytest.param(*of, 1, marks=pytest.mark.full) for of in [(0.1, 256), (0.5, 4)]]
    + [pytest.param(*of, 0.01, marks=pytest.mark.slow) for of in [(0.3, 256), (0.5, 256)]],
)
def test_in_a_storm_all_is_appended_and_all_ledgers_are_closed_where_they_end(
    store: FarStore, share: float, ledgers: int, pauses: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(pauses * seconds))
    buckets = Buckets(store)
    left = buckets.left_ledgers(ledgers)
    writer = lifecycle.create_ledger(buckets.client(), Quorum(3, 3, 2))
    recoverer = buckets.client()

    store.count(delay_seconds=0, refused_share=share)
    appended = [writer.append(b"%d" % number) for number in range(APPENDS)]
    report = recover_ledgers(recoverer, LocalRunner(recoverer), [each.ledger_id for each in left])
    asked = store.asked()

    assert appended == list(range(APPENDS))
    assert report.is_complete, report.unfinished
    assert {row.last_entry_id for row in report.rows} == {ENTRIES - 1}
    assert len(report.rows) == ledgers
    assert asked.kinds["503"] > share * asked.requests / 2, "it was a storm"
    writer.close()
