"""Replicas that were damaged, cut or removed; bookies that were wiped and formatted again."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieFullError, RecoveryUndecidedError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.actors import Actor
from tests.support.outages import paused
from tests.support.rows import (
    check_numbered_ledger,
    numbered,
    numbered_table,
    wait_for_every_copy,
)
from tests.support.sessions import connect_without_spark
from tests.worlds import first_of

pytestmark = pytest.mark.integration


@pytest.fixture
def three(cluster_of: Callable[[int], LocalCluster]) -> LocalCluster:
    """Exactly as many bookies as an ensemble needs: none can take another's place."""
    return cluster_of(3)


def files_of(cluster: LocalCluster, bookie: str, ledger_id: int) -> dict[str, Path]:
    """What a bookie holds of a ledger, by path below the ledger's directory."""
    (directory,) = cluster.root_of(bookie).glob(f"ledgers/{ledger_id}-*")
    return {str(p.relative_to(directory)): p for p in directory.rglob("*") if p.is_file()}


def damage(path: Path, dice: random.Random) -> str:
    """Flip bits of a file, cut it, or remove it; says which."""
    manner = dice.choice(["flipped", "cut", "removed"])
    data = bytearray(path.read_bytes())
    if manner == "removed":
        path.unlink()
    elif manner == "cut":
        path.write_bytes(data[: dice.randrange(len(data))])
    else:
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
    return manner


def append_slots_and_parts(writer: LedgerWriter) -> None:
    """700 numbered rows in many small slots, and between them in parts."""
    number = 0
    for _ in range(5):
        for _ in range(8):
            writer.append_async(numbered(number))
            writer.flush()
            number += 1
        writer.append(numbered_table(number, 132))
        number += 132


HEALERS = ["recover_bookie", "repair_ledgers"]


def heal(bk: BookKeeper, healer: str, ledger_id: int) -> None:
    """Have all replicas made again, and find them whole."""
    (before,) = bk.ledger(ledger_id).fragments
    if healer == "recover_bookie":
        ensemble = list(before.ensemble)
        report = bk.recover_bookie(ensemble, even_if_alive=True, ledger_ids=[ledger_id])
        assert not set(bk.ledger(ledger_id).fragments[0].ensemble) & set(ensemble)
    else:
        report = bk.repair_ledgers([ledger_id])
        assert bk.ledger(ledger_id).fragments[0].ensemble == before.ensemble
    assert report.is_complete, report.unfinished
    assert bk.check_ledgers([ledger_id], percentage=100).is_complete


@pytest.mark.parametrize("seed", first_of(*range(4)))
def test_with_two_of_three_replicas_of_every_file_damaged_reads_are_right(
    cluster: LocalCluster, bk: BookKeeper, seed: int
) -> None:
    dice = random.Random(seed)
    with bk.create_ledger(entry_target_bytes=512) as writer:
        append_slots_and_parts(writer)
    ledger_id = writer.ledger_id
    ensemble = bk.ledger(ledger_id).fragments[0].ensemble
    files = {bookie: files_of(cluster, bookie, ledger_id) for bookie in ensemble}
    names = sorted(files[ensemble[0]])
    assert all(sorted(files[bookie]) == names for bookie in ensemble)
    assert len(names) > 30
    manners: Counter[tuple[str, str]] = Counter()
    for name in names:
        for bookie in dice.sample(ensemble, 2):
            manners[bookie, damage(files[bookie][name], dice)] += 1

    table = bk.open_ledger(ledger_id).read_arrow()
    batches = [entry.batch for entry in bk.open_ledger(ledger_id).entries()]
    report = bk.check_ledgers([ledger_id], percentage=100)
    replicas = bk.diff_replicas_arrow(ledger_id).to_pylist()

    assert table.equals(numbered_table(0, 700))
    assert sum(batch.num_rows for batch in batches) == 700
    assert not report.is_complete
    shares = {row.source: row for row in report.rows}
    assert set(shares) == set(ensemble)
    for bookie in ensemble:
        row = shares[bookie]
        assert row.status in ("damaged", "missing")
        assert row.reason is not None
        assert "entr" in row.reason
        assert f"ledger repair {ledger_id}" in row.reason
    good: Counter[int] = Counter()
    digests: dict[int, set[str]] = {}
    for replica in replicas:
        if replica["status"] == "verified":
            good[replica["entry_id"]] += 1
            digests.setdefault(replica["entry_id"], set()).add(replica["digest"])
        else:
            assert replica["reason"]
    entries = range(bk.open_ledger(ledger_id).last_add_confirmed + 1)
    assert all(len(found) == 1 for found in digests.values()), "replicas-are-identical"
    assert sum(1 for e in entries if good[e] <= 1) > len(entries) // 2  # the damage shows


@pytest.mark.parametrize("healer", HEALERS)
def test_what_is_damaged_is_made_again_from_what_is_good_wherever_that_is(
    cluster: LocalCluster, bk: BookKeeper, healer: str
) -> None:
    dice = random.Random("healed")
    with bk.create_ledger(entry_target_bytes=512) as writer:
        append_slots_and_parts(writer)
    ledger_id = writer.ledger_id
    ensemble = bk.ledger(ledger_id).fragments[0].ensemble
    files = {bookie: files_of(cluster, bookie, ledger_id) for bookie in ensemble}
    for name in files[ensemble[0]]:
        for bookie in dice.sample(ensemble, 2):
            damage(files[bookie][name], dice)

    heal(bk, healer, ledger_id)

    assert check_numbered_ledger(bk, ledger_id, writer.last_add_confirmed, 700) == 700


@pytest.mark.parametrize("healer", HEALERS)
def test_one_bookies_record_and_anothers_part_are_enough_to_make_all_copies_again(
    cluster: LocalCluster, bk: BookKeeper, healer: str
) -> None:
    with bk.create_ledger(entry_target_bytes=512) as writer:
        writer.append(numbered_table(0, 100))
    ledger_id = writer.ledger_id
    ensemble = bk.ledger(ledger_id).fragments[0].ensemble
    one, two, three = (files_of(cluster, bookie, ledger_id) for bookie in ensemble)
    slot, part = "slots/00000000000000000000.arrow", next(n for n in one if n.startswith("parts"))
    for path in (one[part], two[part], two[slot], three[slot]):
        path.write_bytes(path.read_bytes()[:200])

    assert bk.open_ledger(ledger_id).read_arrow().equals(numbered_table(0, 100))
    heal(bk, healer, ledger_id)

    assert check_numbered_ledger(bk, ledger_id, writer.last_add_confirmed, 100) == 100


# Wiped and formatted again


def wipe_and_format_again(cluster: LocalCluster, bk: BookKeeper, bookie: str) -> None:
    """What an operator does who forces it: the cluster's own commands refuse."""
    store = bk.context.store
    cluster.stop_bookie(bookie)
    storage = LocalStorage(cluster.root_of(bookie))
    Partition(storage).wipe()
    marker = Partition(storage).format(bookie, store.instance_id(), token=ThreadRuntime().token)
    known = store.read_cookie(BookieId(bookie))
    assert known is not None
    cookie = Cookie(BookieId(bookie), storage.uri, marker.incarnation, marker.instance_id)
    store.write_cookie(cookie, known.version)
    cluster.start_bookie(bookie)
    assert bookie in {r.bookie_id for r in store.registrations()}


@pytest.mark.parametrize("kind", first_of("small", "bulk"))
def test_a_bookie_formatted_again_under_an_open_ledger_does_not_shorten_it(
    three: LocalCluster, kind: str
) -> None:
    with (
        connect_without_spark(three.metadata_uri) as bk,
        Actor("write", three.metadata_uri, "--kind", kind) as writer,
    ):
        writer.wait_for("rows", at_least=500)
        writer.kill()
        wipe_and_format_again(three, bk, three.bookie_ids[0])

        bk.open_ledger(writer.ledger_id)

        # What the third bookie had not yet got when the writer died has one replica now.
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged, copies=1)
        three.add_bookie()
        report = bk.recover_bookie(three.bookie_ids[0], even_if_alive=True)
        assert report.is_complete
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


@pytest.mark.full
def test_two_of_three_bookies_formatted_again_leave_the_end_undecided_and_nothing_is_cut(
    three: LocalCluster,
) -> None:
    with (
        connect_without_spark(three.metadata_uri) as bk,
        Actor("write", three.metadata_uri) as writer,
    ):
        writer.wait_for("rows", at_least=200)
        ledger_id = writer.ledger_id
        writer.kill()
        one, two, _ = three.bookie_ids
        for bookie in (one, two):
            wipe_and_format_again(three, bk, bookie)

        with pytest.raises(RecoveryUndecidedError) as caught:
            bk.open_ledger(ledger_id)

        error = caught.value
        assert set(error.blockers) <= {one, two}
        assert error.blockers
        assert one in error.message
        assert "do not format a bookie" in error.message
        assert bk.ledger(ledger_id).state == "IN_RECOVERY"
        (row,) = bk.recover_ledgers([ledger_id]).rows
        assert row.status == "left"
        assert row.reason is not None
        assert one in row.reason
        reader = bk.open_ledger_no_recovery(ledger_id)
        if reader.last_add_confirmed >= 0:  # what is certain can still be read
            assert len(list(reader.entries())) == reader.last_add_confirmed + 1


def test_a_wiped_bookie_is_never_counted_as_one_that_lacks_the_last_entries(
    three: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entries are on two bookies. One is formatted again and the other is away."""
    wiped, away, late = three.bookie_ids
    may_end = threading.Event()
    put = LocalStorage.put_if_absent

    def hang_if_late(storage: LocalStorage, path: str, data: bytes) -> bool:
        if storage.uri != three.root_of(late).as_uri():
            return put(storage, path, data)
        may_end.wait(120)
        raise BookieFullError("nothing was stored", bookie_id="b:1")

    with connect_without_spark(three.metadata_uri) as bk:
        with paused(three, late):
            writer = bk.create_ledger()
            for number in range(50):
                writer.append(numbered(number))
            wait_for_every_copy(writer)
            with monkeypatch.context() as patch:
                patch.setattr(LocalStorage, "put_if_absent", hang_if_late)
                for number in range(50, 100):
                    writer.append(numbered(number))
                writer.abandon()
                may_end.set()
        wipe_and_format_again(three, bk, wiped)
        three.stop_bookie(away)
        hidden = three.root_of(away).with_name("hidden")
        three.root_of(away).rename(hidden)

        with pytest.raises(RecoveryUndecidedError) as caught:
            bk.open_ledger(writer.ledger_id)
        assert away in caught.value.blockers
        assert bk.ledger(writer.ledger_id).state == "IN_RECOVERY"

        hidden.rename(three.root_of(away))
        three.start_bookie(away)
        bk.open_ledger(writer.ledger_id)

        assert check_numbered_ledger(bk, writer.ledger_id, 99, 100, copies=1) == 100


def test_a_partition_wiped_under_a_writer_stops_counting_at_once(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    writer = bk.create_ledger()
    writer.append(numbered(0))
    wiped = writer.metadata.fragments[0].ensemble[1]
    wait_for_every_copy(writer)  # so that nothing changes while it is kept
    root = cluster.root_of(wiped)
    kept = root.with_name("kept")
    with paused(cluster, wiped):
        shutil.copytree(root, kept)
        Partition(LocalStorage(root)).wipe()
        try:
            number = 0
            while wiped in writer.metadata.last_fragment.ensemble:
                number += 1
                assert writer.append(numbered(number)) == number
            writer.close()

            assert wiped in writer.metadata.fragments[0].ensemble
            assert check_numbered_ledger(bk, writer.ledger_id, number, number + 1) == number + 1
        finally:
            shutil.rmtree(root)
            kept.rename(root)
