"""Many small shares of a lost bookie made again together."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.batch_rereplicate import rereplicate_many
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import Bounds
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed
from tests.hooks import At, silent
from tests.snapshots import Snapshot
from tests.worlds import USUAL, payloads, written

STRIPED = Quorum(3, 2, 2)


def closed(ground: Ground, count: int, quorum: Quorum = USUAL) -> list[LedgerWriter]:
    """Closed ledgers with 0, 1, 2 ... entries."""
    return [written(ground, number, quorum) for number in range(count)]


def works(writers: list[LedgerWriter], lost: BookieId) -> list[FragmentWork]:
    return [
        FragmentWork(w.ledger_id, EntryId(0), (lost,), None, False, None, nonce=w.metadata.nonce)
        for w in writers
    ]


def lose(ground: Ground, bookie: BookieId) -> BookieId:
    ground.stop(bookie, destroy=True)
    return bookie


def survive(ground: Ground, writers: list[LedgerWriter], losses: int) -> None:
    """Everything is readable when so many of the bookies that had it from the start are lost."""
    for writer in writers:
        ensemble = writer.metadata.last_fragment.ensemble
        gone = [b for b in ensemble if ground.root(b).exists()][:losses]
        for bookie in gone:
            ground.stop(bookie)
        entries = writer.last_add_confirmed + 1
        assert payloads(ground.client(), writer.ledger_id) == [b"%d" % e for e in range(entries)]
        for bookie in gone:
            ground.start(bookie)


def test_all_shares_are_made_again_and_named(ground: Ground) -> None:
    for quorum, losses in ((USUAL, 2), (STRIPED, 1)):
        writers = closed(ground, 6, quorum)
        lost = lose(ground, writers[0].metadata.last_fragment.ensemble[0])
        hit = [w for w in writers if lost in w.metadata.bookies()]
        client = ground.client()

        done = rereplicate_many(client, works(hit, lost), Bounds())

        for writer, shares in zip(hit, done, strict=True):
            assert shares is not None
            (share,) = shares
            assert share.status == "replicated"
            assert share.source == lost
            now = client.store.read_ledger(writer.ledger_id).value
            assert lost not in now.bookies()
            assert share.target in now.last_fragment.ensemble
        survive(ground, hit, losses)
        ground.format(lost)


def test_each_bookie_and_the_metadata_are_asked_no_more_than_for_each(ground: Ground) -> None:
    asked: list[Counter[str]] = []
    for is_together in (True, False):
        writers = closed(ground, 6)
        lost = lose(ground, writers[0].metadata.last_fragment.ensemble[0])
        hit = works([w for w in writers if lost in w.metadata.bookies()], lost)
        client = ground.client()
        client.bookies.registrations()
        ground.forget()
        if is_together:
            rereplicate_many(client, hit, Bounds())
        else:
            for work in hit:
                rereplicate_fragment(client, work)
        counted = ground.count()
        held = [w for w in writers if lost in w.metadata.bookies() and w.last_add_confirmed >= 0]
        assert (counted["write_ledger"], counted["put_if_absent"]) == (len(hit), len(held))
        asked.append(counted)
        ground.format(lost)
    assert asked[0].keys() <= asked[1].keys()


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
def test_two_lost_shares_of_a_fragment_go_to_two_bookies_in_one_step(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=6)
    writers = closed(ground, 5, Quorum(*sizes))
    lost = ground.bookie_ids[:2]
    hit = [w for w in writers if set(lost) <= w.metadata.bookies()]
    while len(hit) < 3:
        (writer,) = closed(ground, 1, Quorum(*sizes))
        hit += [writer] if set(lost) <= writer.metadata.bookies() else []
    for bookie in lost:
        lose(ground, bookie)
    client = ground.client()
    planned = [FragmentWork(w.ledger_id, EntryId(0), tuple(lost), None, False, None) for w in hit]
    ground.forget()

    done = rereplicate_many(client, planned, Bounds())

    assert ground.count()["write_ledger"] == len(hit)
    for writer, shares in zip(hit, done, strict=True):
        assert shares is not None
        assert [share.source for share in shares] == [
            b for b in writer.metadata.last_fragment.ensemble if b in lost
        ]
        now = client.store.read_ledger(writer.ledger_id).value.last_fragment.ensemble
        assert not set(lost) & set(now)
        assert {share.target for share in shares} <= set(now)
        assert len(set(now)) == len(now)
    survive(ground, hit, 1)


def test_a_fragment_of_which_one_share_is_not_stored_names_none_of_the_targets(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=5)
    writers = closed(ground, 4)[1:]
    lost = writers[0].metadata.last_fragment.ensemble[:2]
    hit = [w for w in writers if set(lost) <= w.metadata.bookies()]
    for bookie in lost:
        lose(ground, bookie)
    spare = next(b for b in ground.bookie_ids if b not in hit[0].metadata.bookies())
    hit = [w for w in hit if spare not in w.metadata.bookies()]
    client = ground.client(None, silent(spare, "put_if_absent", within="/copies/"))
    planned = [FragmentWork(w.ledger_id, EntryId(0), lost, None, False, None) for w in hit]

    assert rereplicate_many(client, planned, Bounds()) == [None] * len(hit)
    for writer in hit:
        assert client.store.read_ledger(writer.ledger_id).value == writer.metadata


def test_one_of_two_lost_bookies_that_is_back_is_left_to_its_fragment_by_itself(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=5)
    (writer,) = closed(ground, 3)[2:]
    lost = writer.metadata.last_fragment.ensemble[:2]
    lose(ground, lost[0])
    work = FragmentWork(writer.ledger_id, EntryId(0), lost, None, False, None)

    assert rereplicate_many(ground.client(), [work], Bounds()) == [None]


def test_what_is_large_or_unusual_is_left_to_itself(ground: Ground) -> None:
    ground.add_bookie()
    small, changed, opened, back = closed(ground, 5)[1:]
    with lifecycle.create_ledger(ground.context, USUAL) as bulk:
        bulk.append(pa.table({"payload": [b"x" * 4_000] * 200}))
    lost = lose(ground, small.metadata.last_fragment.ensemble[0])
    writers = [w for w in (small, changed, opened, back, bulk) if lost in w.metadata.bookies()]
    planned = works(writers, lost)
    other_life = [FragmentWork(small.ledger_id, EntryId(0), (lost,), None, False, None, nonce=b"x")]
    client = ground.client()

    assert rereplicate_many(client, other_life, Bounds()) == [None]
    ground.context.store.delete_ledger(small.ledger_id, None)
    done = dict(zip(writers, rereplicate_many(client, planned, Bounds()), strict=True))
    assert done[small] is None
    if bulk in done:
        assert done[bulk] is None
    for writer, shares in done.items():
        assert writer in (small, bulk) or shares is not None


def test_a_ledger_that_changes_meanwhile_is_left_and_the_others_are_done(ground: Ground) -> None:
    writers = closed(ground, 6, Quorum(3, 3, 3))
    lost = lose(ground, writers[0].metadata.last_fragment.ensemble[0])
    hit = [w for w in writers if lost in w.metadata.bookies()]
    client = ground.client()
    overtaken = hit[-1]

    def overtake() -> None:
        rereplicate_fragment(ground.context, works([overtaken], lost)[0])

    write = At("write_ledger", overtake, path=str(overtaken.ledger_id), only=[0])
    ground.before.append(write)

    done = rereplicate_many(client, works(hit, lost), Bounds())

    assert [shares is not None for shares in done] == [True] * (len(hit) - 1) + [False]
    assert lost not in client.store.read_ledger(overtaken.ledger_id).value.bookies()


def test_killed_at_every_operation_nothing_is_lost_and_the_rest_is_done_again(
    tmp_path: Path,
) -> None:
    begun = Ground(tmp_path / "begun", bookies=4, runtime=InlineRuntime())
    writers = closed(begun, 4)
    lost = lose(begun, writers[-1].metadata.last_fragment.ensemble[0])
    hit = [w for w in writers if lost in w.metadata.bookies()]
    for at, ground, kill in Snapshot(begun).killed(tmp_path, 2):
        with suppress(Killed):
            rereplicate_many(ground.client(InlineRuntime(), kill), works(hit, lost), Bounds())
        client = ground.client()
        for work in works(hit, lost):
            rereplicate_fragment(client, work)
        for writer in hit:
            assert lost not in client.store.read_ledger(writer.ledger_id).value.bookies(), at
        survive(ground, hit, 2)
    assert at > 10, "it was killed at many places"
