"""Storage partitions on bad days: full, forbidden, somebody else's, without their agent."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.agent.formatting import format_bookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig, ClientConfig
from spark_bookkeeper.errors import AppendFailedError, InvalidArgumentError, NotEnoughBookiesError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.actors import Actor
from tests.support.outages import paused
from tests.support.program import Program, until
from tests.support.rows import (
    check_numbered_ledger,
    check_replicas,
    numbered,
    numbered_table,
    wait_for_every_copy,
)
from tests.support.sessions import connect_without_spark
from tests.support.slotlog import damaged_paths, log_of
from tests.support.small_disk import MountRefusedError, SmallDisk
from tests.worlds import first_of

pytestmark = pytest.mark.integration

ENDLESS = BookieConfig(
    probe_interval_ms=60_000, readonly_below_free_bytes=0, writable_above_free_bytes=0
)
"""The agent does not see the end of the space coming: writers meet it first."""

SHORT_BELOW_A_MIB = BookieConfig(
    probe_interval_ms=60_000,  # it looks when the test says so
    readonly_below_free_bytes=1 << 20,
    writable_above_free_bytes=1 << 20,
)

CAPABLE = "-dac_override,-dac_read_search"
"""What root has to lose for permissions to mean something to it."""


def tree_of(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_formatting_what_may_hold_the_last_good_copy_is_refused_naming_the_ledgers(
    cluster_of: Callable[[int], LocalCluster],
) -> None:
    cluster = cluster_of(2)
    with connect_without_spark(cluster.metadata_uri) as bk:
        with bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
            writer.append(numbered(0))
        bookie = writer.metadata.fragments[0].ensemble[0]
        storage = LocalStorage(cluster.root_of(bookie))
        token = ThreadRuntime().token

        with pytest.raises(InvalidArgumentError, match="is alive; stop its agent first"):
            format_bookie(bk.context.store, Partition(storage), BookieId(bookie), token=token)
        cluster.stop_bookie(bookie)
        before = tree_of(cluster.root_of(bookie))
        with pytest.raises(InvalidArgumentError) as caught:
            format_bookie(bk.context.store, Partition(storage), BookieId(bookie), token=token)

        assert f"ledger {writer.ledger_id}" in caught.value.message
        assert f"spark-bookkeeper bookie recover {bookie}" in caught.value.message
        assert "Nothing was changed" in caught.value.message
        assert tree_of(cluster.root_of(bookie)) == before
        report = bk.recover_bookie(bookie)  # what it says to do first: it still answers as a source
        assert report.is_complete, report.unfinished
        format_bookie(bk.context.store, Partition(storage), BookieId(bookie), token=token)
        cluster.start_bookie(bookie)
        assert check_numbered_ledger(bk, writer.ledger_id, 0, 1) == 1


# Full


@pytest.fixture
def small_disks(tmp_path: Path, guests: None) -> Iterator[list[SmallDisk]]:
    """Bookies 1 and 2 of the cluster ``tmp_path/c`` will be on disks of their own.

    They are large enough to be probed; ``shrink`` leaves 2 MiB of them.
    """
    disks: list[SmallDisk] = []
    try:
        for number in (1, 2):
            disks.append(SmallDisk(tmp_path / "c" / "bookies" / str(number), "16m"))
        yield disks
    except MountRefusedError as refused:
        pytest.skip(str(refused))
    finally:
        for disk in disks:
            disk.unmount()


@pytest.mark.parametrize("kind", first_of("small", "bulk"))
def test_a_full_disk_is_replaced_and_nothing_half_done_is_left(
    tmp_path: Path, small_disks: list[SmallDisk], kind: str
) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=5, config=ENDLESS) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        full = set(cluster.bookie_ids[:2])
        for disk in small_disks:
            disk.shrink()
        writer = bk.create_ledger(entry_target_bytes=64 << 10)
        while not full & set(writer.metadata.last_fragment.ensemble):
            writer.close()
            writer = bk.create_ledger(entry_target_bytes=64 << 10)
        rows = 0
        while full & set(writer.metadata.last_fragment.ensemble):
            if kind == "small":
                for _ in range(20):
                    writer.append_async(numbered(rows, 20_000))
                    rows += 1
                writer.flush()
            else:
                writer.append(numbered_table(rows, 20, 20_000))
                rows += 20
            wait_for_every_copy(writer)  # or until who cannot take it is replaced
            assert rows < 2000
        writer.close()

        assert len(writer.metadata.fragments) >= 2
        assert check_numbered_ledger(bk, writer.ledger_id, -1, rows) == rows
        for bookie in full:  # every file that has a name is whole
            for fragment in writer.metadata.fragments:
                if bookie in fragment.ensemble:
                    log = log_of(bk.context, bookie, bk.open_ledger(writer.ledger_id).ledger)
                    assert damaged_paths(log) == set()
                    assert list(log.records())
                    break


def test_with_every_disk_full_the_append_fails_and_says_what_is_certain(
    tmp_path: Path, small_disks: list[SmallDisk]
) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=2, config=ENDLESS) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        for disk in small_disks:
            disk.shrink()
        writer = bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        acknowledged = -1

        def fill() -> None:
            nonlocal acknowledged
            for number in range(500):
                acknowledged = writer.append(numbered(number, 20_000))

        with pytest.raises(AppendFailedError) as caught:
            fill()

        assert acknowledged > 20
        text = caught.value.message
        assert re.search("are for fences and recovery|No space left", text)
        assert f"entry {acknowledged} is the last acknowledged" in text
        assert all(bookie in text for bookie in cluster.bookie_ids)
        with pytest.raises(AppendFailedError):
            writer.close()
        assert bk.open_ledger(writer.ledger_id).last_add_confirmed >= acknowledged
        check_numbered_ledger(bk, writer.ledger_id, acknowledged, acknowledged + 1)


def test_writers_leave_a_bookie_when_its_agent_sees_that_space_is_short(
    tmp_path: Path, small_disks: list[SmallDisk]
) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=5, config=SHORT_BELOW_A_MIB) as cluster,
        connect_without_spark(
            cluster.metadata_uri, config=ClientConfig(add_timeout_ms=60_000, explicit_lac_ms=0)
        ) as bk,
    ):
        short = cluster.bookie_ids[0]
        writer = bk.create_ledger()
        while short not in writer.metadata.last_fragment.ensemble:
            writer.close()
            writer = bk.create_ledger()
        rows = 0
        for _ in range(20):
            writer.append(numbered(rows))
            rows += 1
        wait_for_every_copy(writer)
        small_disks[0].shrink()
        filler = cluster.root_of(short) / "ledgers" / "filler"
        filler.write_bytes(bytes(1_200_000))

        cluster.agent(short).step()
        with pytest.raises(NotEnoughBookiesError, match="read-only") as caught:
            bk.create_ledger(ensemble_size=5)
        assert short in caught.value.causes

        def is_left() -> bool:
            nonlocal rows
            writer.append(numbered(rows))
            rows += 1
            return short not in writer.metadata.last_fragment.ensemble

        until(is_left, "it is left")  # before its space is at its end, when it would fail
        left_at, last = writer.metadata.last_fragment.first_entry_id, writer.last_add_confirmed
        for _ in range(20):
            writer.append(numbered(rows))
            rows += 1
        writer.close()

        there = cluster.root_of(short).glob("ledgers/*/slots/*.arrow")
        assert max(int(slot.stem) for slot in there) <= last
        assert check_numbered_ledger(bk, writer.ledger_id, -1, rows) == rows
        replicas = bk.diff_replicas_arrow(writer.ledger_id).to_pylist()
        good = {
            r["entry_id"] for r in replicas if (r["bookie_id"], r["status"]) == (short, "verified")
        }
        assert good >= set(range(left_at)), "it has its whole share of what was acknowledged before"
        filler.unlink()
        cluster.agent(short).step()
        assert {row["state"] for row in bk.bookies_arrow().to_pylist()} == {"writable"}


def test_a_disk_that_became_read_only_is_replaced(
    tmp_path: Path, small_disks: list[SmallDisk]
) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=4, config=ENDLESS) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        writer = bk.create_ledger()
        writer.append(numbered(0))
        wait_for_every_copy(writer)  # a disk that is being written to cannot be made read-only
        gone = set(cluster.bookie_ids[:2]) & set(writer.metadata.last_fragment.ensemble)
        bookie = sorted(gone)[0]
        small_disks[cluster.bookie_ids.index(BookieId(bookie))].remount("ro")
        number = 0
        while bookie in writer.metadata.last_fragment.ensemble:
            number += 1
            assert writer.append(numbered(number)) == number
        writer.close()

        assert check_numbered_ledger(bk, writer.ledger_id, number, number + 1) == number + 1
        small_disks[cluster.bookie_ids.index(BookieId(bookie))].remount("rw")


# Forbidden


@pytest.mark.full
@pytest.mark.parametrize("kind", first_of("small", "bulk"))
def test_a_directory_that_may_no_longer_be_touched_is_replaced(
    cluster: LocalCluster, bk: BookKeeper, kind: str
) -> None:
    prefix = ["setpriv", f"--bounding-set={CAPABLE}"] if os.geteuid() == 0 else []
    with Actor("write", cluster.metadata_uri, "--kind", kind, prefix=prefix) as writer:
        writer.wait_for("rows", at_least=100)
        bookie = bk.ledger(writer.ledger_id).fragments[0].ensemble[0]
        root = cluster.root_of(bookie)
        with paused(cluster, bookie):
            root.chmod(0)
            try:
                until(lambda: len(bk.ledger(writer.ledger_id).fragments) > 1, "it was replaced")
                _, rows = writer.acknowledged
                writer.wait_for("rows", at_least=rows + 100)
            finally:
                root.chmod(0o755)
        writer.kill()

        bk.open_ledger(writer.ledger_id)

        assert bookie not in bk.ledger(writer.ledger_id).fragments[1].ensemble
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


# Agents


@pytest.mark.full
def test_a_killed_agent_takes_its_bookie_out_of_new_ensembles_and_nothing_else(
    cluster_of: Callable[[int], LocalCluster], tmp_path: Path
) -> None:
    bookie, root = "10.0.0.9:3181", tmp_path / "bookie"
    root.mkdir()
    environment = {"SPARK_BOOKKEEPER_METADATA_URI": cluster_of(3).metadata_uri}

    def start_agent() -> Program:
        place = ("--bookie-id", bookie, "--root", root)
        return Program(tmp_path / "log", "bookie", "start", *place, environment=environment)

    agent = start_agent()
    try:
        with connect_without_spark(*environment.values()) as bk:
            store = bk.context.store
            until(lambda: any(r.bookie_id == bookie for r in store.registrations()), "registered")
            writer = bk.create_ledger(ensemble_size=4, write_quorum_size=3, ack_quorum_size=2)
            assert bookie in writer.metadata.last_fragment.ensemble
            writer.append(numbered_table(0, 100))

            agent.kill()

            for number in range(100, 200):
                writer.append(numbered(number))
            writer.close()
            assert len(writer.metadata.fragments) == 1  # data does not pass through an agent
            assert check_numbered_ledger(bk, writer.ledger_id, -1, 200) == 200
            until(lambda: all(r.bookie_id != bookie for r in store.registrations()), "it is gone")
            with pytest.raises(NotEnoughBookiesError) as caught:
                bk.create_ledger(ensemble_size=4)
            assert "not registered: down or lost" in caught.value.causes[bookie]

            agent = start_agent()
            until(lambda: any(r.bookie_id == bookie for r in store.registrations()), "again")
            check_replicas(bk, writer.ledger_id)
    finally:
        agent.kill()
