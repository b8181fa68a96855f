"""The worlds that tests start from: a ground in one process, a local cluster, ledgers in them.

A ground (``testing/ground.py``) has bookies in directories and metadata in memory. A cluster has
a real ZooKeeper: the clusters of one worker are guests of one server (``guests.py``), each below a
node of its own. A module that needs another ground has a fixture ``ground`` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.runner import Failure, ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.testing.ground import Ground, Hook, InlineRuntime
from tests.guests import guests_of
from tests.support.rows import wait_for_every_copy

USUAL: Final = Quorum(3, 3, 2)
FoundT = TypeVar("FoundT")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Four bookies in directories, metadata in memory."""
    return Ground(tmp_path)


@pytest.fixture
def inline_ground(tmp_path: Path) -> Ground:
    """A ground in which one thing happens after the other, in the same order in every run."""
    return Ground(tmp_path / "inline", runtime=InlineRuntime())


def written(
    world: Ground | ClientContext,
    count: int = 10,
    quorum: Quorum = USUAL,
    *,
    payload: Callable[[int], bytes] = lambda number: b"%d" % number,
    close: bool = True,
) -> LedgerWriter:
    """The writer of a ledger with ``count`` entries, each on its whole write set."""
    context = world.context if isinstance(world, Ground) else world
    writer = lifecycle.create_ledger(context, quorum)
    for number in range(count):
        writer.append(payload(number))
    wait_for_every_copy(writer)
    if close:
        writer.close()
    return writer


def rows_writer(
    world: Ground | ClientContext, rows: pa.Table, quorum: Quorum = USUAL, *, target: int = 20_000
) -> LedgerWriter:
    """The writer of a new ledger for such rows, with ``target`` bytes of them in an entry."""
    context = world.context if isinstance(world, Ground) else world
    return lifecycle.create_ledger(context, quorum, schema=rows.schema, entry_target_bytes=target)


def bulk_written(
    ground: Ground, quorum: Quorum = USUAL, *, close: bool = True
) -> tuple[LedgerWriter, pa.Table]:
    """The writer of a ledger with one bulk append, on its whole write sets, and what it wrote."""
    rows = pa.table({"n": range(4000), "s": [f"row {i}" * 9 for i in range(4000)]})
    writer = rows_writer(ground, rows, quorum)
    writer.append(rows)
    wait_for_every_copy(writer)
    if close:
        writer.close()
    return writer, rows


def payloads(world: Ground | ClientContext, ledger: LedgerWriter | int) -> list[bytes]:
    """The payloads of a ledger; opening it fences its writer. A ground reads as another client."""
    context = world.client() if isinstance(world, Ground) else world
    ledger_id = LedgerId(ledger) if isinstance(ledger, int) else ledger.ledger_id
    return [entry.payload for entry in lifecycle.open_ledger(context, ledger_id).entries()]


def bereft_log(ground: Ground) -> LedgerId:
    """The one ledger of a log ``orders``, closed at the entry that one bookie of three had left."""
    writer = create_log(ground.context, "orders", LogOptions(USUAL)).become_writer()
    ledger_id = writer.append(b"0").ledger_id
    writer._ledger._pipeline.drain()  # all three have it
    ensemble = ground.context.store.read_ledger(ledger_id).value.last_fragment.ensemble
    for bookie in ensemble[:2]:
        ground.format(bookie)
    accepting = AcceptedLoss("ann@host", 7, (), ((EntryId(0), None),))
    recover_ledger(ground.client(InlineRuntime()), ledger_id, accepting=accepting)
    return ledger_id


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """The one ZooKeeper of a worker, for all clusters that are its guests."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("host") / "zookeeper") as running:
        yield running


@pytest.fixture
def guests(host: EmbeddedZooKeeper) -> Iterator[None]:
    """Clusters that a test starts have no ZooKeeper of their own."""
    with guests_of(host):
        yield


@pytest.fixture(scope="module")
def cluster(
    host: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Six bookies that the tests of a file share; no test takes one away.

    Their agents are threads of this process. Those that went on beside other files would meet what
    those patch in it.
    """
    made = LocalCluster(tmp_path_factory.mktemp("shared") / "cluster", bookies=6)
    with guests_of(host):
        made.start()
    with made as running:
        yield running


@pytest.fixture
def cluster_of(tmp_path: Path, guests: None) -> Iterator[Callable[[int], LocalCluster]]:
    """Starts a cluster of so many bookies, of which the test may destroy some."""
    with ExitStack() as stack:
        yield lambda bookies: stack.enter_context(
            LocalCluster(tmp_path / f"cluster-of-{bookies}", bookies=bookies)
        )


class Losing(LocalRunner):
    """Never hands on the last answer of one step, or has all of its tasks fail."""

    def __init__(self, context: ClientContext, phase: str, failure: str | None = None) -> None:
        super().__init__(context)
        self.phase = phase
        self.failure = failure

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        if step.phase != self.phase:
            return super().run(step, items, progress)
        if self.failure is not None:
            return iter([step.failed(item, Failure(self.failure)) for item in items])
        return iter(list(super().run(step, items, progress))[:-1])


def failing(operation: str, error: Callable[[str], BaseException]) -> Hook:
    """A hook: an operation ends in an error about its path."""

    def fail(place: str, asked: str, path: str) -> None:
        if asked == operation:
            raise error(path)

    return fail


def there(found: FoundT | None) -> FoundT:
    """What was found, which must be something."""
    assert found is not None, "there is none"
    return found


def first_of(*cases: object) -> list[object]:
    """Cases for ``parametrize``: the plain run takes the first one, and ``full`` the others too."""
    first, *others = cases
    return [
        first,
        *(
            pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
            for case in others
        ),
    ]
