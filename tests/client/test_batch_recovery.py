"""Recovery of many ledgers together: what it does for all, and whom it leaves to themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.bookie.bookie import Bookie
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover import batch_copy as copying_many
from spark_bookkeeper.client.recover import recovery
from spark_bookkeeper.client.recover.batch_recovery import Found, recover_many
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage import retry_policy
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.bounded_storage import BoundedStorage
from spark_bookkeeper.storage.storage import Storage
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed
from spark_bookkeeper.testing.hanging import Hang, HangingStorage
from tests.alone import Alone
from tests.snapshots import Snapshot
from tests.worlds import USUAL, payloads


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent bookie."""
    monkeypatch.setattr(retry_policy, "GRACE_SECONDS", 60.0)


def left_open(ground: Ground, count: int, quorum: Quorum = USUAL) -> list[LedgerWriter]:
    """Ledgers with 0, 1, 2 ... entries that nobody closed."""
    writers = []
    for number in range(count):
        writer = lifecycle.create_ledger(ground.context, quorum)
        for entry in range(number):
            writer.append(b"%d" % entry)
        writer._pipeline.drain()
        writer.abandon()
        writers.append(writer)
    return writers


def found(context: ClientContext, writers: Iterable[LedgerWriter]) -> Found:
    read = dict(context.store.read_ledgers([writer.ledger_id for writer in writers]))
    return {i: each for i, each in read.items() if isinstance(each, Versioned)}


def test_all_are_closed_at_their_ends(ground: Ground) -> None:
    writers = left_open(ground, 6)
    client = ground.client()

    closed = recover_many(client, found(client, writers))

    assert closed == found(client, writers)
    assert [each.value.last_entry_id for each in closed.values()] == [-1, 0, 1, 2, 3, 4]
    assert all(each.value.is_closed for each in closed.values())
    for number, writer in enumerate(writers):
        assert payloads(client, writer.ledger_id) == [b"%d" % entry for entry in range(number)]


def test_it_asks_for_no_more_than_each_does_by_itself(ground: Ground) -> None:
    asked: list[Counter[str]] = []
    for is_together in (True, False):
        writers = left_open(ground, 6)
        client = ground.client()
        client.bookies.registrations()
        wanted = found(client, writers)
        ground.forget()
        if is_together:
            recover_many(client, wanted)
        else:
            for ledger_id, known in wanted.items():
                recover_ledger(client, ledger_id, known)
        asked.append(ground.count())

    many, each = asked
    assert many["write_ledger"] == each["write_ledger"] == 12
    assert many["put_if_absent"] == each["put_if_absent"] == 18
    assert many.keys() == each.keys()
    assert all(many[operation] <= each[operation] for operation in many)
    looks = 2 * len(ground.bookie_ids)  # for all fences, and for all that is verified after them
    assert each["read"] - many["read"] >= 18 - looks, "each fence looks at the marker by itself"


def half_written(ground: Ground, count: int) -> list[LedgerWriter]:
    """Ledgers whose only entry the first bookie of their ensemble does not have."""
    writers = [lifecycle.create_ledger(ground.context, USUAL) for _ in range(count)]
    for writer in writers:
        writer.append(b"the only one")
        writer._pipeline.drain()
        writer.abandon()
        for path in ground.files(writer.metadata.last_fragment.ensemble[0], "slots"):
            if path.parts[-3].startswith(f"{writer.ledger_id}-"):
                path.unlink()
    return writers


def assert_first_has_it(ground: Ground, writers: Sequence[LedgerWriter]) -> None:
    for writer in writers:
        others = writer.metadata.last_fragment.ensemble[1:]
        for bookie in others:
            ground.stop(bookie)
        assert payloads(ground.client(), writer.ledger_id) == [b"the only one"]
        for bookie in others:
            ground.start(bookie)


def copies_alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """Notes what was copied for a ledger by itself."""
    return Alone(monkeypatch, recovery, "copy_entries", lambda runtime, ledger_id, *_: ledger_id)


def test_entries_that_lack_copies_are_copied_before_the_close_and_together(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = copies_alone(monkeypatch)
    writers = half_written(ground, 4)
    client = ground.client()

    closed = recover_many(client, found(client, writers))

    assert len(closed) == 4
    assert alone.ledger_ids == []
    assert client.metrics.counts()["replication_worker_copies_total"] == 4
    assert_first_has_it(ground, writers)


def test_what_cannot_be_copied_in_company_is_copied_alone(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one ledger the bookie that is read from fails at that moment; another one has it too."""
    alone = copies_alone(monkeypatch)
    writers = half_written(ground, 4)
    monkeypatch.setattr(copying_many, "_entries", failing_for(writers[2].ledger_id))
    client = ground.client()

    closed = recover_many(client, found(client, writers))

    assert len(closed) == 4
    assert alone.ledger_ids == [writers[2].ledger_id]
    assert_first_has_it(ground, writers)


def failing_for(ledger_id: LedgerId) -> Callable[[Bookie, Sequence[Any]], Sequence[Any]]:
    entries = copying_many._entries

    def some_fail(bookie: Bookie, wanted: Sequence[Any]) -> Sequence[Any]:
        answers = list(entries(bookie, wanted))
        for number, one in enumerate(wanted):
            if one.ledger.key.ledger_id == ledger_id:
                answers[number] = BookieUnavailableError("not now", bookie_id=bookie.bookie_id)
        return answers

    return some_fail


def test_whoever_is_in_trouble_leaves_the_others(ground: Ground) -> None:
    writers = left_open(ground, 7)
    client = ground.client()
    wanted = found(client, writers)
    deleted, other, damaged = writers[1], writers[2], writers[3]
    ground.context.store.delete_ledger(deleted.ledger_id, None)
    recover_ledger(ground.context, other.ledger_id)  # somebody was faster
    for bookie in damaged.metadata.last_fragment.ensemble:
        for path in ground.files(bookie, "slots"):
            if path.parts[-3].startswith(f"{damaged.ledger_id}-"):
                path.write_bytes(path.read_bytes()[:50])

    closed = recover_many(client, wanted)

    left = [writers[n].ledger_id for n in (1, 2, 3)]
    assert [i for i in wanted if i not in closed] == left
    assert client.store.read_ledger(damaged.ledger_id).value.state is LedgerState.IN_RECOVERY
    assert [client.store.read_ledger(i).value for i in closed] == [f.value for f in closed.values()]


def test_a_bookie_that_does_not_answer_is_as_one_that_says_nothing(ground: Ground) -> None:
    ground.add_bookie()
    writers = left_open(ground, 5)
    client = ground.client()
    wanted = found(client, writers)
    down = writers[4].metadata.last_fragment.ensemble[1]
    ground.stop(down)

    closed = recover_many(client, wanted)

    assert closed.keys() == wanted.keys(), "two of three are fenced, and hold everything"
    for number, writer in enumerate(writers):
        assert payloads(client, writer.ledger_id) == [b"%d" % entry for entry in range(number)]


def test_a_bookie_that_hangs_holds_up_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: None
) -> None:
    monkeypatch.setattr(retry_policy, "GRACE_SECONDS", 2.0)
    runtime = ThreadRuntime()
    stuck: set[str] = set()

    def opened(storage: Storage, bookie_client: BookieClient) -> Bookie:
        hang = Hang(runtime, lambda *_: bookie_client.bookie_id in stuck)
        return FileBookie(BoundedStorage(HangingStorage(storage, hang), bookie_client))

    ground = Ground(tmp_path, bookies=4, runtime=runtime, open_bookie=opened)
    writers = left_open(ground, 12)
    client = ground.client()
    wanted = found(client, writers)
    hanging = ground.bookie_ids[0]
    stuck.add(hanging)

    closed = recover_many(client, wanted)

    on_it = {w.ledger_id for w in writers if hanging in w.metadata.last_fragment.ensemble}
    assert on_it
    assert closed.keys() == wanted.keys() - on_it
    assert all(client.store.read_ledger(i).value.state is LedgerState.IN_RECOVERY for i in on_it), (
        "flagged, and left to whoever has patience"
    )


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.full)])
def test_killed_at_every_operation_it_is_finished_by_whoever_comes_next(
    tmp_path: Path, step: int
) -> None:
    begun = Ground(tmp_path / "begun", bookies=3, runtime=InlineRuntime())
    writers = left_open(begun, 3)
    for at, ground, kill in Snapshot(begun).killed(tmp_path, step):
        victim = ground.client(InlineRuntime(), kill)
        wanted = found(ground.context, writers)
        with suppress(Killed):
            recover_many(victim, wanted)
        client = ground.client()
        for number, writer in enumerate(writers):
            recover_ledger(client, writer.ledger_id)
            assert payloads(client, writer.ledger_id) == [b"%d" % e for e in range(number)], at
    assert at > 30, "it was killed at many places"
