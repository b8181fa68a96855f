"""The story of a recovery on bookies of another kind: each is served behind a queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.bookies.asking import Door
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.read.splits import cut
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError, LedgerFencedError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.queue_bookie import BookieServer, QueueBookie
from spark_bookkeeper.testing.rows import wait_for_every_copy
from tests.worlds import payloads

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Served(Ground):
    """A cluster whose clients reach every bookie through a queue."""

    def __init__(self, directory: Path, bookies: int, config: ClientConfig | None = None) -> None:
        self.servers: list[BookieServer] = []
        super().__init__(directory, bookies, config, open_bookie=self.serve)

    def serve(self, storage: Storage, door: Door) -> Bookie:
        server = BookieServer(FileBookie(storage))
        self.servers.append(server)
        return QueueBookie(server, door)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    ground = Served(tmp_path, bookies=5)
    yield ground
    for server in ground.servers:
        server.close()


def table(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table([list(numbers), [f"row {n}" for n in numbers]], schema=SCHEMA)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_a_ledger_outlives_its_writer_and_one_of_its_bookies(
    served: Served, sizes: tuple[int, int, int]
) -> None:
    # Written in slots and in parts, by a writer that then is lost.
    writer = lifecycle.create_ledger(
        served.context, Quorum(*sizes), schema=SCHEMA, entry_target_bytes=1000
    )
    rows = [table(0, 10), table(10, 5_000), table(5_010, 3)]
    for piece in rows:
        writer.append(piece)
    wait_for_every_copy(writer)  # a fence would keep what is on its way from its bookie
    expected = pa.concat_tables(rows)

    # Recovered by another client: the first can add nothing more.
    client = served.client()
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    assert reader.metadata.is_closed
    assert reader.read_arrow().equals(expected)
    with pytest.raises(LedgerFencedError):
        writer.append(table(9_000, 1))
    writer.abandon()

    # A bookie is lost with all that it held, and its share made again on another.
    lost = reader.metadata.last_fragment.ensemble[0]
    served.stop(lost, destroy=True)
    wish = BookieRecovery((lost,))
    report = recover_bookie(client, LocalRunner(client), wish)
    assert {row.status for row in report.rows} == {"replicated"}

    # Everybody reads all of it, each entry in as many copies as before.
    again = served.client()
    reader = lifecycle.open_ledger(again, writer.ledger_id)
    assert lost not in reader.metadata.bookies()
    assert reader.read_arrow().equals(expected)
    assert pa.Table.from_batches(e.batch for e in reader.entries()).equals(expected)
    checked = check_ledgers(again, LocalRunner(again), [writer.ledger_id], 100)
    assert {row.status for row in checked.rows} == {"healthy"}
    last = reader.metadata.last_entry_id
    assert last is not None
    pieces = cut(again, reader.ledger, EntryId(0), last, 4)
    assert (pieces[0][0], pieces[-1][1]) == (0, last)
    found = again.store.read_ledger(writer.ledger_id).value
    shown = LedgerInfo.of(writer.ledger_id, found, again, lambda shown: shown).slots_arrow()
    assert shown.num_rows > 0

    asked = {request for server in served.servers for request in server.requests}
    assert asked >= {"add", "begin_part", "fence", "verify", "read_part", "write_copies", "scan"}


def test_what_is_damaged_behind_a_queue_is_found_and_made_again(served: Served) -> None:
    with lifecycle.create_ledger(served.context, Quorum(3, 3, 2)) as writer:
        for n in range(5):
            writer.append(b"entry %d" % n)
    damaged = writer.metadata.last_fragment.ensemble[1]
    file = served.files(damaged, "slots")[2]
    file.write_bytes(file.read_bytes().replace(b"entry 2", b"entry ?"))
    client = served.client()

    checked = check_ledgers(client, LocalRunner(client), [writer.ledger_id], 100)
    repaired = repair_ledgers(client, LocalRunner(client), [writer.ledger_id])

    assert [row.source for row in checked.rows if row.status == "damaged"] == [damaged]
    assert [row.status for row in repaired.rows] == ["replicated"]
    checked = check_ledgers(client, LocalRunner(client), [writer.ledger_id], 100)
    assert {row.status for row in checked.rows} == {"healthy"}


def test_a_queue_that_hangs_is_given_up_like_a_disk(tmp_path: Path) -> None:
    """The bound on silence is above the face too."""
    config = ClientConfig(bookie_timeout_ms=1_000, read_hedge_ms=50, explicit_lac_ms=0)
    ground = Served(tmp_path, bookies=4, config=config)
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)) as writer:
        writer.append(b"kept")
    bookie = writer.metadata.last_fragment.ensemble[0]
    client = ground.client()
    replica = client.bookies.replica(bookie, writer._adds.ledger)
    assert replica.tail().last_add_confirmed == -1
    release = ground.runtime.condition()
    is_over = False

    def stuck(place: str, operation: str, path: str) -> None:
        if place == bookie:
            with release:
                while not is_over:
                    release.wait()

    ground.before.append(stuck)
    with pytest.raises(BookieUnavailableError, match="no answer") as caught:
        replica.tail()
    assert caught.value.bookie_id == bookie
    assert payloads(client, writer) == [b"kept"]
    with release:
        is_over = True
        release.notify_all()
    for server in ground.servers:
        server.close()
