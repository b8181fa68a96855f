"""Calls that cannot be carried out: each says what was given, what the rule is, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoClusterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.outages import without_storage
from spark_bookkeeper.testing.rows import numbered
from spark_bookkeeper.testing.sessions import connect_without_spark

pytestmark = pytest.mark.integration


@pytest.fixture
def ledger_id(bk: BookKeeper) -> int:
    """A closed ledger of three entries."""
    with bk.create_ledger(password=b"secret") as writer:
        for number in range(3):
            writer.append(numbered(number))
    return writer.ledger_id


@pytest.fixture
def readonly(cluster: LocalCluster, bk: BookKeeper) -> Iterator[str]:
    """A seventh bookie, which is read-only."""
    bookie = BookieId("10.9.9.9:3181")
    store = bk.context.store
    store.register(Registration(bookie, "file:///nowhere", "0" * 32, is_readonly=True))
    yield bookie
    store.unregister(bookie)


# Quorum sizes


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((3, 4, 2), ("ensemble", "3", "4")),
        ((3, 2, 3), ("write", "2", "3")),
        ((3, 3, 0), ("ack", "0")),
        ((0, 0, 0), ("0",)),
        ((2, 3, 2), ("2", "3")),
        ((-1, 1, 1), ("-1",)),
    ],
)
def test_sizes_that_break_the_rule_are_refused_with_the_rule(
    bk: BookKeeper, sizes: tuple[int, int, int], named: tuple[str, ...]
) -> None:
    before = bk.ledgers_arrow().num_rows
    with pytest.raises(InvalidArgumentError) as caught:
        bk.create_ledger(
            ensemble_size=sizes[0], write_quorum_size=sizes[1], ack_quorum_size=sizes[2]
        )

    assert all(name in caught.value.message for name in named), caught.value.message
    assert ">=" in caught.value.message
    assert bk.ledgers_arrow().num_rows == before


def test_more_bookies_than_there_are_is_refused_with_a_table_of_all(
    cluster: LocalCluster, bk: BookKeeper, readonly: str
) -> None:
    before = bk.ledgers_arrow().num_rows
    stopped = cluster.bookie_ids[0]
    cluster.stop_bookie(stopped)
    try:
        with pytest.raises(NotEnoughBookiesError) as caught:
            bk.create_ledger(ensemble_size=6, write_quorum_size=3, ack_quorum_size=2)
    finally:
        cluster.start_bookie(stopped)

    error = caught.value
    assert (error.needed, error.available) == (6, 5)
    assert "down" in error.causes[stopped]
    assert "read-only" in error.causes[readonly]
    for bookie in (stopped, readonly):
        assert bookie in error.message
    assert "6" in error.message
    assert bk.ledgers_arrow().num_rows == before


def test_arguments_of_another_type_are_refused_by_name_and_rule(bk: BookKeeper) -> None:
    anything: Any = 3
    with pytest.raises(
        InvalidArgumentError, match=r"ledger_ids=3 is not a list of ids; give \[3\]"
    ):
        bk.recover_ledgers(anything)
    with pytest.raises(InvalidArgumentError, match="ledger_ids=3"):
        bk.check_ledgers(anything)
    with pytest.raises(InvalidArgumentError, match="bookie_ids=3"):
        bk.recover_bookie(anything)
    with pytest.raises(InvalidArgumentError, match="bookie id 3"):
        bk.recover_bookie([anything])
    with pytest.raises(InvalidArgumentError, match="no bookie was named"):
        bk.recover_bookie([])
    with pytest.raises(InvalidArgumentError, match="bytes_per_second=-1 is below 1"):
        bk.recover_bookie("10.0.0.1:1", bytes_per_second=-1, dry_run=True)
    for wrong in ("a", 101, True):
        percentage: Any = wrong
        with pytest.raises(InvalidArgumentError, match=f"percentage={wrong!r}"):
            bk.check_ledgers(percentage=percentage)
        with pytest.raises(InvalidArgumentError, match=f"percentage={wrong!r}"):
            bk.repair_ledgers(percentage=percentage)
    with pytest.raises(InvalidArgumentError, match="bytes_per_second=0 is below 1"):
        bk.repair_ledgers(bytes_per_second=0)
    with pytest.raises(InvalidArgumentError, match="digest_type=3"):
        bk.create_ledger(digest_type=anything)


def test_a_ledger_that_is_asked_for_twice_is_checked_once(bk: BookKeeper, ledger_id: int) -> None:
    once = bk.check_ledgers([ledger_id])
    twice = bk.check_ledgers([ledger_id, ledger_id])
    assert len(twice.rows) == len(once.rows) > 0


# What is appended


def test_another_schema_is_refused_with_both(bk: BookKeeper) -> None:
    schema = pa.schema([("id", pa.int64()), ("names", pa.list_(pa.string()))])
    with bk.create_ledger(schema=schema) as writer:
        wrong = pa.table({"id": pa.array(["x"]), "other": pa.array([1])})
        for append in (writer.append, writer.append_async):
            with pytest.raises(InvalidArgumentError) as caught:
                append(wrong)
            for word in ("names", "list", "int64", "other", "string"):
                assert word in caught.value.message
        with pytest.raises(InvalidArgumentError, match="names"):
            writer.append(b"bytes")
        with pytest.raises(InvalidArgumentError):
            writer.append(17)
        assert writer.append(pa.table({"id": [1], "names": [["a", None]]}, schema=schema)) == 0
    assert bk.ledger(writer.ledger_id).last_entry_id == 0


def test_an_entry_id_that_is_not_next_is_refused_and_the_writer_goes_on(bk: BookKeeper) -> None:
    with bk.create_ledger() as writer:
        with pytest.raises(InvalidArgumentError) as caught:
            writer.append(b"x", expected_entry_id=5)
        assert "expected_entry_id=5" in caught.value.message
        assert "is 0" in caught.value.message
        assert writer.append(b"x", expected_entry_id=0) == 0


def test_an_id_that_is_taken_is_refused_and_the_other_ledger_stays(
    bk: BookKeeper, ledger_id: int
) -> None:
    with pytest.raises(LedgerExistsError, match=f"ledger {ledger_id} exists already; nothing was"):
        bk.create_ledger(ledger_id=ledger_id)

    assert bk.open_ledger(ledger_id, b"secret").last_add_confirmed == 2


# What is read


@pytest.mark.parametrize(("first", "last"), [(3, 3), (0, 3), (-1, 0), (2, 1), (7, None)])
def test_entries_out_of_range_are_refused_with_the_range(
    bk: BookKeeper, ledger_id: int, first: int, last: int | None
) -> None:
    reader = bk.open_ledger(ledger_id, b"secret")

    with pytest.raises(NoSuchEntryError) as caught:
        reader.read_arrow(first, last)

    assert f"ledger {ledger_id}" in caught.value.message
    assert "entries 0 to 2 can be" in caught.value.message


def test_reading_beyond_the_last_add_confirmed_says_how_to_read_on(bk: BookKeeper) -> None:
    with bk.create_ledger() as writer:
        writer.append(b"0")
        reader = bk.open_ledger_no_recovery(writer.ledger_id)
        with pytest.raises(NoSuchEntryError, match=r"refresh\(\)"):
            reader.read_arrow(0, 5)


@pytest.mark.parametrize("opener", ["open_ledger", "open_ledger_no_recovery"])
def test_a_wrong_password_reads_and_changes_nothing(
    bk: BookKeeper, ledger_id: int, opener: str
) -> None:
    writer = bk.create_ledger(password=b"secret", digest_type="MAC")
    writer.append(b"0")
    for ledger in (ledger_id, writer.ledger_id):
        with pytest.raises(UnauthorizedError) as caught:
            getattr(bk, opener)(ledger, b"guess")
        assert f"ledger {ledger}" in caught.value.message
        assert "password" in caught.value.message
        assert "nothing was read or changed" in caught.value.message
        assert "secret" not in caught.value.message
    assert bk.ledger(writer.ledger_id).state == "OPEN"
    assert writer.append(b"1") == 1  # it was not fenced
    writer.close()


# Ledgers that are not there


def test_a_ledger_that_does_not_exist_is_said_not_to(bk: BookKeeper) -> None:
    for call in (bk.open_ledger, bk.open_ledger_no_recovery, bk.ledger, bk.diff_replicas_arrow):
        with pytest.raises(NoSuchLedgerError, match="there is no ledger 424242") as caught:
            call(424242)
        assert "spark-bookkeeper ledger list" in caught.value.message
    (row,) = bk.recover_ledgers([424242]).rows
    assert (row.status, row.reason) == ("gone", "the ledger does not exist")
    (checked,) = bk.check_ledgers([424242]).rows
    assert checked.status == "gone"
    with pytest.raises(InvalidArgumentError, match="ledger 424242 does not exist"):
        bk.recover_bookie("10.0.0.1:3181", ledger_ids=[424242])
    bk.delete_ledger(424242)


def test_a_ledger_deleted_under_its_writer_cannot_be_closed_and_is_not_made_again(
    bk: BookKeeper,
) -> None:
    writer = bk.create_ledger()
    writer.append(b"0")
    reader = bk.open_ledger_no_recovery(writer.ledger_id)

    bk.delete_ledger(writer.ledger_id, even_if_alive=True)

    with pytest.raises(NoSuchLedgerError, match=f"ledger {writer.ledger_id} was DELETED"):
        writer.close()
    with pytest.raises(NoSuchLedgerError):
        reader.refresh()
    with pytest.raises(NoSuchLedgerError):
        bk.open_ledger(writer.ledger_id)
    assert writer.ledger_id not in bk.ledgers_arrow().column("ledger_id").to_pylist()


def test_a_ledger_deleted_under_its_writer_ends_an_ensemble_change_too(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    writer = bk.create_ledger()
    writer.append(b"0")
    bk.delete_ledger(writer.ledger_id, even_if_alive=True)

    def append_on() -> None:
        while True:  # until it meets a fence, hears of the deletion, or is to change its ensemble
            writer.append(b"1")

    with without_storage(cluster, writer.metadata.last_fragment.ensemble[0]):
        with pytest.raises(NoSuchLedgerError, match=f"ledger {writer.ledger_id} was DELETED"):
            append_on()
        writer.abandon()


# Recovering bookies


def test_a_bookie_that_is_alive_is_not_recovered_unless_that_is_meant(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    before = bk.ledgers_arrow()

    with pytest.raises(InvalidArgumentError) as caught:
        bk.recover_bookie(cluster.bookie_ids[0])

    assert cluster.bookie_ids[0] in caught.value.message
    assert "nothing was changed" in caught.value.message
    assert "--even-if-alive" in caught.value.message
    assert bk.ledgers_arrow().equals(before)


def test_targets_that_cannot_take_a_copy_are_refused(
    cluster: LocalCluster, bk: BookKeeper, readonly: str
) -> None:
    with bk.create_ledger() as writer:
        writer.append(b"0")
    lost, inside, _ = writer.metadata.fragments[0].ensemble
    cluster.stop_bookie(lost)
    try:
        before = bk.ledgers_arrow()
        cases = {
            inside: (
                "already in the ensemble",
                f"ledger {_first_with(bk, lost, inside)}",
                "choose",
            ),
            readonly: ("read-only", "choose another"),
            "10.1.1.1:3181": ("not registered", "registered bookies:"),
            lost: ("one of the bookies to recover", "choose another"),
        }
        for target, words in cases.items():
            with pytest.raises(InvalidArgumentError) as caught:
                bk.recover_bookie(lost, target=target)
            assert target in caught.value.message
            for word in words:
                assert word in caught.value.message.lower(), (word, caught.value.message)
        with pytest.raises(InvalidArgumentError, match=r"10\.1\.1\.1:3181 is unknown"):
            bk.recover_bookie("10.1.1.1:3181")
        with pytest.raises(InvalidArgumentError, match="host"):
            bk.recover_bookie("not a bookie")
        assert bk.ledgers_arrow().equals(before)
    finally:
        cluster.start_bookie(lost)


def _first_with(bk: BookKeeper, *bookies: str) -> int:
    """The lowest ledger of the cluster with a fragment on all of these bookies."""
    return min(
        ledger.ledger_id
        for ledger in map(bk.ledger, bk.ledgers_arrow()["ledger_id"].to_pylist())
        if any(set(bookies) <= set(f.ensemble) for f in ledger.fragments)
    )


# Clusters that are not there


def test_no_zookeeper_at_the_address_says_what_to_check() -> None:
    with pytest.raises(MetadataUnavailableError) as caught:
        sbk.connect("zk://127.0.0.1:9/ledgers", config=sbk.ClientConfig(metadata_timeout_ms=500))

    assert "127.0.0.1:9" in caught.value.message
    assert "nothing was changed" in caught.value.message
    assert "Check the host and port" in caught.value.message


def test_a_zookeeper_without_a_cluster_says_what_makes_one(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zk") as server:
        uri = f"zk://{server.address}/ledgers"
        for connect in (sbk.connect, connect_without_spark):
            with pytest.raises(NoClusterError) as caught:
                connect(uri)
            assert server.address in caught.value.message
            assert "spark-bookkeeper cluster init" in caught.value.message


def test_a_root_without_a_cluster_is_told_apart_from_the_one_beside_it(
    cluster: LocalCluster,
) -> None:
    uri = f"zk://{cluster.zookeeper.address}/elsewhere/ledgers"
    with pytest.raises(NoClusterError, match="/elsewhere/ledgers"):
        sbk.connect(uri)


@pytest.mark.parametrize("uri", ["", "zk://", "http://x/ledgers"])
def test_a_uri_that_is_none_is_refused_before_anything_is_tried(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_BOOKKEEPER_METADATA_URI", raising=False)
    with pytest.raises(InvalidArgumentError) as caught:
        sbk.connect(uri, config=sbk.ClientConfig(metadata_timeout_ms=500))
    assert "zk" in caught.value.message


def test_a_closed_session_says_to_connect_again(cluster: LocalCluster) -> None:
    bk = connect_without_spark(cluster.metadata_uri)
    bk.close()

    with pytest.raises(InvalidArgumentError, match="connect"):
        bk.create_ledger()
