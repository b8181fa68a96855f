"""Calls that cannot be carried out: each says what was given, what the rule is, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataUnavailableError,
    NoClusterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.outages import without_storage
from tests.support.rows import numbered, wait_for_every_copy
from tests.support.sessions import connect_without_spark

pytestmark = pytest.mark.integration


@pytest.fixture
def ledger_id(bk: BookKeeper) -> int:
    """A closed ledger of three entries."""
    with bk.create_ledger(password=b"secret") as writer:
        for number in range(3):
            writer.append(numbered(number))
    return writer.ledger_id


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


def test_an_id_that_is_taken_is_refused_and_the_other_ledger_stays(
    bk: BookKeeper, ledger_id: int
) -> None:
    with pytest.raises(LedgerExistsError, match=f"ledger {ledger_id} exists already; nothing was"):
        bk.create_ledger(ledger_id=ledger_id)

    assert bk.open_ledger(ledger_id, b"secret").last_add_confirmed == 2


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


def test_a_ledger_deleted_under_its_writer_ends_an_ensemble_change_too(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    writer = bk.create_ledger()
    writer.append(b"0")
    wait_for_every_copy(writer)  # so that none meets a fence before the ledger is gone
    bk.delete_ledger(writer.ledger_id, even_if_alive=True)

    def append_on() -> None:
        while True:  # until it meets a fence, hears of the deletion, or is to change its ensemble
            writer.append(b"1")

    with without_storage(cluster, writer.metadata.last_fragment.ensemble[0]):
        with pytest.raises(NoSuchLedgerError, match=f"ledger {writer.ledger_id} was DELETED"):
            append_on()
        writer.abandon()


# Clusters that are not there


def test_no_zookeeper_at_the_address_says_what_to_check() -> None:
    with pytest.raises(MetadataUnavailableError) as caught:
        sbk.connect("zk://127.0.0.1:9/ledgers", config=sbk.ClientConfig(metadata_timeout_ms=500))

    assert "127.0.0.1:9" in caught.value.message
    assert "nothing was changed" in caught.value.message
    assert "Check the host and port" in caught.value.message


@pytest.mark.parametrize("connect", [sbk.connect, connect_without_spark])
def test_a_root_without_a_cluster_is_told_apart_from_the_one_beside_it(
    cluster: LocalCluster, connect: Callable[[str], BookKeeper]
) -> None:
    address = cluster.zookeeper.address

    with pytest.raises(NoClusterError, match=f"{address}.*/elsewhere/ledgers") as caught:
        connect(f"zk://{address}/elsewhere/ledgers")

    assert "spark-bookkeeper cluster init" in caught.value.message


@pytest.mark.parametrize(
    ("uri", "said"), [("", "is a variable not set"), ("zk://", "zk"), ("http://x/ledgers", "zk")]
)
def test_a_uri_that_is_none_is_refused_before_anything_is_tried(
    uri: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_BOOKKEEPER_METADATA_URI", raising=False)
    with pytest.raises(InvalidArgumentError) as caught:
        sbk.connect(uri, config=sbk.ClientConfig(metadata_timeout_ms=500))
    assert said in caught.value.message


def test_a_closed_session_says_to_connect_again(cluster: LocalCluster) -> None:
    bk = connect_without_spark(cluster.metadata_uri)
    bk.close()

    with pytest.raises(InvalidArgumentError, match="connect"):
        bk.create_ledger()
