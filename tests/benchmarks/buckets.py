"""B1 and B2: many small ledgers whose bookies are in buckets of an object store that is far away.

What takes time there is the way. So what counts is how many requests are on it together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from typing_extensions import Self

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.roots import open_storage
from spark_bookkeeper.storage.storage import Storage
from tests.benchmarks import plain_s3, raw
from tests.benchmarks.appending import SMALL
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import Against, Line, at_least
from tests.benchmarks.object_store import DELAY_SECONDS, Asked, FarStore
from tests.benchmarks.profiling import timed

ENTRIES: Final = 3
COPIES: Final = 3
AT_ONCE: Final = 16
"""Writers, while nothing is measured."""
RATIO_LEAST: Final = 0.5
"""Of the rate of plain code."""
ON_DEMAND: Final = BookieConfig(probe_interval_ms=3_600_000)
"""An agent that looks at its bucket by itself would be counted."""


def recovery(lab: Lab) -> Iterator[Line]:
    """B1."""
    with _Cluster(lab) as cluster:
        for _ in range(COPIES):
            cluster.add_bookie()

        def job(work: _Work) -> int:
            left = cluster.write(lab.sizes.bucket_ledgers, is_closed=False)
            work.time(lambda: cluster.bk.recover_ledgers(left), len(left))
            assert all(cluster.bk.ledger(each).state == "CLOSED" for each in left)
            cluster.delete(left)
            return len(left)

        yield from _lines(
            lab, cluster, "B1", "recovery of small ledgers in buckets, as a Spark job", job
        )


def rereplication(lab: Lab) -> Iterator[Line]:
    """B2. In each round the bookie that takes the copies is a new one, so all ledgers are hit."""
    with _Cluster(lab) as cluster:
        for _ in range(COPIES):
            cluster.add_bookie()

        def job(work: _Work) -> int:
            made = cluster.write(lab.sizes.bucket_ledgers, is_closed=True)
            cluster.add_bookie()
            victim = cluster.lose_bookie()
            work.time(lambda: cluster.bk.recover_bookie(victim), len(made))
            cluster.delete(made)
            return len(made)

        yield from _lines(
            lab, cluster, "B2", "re-replication of small ledgers in buckets, as a Spark job", job
        )


@dataclass
class _Work:
    """A contender that is ours, and what it asked the store when it ran last."""

    cluster: _Cluster
    job: Callable[[_Work], int]
    """Writes ledgers, and says of how many of them the work was timed."""
    count: int = 0
    seconds: float = 0.0
    asked: Asked | None = None

    def rate(self) -> float:
        self.count = self.job(self)
        return self.count / self.seconds

    def time(self, run: Callable[[], RecoveryReport], count: int) -> None:
        store = self.cluster.store
        store.count(DELAY_SECONDS)
        started = time.perf_counter()
        with timed():
            report = run()
        self.seconds = time.perf_counter() - started
        self.asked = store.asked()
        assert report.is_complete, report.unfinished
        assert len(report.rows) == count, report

    def plain(self) -> float:
        """The same requests by plain code, a rate too."""
        return self.count / plain_s3.ask_the_same(self.cluster.store, self._asked, DELAY_SECONDS)

    def one_by_one(self) -> float:
        """A rate that is computed: a request takes at least its way."""
        return self.count / (self._asked.requests * DELAY_SECONDS)

    def requests_each(self) -> float:
        return self._asked.requests / self.count

    def most(self) -> float:
        return float(self._asked.most)

    @property
    def _asked(self) -> Asked:
        assert self.asked is not None
        return self.asked


def _lines(
    lab: Lab, cluster: _Cluster, point: str, what: str, job: Callable[[_Work], int]
) -> Iterator[Line]:
    work = _Work(cluster, job)
    work.rate()  # thrown away: plain code must know what to ask when it is the first of a round
    sizes = (
        f"{lab.sizes.bucket_ledgers} ledgers of {ENTRIES} x {SMALL} B on {COPIES} bookies; "
        f"{DELAY_SECONDS * 1000:g} ms for each request"
    )
    yield Line(
        point,
        what,
        "per s",
        sizes,
        work.rate,
        [
            Against(
                f"raw: the same requests, {plain_s3.MOST} at a time",
                work.plain,
                at_least(RATIO_LEAST),
            ),
            Against("computed: the same requests, one after the other", work.one_by_one),
        ],
        rounds=lab.sizes.rounds,
        warm_up=0,
    )
    for told, unit, figure in (
        ("requests for each ledger", "requests", work.requests_each),
        ("most requests on their way together", "requests", work.most),
    ):
        yield Line(point, f"{told}: {what}", unit, sizes, figure, rounds=1, warm_up=0)


class _Cluster:
    """Bookies in buckets, each with an agent in this process, and a session with them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._runtime = ThreadRuntime()
        self._agents: dict[BookieId, tuple[BookieAgent, Storage]] = {}
        self._bookies = 0

    def __enter__(self) -> Self:
        hosts = self._lab.bk.metadata_uri.split("://")[1].split("/")[0]
        uri = f"zk://{hosts}/buckets-{self._runtime.token()}/ledgers"
        self.store = FarStore().__enter__()
        self._metadata = ZooKeeperStore(uri, token=self._runtime.token)
        self._metadata.initialize_cluster()
        self.bk = self._lab.connect(uri, self.store.storage_options)
        return self

    def __exit__(self, *error: object) -> None:
        self.bk.close()
        for agent, _ in self._agents.values():
            agent.stop()
        self._metadata.close()
        self.store.__exit__(*error)

    def add_bookie(self) -> None:
        self._bookies += 1
        bookie_id = BookieId(f"10.0.0.{self._bookies}:3181")
        root = f"s3://{self.store.make_bucket()}/bookie"
        storage = open_storage(root, self.store.storage_options, bookie_id)
        agent = BookieAgent(self._metadata, Partition(storage), bookie_id, self._runtime, ON_DEMAND)
        agent.start()
        self._agents[bookie_id] = agent, storage

    def lose_bookie(self) -> BookieId:
        """The oldest one, and what it holds."""
        bookie_id = next(iter(self._agents))
        agent, storage = self._agents.pop(bookie_id)
        agent.stop()
        Partition(storage).wipe()
        return bookie_id

    def write(self, count: int, *, is_closed: bool) -> list[LedgerId]:
        """Ledgers with a few entries on all copies; else their writers went without closing."""
        payload = raw.noise(SMALL)

        def write(_: int) -> LedgerId:
            writer = self.bk.create_ledger(
                ensemble_size=COPIES, write_quorum_size=COPIES, ack_quorum_size=2
            )
            for future in [writer.append_async(payload) for _ in range(ENTRIES)]:
                future.result()
            if is_closed:
                writer.close()
            else:
                writer.abandon()
            return writer.ledger_id

        return ThreadRuntime().map(write, list(range(count)), AT_ONCE)

    def delete(self, ledger_ids: list[LedgerId]) -> None:
        """Their metadata; their objects stay, and no job looks at them again."""
        for ledger_id in ledger_ids:
            self.bk.delete_ledger(ledger_id, even_if_alive=True)
