"""What the cluster is told to do about the ledgers that lack copies."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.client.presence import ENDED_FIRST
from spark_bookkeeper.client.read.newest import Newest
from spark_bookkeeper.doctor import failure_domains as sharing
from spark_bookkeeper.doctor import ledgers as endangered
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.doctor.ledgers import MOST_NAMED, LedgersSeen, endangered_ledgers
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata import consumers
from spark_bookkeeper.metadata.consumers import Consumer
from spark_bookkeeper.protocol.archive import table_member
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import WRITER, Ground
from tests.support.autorecovery import written
from tests.worlds import failing

CHECK = "entries below their ack quorum"


@pytest.mark.parametrize(("lost", "replaced"), [("other", "one"), ("one", "other"), ("one", "two")])
def test_the_remedy_of_what_lacks_copies_is_that_of_the_bookies_that_it_lacks(
    tmp_path: Path, lost: str, replaced: str
) -> None:
    """Also while another ledger, which has copies enough, names a bookie that is away."""
    ground = Ground(tmp_path, bookies=3)
    spared = written(ground).metadata.last_fragment.ensemble
    for bookie in spared:
        ground.stop(bookie)
    one, two = ground.add_bookie(), ground.add_bookie()
    written(ground, Quorum(2, 2, 2))
    for bookie in spared:
        ground.start(bookie)
    names = {"one": one, "two": two, "other": spared[0]}
    is_lost, is_replaced = names[lost], names[replaced]
    ground.stop(is_lost)
    ground.format(is_replaced)

    diagnoses = cluster_diagnoses(ground.context, metadata_only=True)
    found = {each.check: each for each in diagnoses}
    told = found[CHECK]
    if (lost, replaced) == ("one", "two"):
        assert told.verdict == "ok", "no copy is left that a loss could end"
        told = found["entries without a live copy"]
        assert told.verdict == "problem"
        assert f"start {one} again" in str(told.remedy)
        assert f"an old disk of {two}" in str(told.remedy)
        assert "bookie recover BOOKIE --skip-open-ledgers`" in str(told.remedy)
        assert "refill" not in str(told.remedy), "there is nothing to fill it with"
        return

    remedy = told.remedy or ""
    assert found["entries without a live copy"].verdict == "ok"
    assert told.verdict == "problem"
    assert (f"bookie recover {is_lost}" in remedy) == (is_lost != names["other"])
    assert (f"bring {is_lost} back" in remedy) == (is_lost != names["other"])
    assert (f"bookie refill {is_replaced}" in remedy) == (is_replaced != names["other"])


B = tuple(BookieId(f"b{number}:3181") for number in range(6))
T = tuple(table_member("t", number) for number in range(3))


@pytest.mark.parametrize(
    ("quorum", "ensembles", "last", "lost"),
    [
        pytest.param((3, 3, 2), {0: B[:3]}, -1, B[:3], id="empty"),
        pytest.param((3, 3, 2), {0: (B[0], B[1], T[2])}, 9, B[:2], id="the third is a table"),
        pytest.param((3, 3, 2), {0: T, 5: B[:3]}, 9, B[:2], id="one fragment is in a table"),
        pytest.param((3, 1, 1), {0: B[:3]}, 0, B[2:3], id="its one entry is elsewhere"),
        pytest.param((3, 3, 2), {0: B[:3], 5: B[3:]}, 4, B[3:], id="the last fragment is empty"),
    ],
)
def test_a_ledger_of_which_every_entry_can_be_read_is_not_called_lost(
    quorum: tuple[int, int, int],
    ensembles: dict[int, tuple[BookieId, ...]],
    last: int,
    lost: tuple[BookieId, ...],
) -> None:
    fragments = tuple(Fragment(EntryId(first), each) for first, each in ensembles.items())
    open_ledger = LedgerMetadata(Quorum(*quorum), LedgerState.OPEN, fragments)
    ledgers = {LedgerId(1): open_ledger.closed(EntryId(last), 0)}

    found = {each.check: each for each in endangered_ledgers(ledgers, frozenset(lost), {})}

    assert found["entries without a live copy"].verdict == "ok"


def test_of_many_ledgers_the_remedy_is_a_command_that_can_be_typed(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    count = MOST_NAMED + 2
    writers = [written(ground, count=1, close=False) for _ in range(count)]
    ground.stop(writers[0].metadata.last_fragment.ensemble[0])
    store = ground.context.store
    in_recovery = {w.ledger_id: store.read_ledger(w.ledger_id).value.in_recovery() for w in writers}

    told = {each.check: each for each in endangered_ledgers(in_recovery, frozenset(), {})}
    exposed = {each.check: each for each in cluster_diagnoses(ground.context, metadata_only=True)}

    found = told["ledgers in recovery"]
    remedy = found.remedy or ""
    assert found.detail.startswith(f"{count} of {count} ledgers")
    (command,) = re.findall(r"ledger recover ([\d ]+) and then the other 2\b", remedy)
    assert command.split() == [str(writer.ledger_id) for writer in writers[:MOST_NAMED]]
    assert "..." not in remedy
    remedy = exposed["open ledgers on lost bookies"].remedy or ""
    assert "recover" not in remedy, "their writers may live"


def test_no_command_about_a_lost_or_replaced_bookie_closes_the_ledger_of_a_living_writer(
    tmp_path: Path,
) -> None:
    """It has the bookie replaced with its next append."""
    ground = Ground(tmp_path, bookies=5)
    lost, replaced = written(ground, count=1, close=False).metadata.last_fragment.ensemble[:2]
    ground.stop(lost, destroy=True)
    ground.format(replaced)

    remedies = [each.remedy or "" for each in cluster_diagnoses(ground.context)]

    commands = re.findall(r"spark-bookkeeper bookie (?:recover|refill) [^;`]*", "; ".join(remedies))
    assert {command.split()[2] for command in commands} == {"recover", "refill"}
    assert [each for each in commands if "--skip-open-ledgers" not in each] == []


@pytest.mark.parametrize(
    "stored_at_ms", [None, 0, 2**52], ids=["silent", "idle for years", "just now"]
)
def test_a_ledger_whose_writer_is_gone_is_recovered_once_its_process_has_ended(
    stored_at_ms: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it wrote last: a writer that lost ZooKeeper may be idle, and go on in an hour."""
    ground = Ground(tmp_path, bookies=3)
    writers = [written(ground, count=1, close=False) for _ in range(MOST_NAMED + 2)]
    ids = [writer.ledger_id for writer in writers]
    seen = replace(LedgersSeen.of(ground.context), open=dict.fromkeys(ids, "gone"))
    monkeypatch.setattr(endangered, "newest_entry", lambda *_: Newest(EntryId(0), stored_at_ms))

    found = endangered.open_ledgers(ground.context, seen)

    commands = " ".join(map(str, ids[:MOST_NAMED])) + " and then the other 2, which the next look"
    assert found.remedy == f"{ENDED_FIRST}; then spark-bookkeeper ledger recover {commands} names"
    assert f"{ids[0]} ({WRITER}, confirmed up to 0" in found.detail


def test_ledgers_that_cannot_be_decoded_are_counted_also_when_they_are_many(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    for _ in range(MOST_NAMED + 2):
        written(ground, count=1)
    garbage = failing("read_ledger", lambda i: MetadataFormatError(f"{i} holds garbage", path=i))

    diagnoses = cluster_diagnoses(ground.client(None, garbage), metadata_only=True)

    (found,) = [each for each in diagnoses if each.check == "ledger metadata"]
    assert found.detail.endswith(f"holds garbage; and {MOST_NAMED + 1} ledgers more")
    assert "ledger list --state unreadable" in (found.remedy or "")


def test_logs_and_consumers_that_cannot_be_decoded_are_told(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=1)
    registers = ground.context.store.registers
    position = Position(LedgerId(0), EntryId(0))
    consumers.publish(registers, "well", Consumer("etl", "n", position, 0))
    registers.create("logs/deleted", json.dumps(LOG | {"is_deleted": True}).encode())
    before = dict(told(ground))
    registers.create("logs/orders", b"[[[[")
    registers.create("logs/clicks", b"{}")
    registers.create("consumers/orders/etl", b"[[[[")

    after = told(ground)

    assert before.keys().isdisjoint({"log metadata", "consumers of logs"})
    log, consumer = after["log metadata"], after["consumers of logs"]
    assert (log.verdict, consumer.verdict) == ("problem", "warning")
    assert "logs/clicks" in log.detail
    assert log.detail.endswith("and 1 log more")
    assert "consumers/orders/etl" in consumer.detail
    assert "consumers/well" not in consumer.detail


LOG = {
    "version": 1,
    "nonce": "n",
    "options": {},
    "chunks": [],
    "recent": [],
    "begins_at": 0,
    "deleted_below": 0,
    "is_deleted": False,
}


def told(ground: Ground) -> dict[str, Diagnosis]:
    return {each.check: each for each in cluster_diagnoses(ground.context, metadata_only=True)}


def test_that_nobody_makes_lost_copies_again_is_a_warning_where_data_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, bookies=3)
    assert told(ground)["autorecovery"].verdict == "ok", "it is a cluster to try"
    monkeypatch.setattr(sharing, "_LOOPBACK", frozenset())

    found = told(ground)["autorecovery"]

    assert found.verdict == "warning"
    assert "autorecovery start" in (found.remedy or "")
