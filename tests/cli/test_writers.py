"""Whether a ledger's writer lives, as the command line shows it and asks before it deletes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.client.presence import ENDED_FIRST, age
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.session import BookKeeper
from tests.cli.conftest import Call
from tests.support.rows import wait_for_every_copy
from tests.support.sessions import connect_without_spark

CHECK = "writers of open ledgers"


@pytest.fixture
def writer(own_cluster: LocalCluster) -> Iterator[LedgerWriter]:
    """One that lives, in this process, and has confirmed two entries."""
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        writer = bk.create_ledger()
        writer.append(b"0")
        writer.append(b"1")
        yield writer
        writer.abandon()


@pytest.fixture
def gone(call_own: Call, numbers: Path) -> int:
    """A ledger as a writer that crashed left it."""
    done = call_own("ledger", "append", numbers, "--leave-open", "--json")
    ledger_id: int = done.json["ledger_id"]
    return ledger_id


def rows(call: Call, *options: str) -> dict[int, dict[str, Any]]:
    told = call("ledger", "list", "--json", *options).json["ledgers"]
    return {row["ledger_id"]: row for row in told}


def finding(call: Call) -> dict[str, Any]:
    told = call("doctor", "--json").json["findings"]
    (found,) = [each for each in told if each["check"] == CHECK]
    return dict(found)


def test_lists_and_pictures_tell_who_writes_and_whether_he_lives(
    call_own: Call, writer: LedgerWriter, gone: int
) -> None:
    living = int(writer.ledger_id)

    listed, asked = rows(call_own), rows(call_own, "--ask-bookies")
    table = call_own("ledger", "list", "--ask-bookies").out
    shown = {i: call_own("ledger", "show", i).out for i in (living, gone)}
    told = {i: call_own("ledger", "show", i, "--json").json for i in (living, gone)}

    me = f"process {os.getpid()}"
    for row in (listed[living], asked[living], told[living]):
        assert (row["writer_state"], me in row["writer"]) == ("lives", True)
    for row in (listed[gone], asked[gone], told[gone]):
        assert row["writer_state"] == "gone"
    assert listed[living]["last_add_confirmed"] is None
    for row in (asked[living], told[living]):
        assert row["last_add_confirmed"] in (0, 1)  # the last entry once its writer has paused
    assert asked[gone]["newest_entry_at"] == told[gone]["newest_entry_at"] is not None
    assert f"lives: {listed[living]['writer']}" in table
    assert "ago" in table or "now" in table
    assert "writer lives    no: its process ended" in shown[gone]
    assert "writer lives    yes" in shown[living]
    assert "recover" not in shown[living]


def test_reading_says_whether_more_may_come(
    call_own: Call, writer: LedgerWriter, gone: int
) -> None:
    assert "is gone: its process ended" in call_own("ledger", "read", gone).err
    read = call_own("ledger", "read", writer.ledger_id)
    assert ") lives; --recover fences its writer" in read.err


def test_the_doctor_finds_ledgers_that_nobody_closes_any_more(
    call_own: Call, writer: LedgerWriter, gone: int
) -> None:
    found = finding(call_own)
    assert found["verdict"] == "warning"
    assert found["detail"].startswith("1 whose writer lives, 1 whose writer is gone, 0 ")
    assert f"{gone} (" in found["detail"]
    assert "newest entry" in found["detail"]
    assert "confirmed up to" in found["detail"]
    condition, _, command = found["remedy"].rpartition("; then ")
    assert condition == ENDED_FIRST
    assert f"its end is not fixed: {condition}; then" in call_own("ledger", "show", gone).out
    assert call_own(*command.split()[1:], "--no-spark").code == 0

    found = finding(call_own)
    assert found["verdict"] == "ok"
    assert found["detail"].startswith("1 whose writer lives, 0 whose writer is gone, 0 ")


def test_a_ledger_whose_writer_lives_is_left_alone_and_the_others_are_deleted(
    call_own: Call, writer: LedgerWriter, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    refused = call_own("ledger", "delete", writer.ledger_id)
    assert (refused.code, "for ever?" in refused.err) == (1, False), "nobody is asked"
    assert "deleted: nothing" in refused.out
    assert "--even-if-alive" in refused.out

    done = call_own("ledger", "delete", gone, writer.ledger_id, 987654, "--yes", "--json")

    assert (done.code, done.json["deleted"], done.json["not_found"]) == (1, [gone], [987654])
    assert f"process {os.getpid()}" in done.json["left"][str(writer.ledger_id)]
    assert f"process {os.getpid()}" in done.err
    assert writer.append(b"2") == 2
    wait_for_every_copy(writer)  # so that none meets a fence before the ledger is gone

    forced = call_own("ledger", "delete", writer.ledger_id, "--yes", "--even-if-alive", "--json")

    assert (forced.code, forced.json) == (0, {"deleted": [writer.ledger_id], "not_found": []})
    with pytest.raises(NoSuchLedgerError):
        writer.append(b"3")


@pytest.mark.parametrize(
    ("error", "deleted", "left"),
    [
        (BookieUnavailableError("no answer", bookie_id="b:1"), [0, 2], [1]),
        (MetadataUnavailableError("no answer"), [0], [1, 2]),
    ],
)
def test_what_was_deleted_before_something_failed_is_told(
    error: BookKeeperError,
    deleted: list[int],
    left: list[int],
    call: Call,
    numbers: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [call("ledger", "append", numbers, "--json").json["ledger_id"] for _ in range(3)]
    fail_at(ids[1], error, monkeypatch)

    done = call("ledger", "delete", *ids, "--yes", "--json")

    assert (done.code, done.json["deleted"]) == (1, [ids[n] for n in deleted])
    assert done.json["left"].keys() == {str(ids[n]) for n in left}
    assert all("no" in why for why in done.json["left"].values())


def test_what_was_deleted_before_an_interrupt_is_told(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [call("ledger", "append", numbers, "--json").json["ledger_id"] for _ in range(2)]
    fail_at(ids[1], KeyboardInterrupt(), monkeypatch)

    done = call("ledger", "delete", *ids, "--yes")

    assert done.code == 1
    assert f"deleted before: {ids[0]}; ledger {ids[1]} may be as well" in done.err


def fail_at(ledger_id: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ledger cannot be deleted."""
    delete = BookKeeper.delete_ledger

    def failing(bk: BookKeeper, wanted: int, **named: Any) -> Any:
        if wanted == ledger_id and not named.get("dry_run"):
            raise error
        return delete(bk, wanted, **named)

    monkeypatch.setattr(BookKeeper, "delete_ledger", failing)


def test_bookies_that_could_not_be_fenced_are_named(
    own_cluster: LocalCluster, call_own: Call, gone: int
) -> None:
    ensemble = call_own("ledger", "show", gone, "--json").json["bookies"]
    own_cluster.stop_bookie(ensemble[0], destroy=True)
    own_cluster.stop_bookie(ensemble[1], destroy=True)

    left = call_own("ledger", "delete", gone, "--yes")
    state = call_own("ledger", "show", gone, "--json").json["state"]
    done = call_own("ledger", "delete", gone, "--yes", "--even-if-alive", "--json")

    assert (left.code, state) == (1, "IN_RECOVERY")
    assert "could not be fenced" in left.out
    assert (done.code, done.json["deleted"]) == (0, [gone])
    assert sorted(done.json["not_fenced"][str(gone)]) == sorted(ensemble[:2])


@pytest.mark.integration
def test_a_ledger_that_cannot_be_decoded_is_deleted_when_told_so(
    own_cluster: LocalCluster, call_own: Call, gone: int
) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        root, raw = bk.context.store.uri.root, bk.context.store._zk._client  # type: ignore[attr-defined]
        raw.set(paths.ledger(root, LedgerId(gone)), b"\xff junk")

    left = call_own("ledger", "delete", gone, "--yes")
    done = call_own("ledger", "delete", gone, "--yes", "--even-if-alive", "--json")

    assert (left.code, "--even-if-alive" in left.out) == (1, True)
    assert (done.code, done.json["deleted"]) == (0, [gone])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "now"),
        (0, "now"),
        (1, "1 second ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (7_300, "2 hours ago"),
        (86_400 * 1_200, "1,200 days ago"),
    ],
)
def test_ages_are_told_in_one_unit(seconds: int, words: str) -> None:
    assert age(10**12, 10**12 + seconds * 1000) == words
