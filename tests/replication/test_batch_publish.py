"""Small copies that are made together keep to a limit, also to one that changes, and end soon."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from spark_bookkeeper.autorecovery.limit import write_limit
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.batch_copy import SMALL_BYTES, store_many
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import batch_publish as small_copies
from spark_bookkeeper.replication import batch_rereplicate as module
from spark_bookkeeper.replication import fragments, refill_bookie
from spark_bookkeeper.replication.batch_rereplicate import rereplicate_many
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.rereplicate import FragmentWork
from spark_bookkeeper.replication.runner import Bounds, LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.alone import Alone
from tests.support.autorecovery import Process
from tests.support.interrupts import functions_of

BYTES: Final = 100
"""Of each ledger, and of its share on each bookie."""

LIMIT: Final = 400
"""Bytes per second."""


def named(ground: Ground, ledgers: int, entries: int = 1) -> tuple[BookieId, list[LedgerWriter]]:
    """A bookie, and the closed ledgers that name it."""
    bookie, found = ground.bookie_ids[0], list[LedgerWriter]()
    while len(found) < ledgers:
        with lifecycle.create_ledger(ground.context, Quorum(3, 3, 3)) as writer:
            for _ in range(entries):
                writer.append(b"x" * BYTES)
        if bookie in writer.metadata.bookies():
            found.append(writer)
    return bookie, found


class Copies:
    """Notes when copies are there, by the clock of whoever makes them."""

    def __init__(self, ground: Ground, runtime: InlineRuntime) -> None:
        self._runtime = runtime
        self._began = runtime.now()
        self.seconds: list[float] = []
        self.then: Callable[[], object] = lambda: None
        """Called after each."""
        ground.after.append(self._note)

    def _note(self, place: str, operation: str, path: str) -> None:
        if place != METADATA and operation == "put_if_absent" and "/copies/" in path:
            self.seconds.append(self._runtime.now() - self._began)
            self.then()

    def keep_to(self, limit: int) -> bool:
        """Whether at no time more was there than the limit had given until then."""
        enumerated = enumerate(self.seconds, 1)
        return all(copies * BYTES <= limit * seconds for copies, seconds in enumerated)


def recovered(ground: Ground, runtime: InlineRuntime, lost: BookieId) -> RecoveryReport:
    client = ground.client(runtime)
    wish = BookieRecovery((lost,), bytes_per_second=LIMIT)
    return recover_bookie(client, LocalRunner(client), wish)


def refilled(ground: Ground, runtime: InlineRuntime, bookie: BookieId) -> RecoveryReport:
    client = ground.client(runtime)
    wish = refill_bookie.Refill(bookie, bytes_per_second=LIMIT)
    return refill_bookie.refill_bookie(client, LocalRunner(client), wish)


@pytest.mark.parametrize("job", ["recover", "refill"])
def test_copies_that_are_made_together_keep_to_the_limit_and_use_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    bookie, writers = named(ground, 16)
    runtime = InlineRuntime()
    if job == "recover":
        alone = Alone(monkeypatch, fragments, "rereplicate_fragment", lambda _, w: w.ledger_id)
        ground.stop(bookie, destroy=True)
    else:
        alone = Alone(monkeypatch, refill_bookie, "refill_ledger", lambda _, w: w.ledger_id)
        ground.format(bookie)
    copies = Copies(ground, runtime)

    report = (recovered if job == "recover" else refilled)(ground, runtime, bookie)

    assert report.is_complete
    assert alone.ledger_ids == []
    assert len(copies.seconds) == len(writers)
    assert copies.keep_to(LIMIT)
    assert runtime.slept <= len(writers) * BYTES / LIMIT * 1.1
    at_once = max(copies.seconds.count(second) for second in copies.seconds)
    assert at_once <= LIMIT / BYTES, "no more than a second's at a time"


def planned(
    writers: list[LedgerWriter], lost: BookieId, rate: list[int | None]
) -> list[FragmentWork]:
    def rate_now(context: ClientContext, before: int | None) -> int | None:
        return rate[0]

    return [
        FragmentWork(w.ledger_id, EntryId(0), (lost,), None, False, rate[0], rate_now=rate_now)
        for w in writers
    ]


class Loss:
    """A bookie that is gone, and the ledgers that named it, whose copies a limit holds up.

    Args:
        rate: bytes per second; ``rate[0]`` is what it is at any time.
    """

    def __init__(
        self, ground: Ground, ledgers: int, rate: int | None, *, destroy: bool = True
    ) -> None:
        self.lost, self.writers = named(ground, ledgers)
        ground.stop(self.lost, destroy=destroy)
        self.runtime = InlineRuntime()
        self.rate = [rate]
        self.copies = Copies(ground, self.runtime)
        self.client = ground.client(self.runtime)

    def copy(self, bounds: Bounds | None = None) -> list[bool]:
        """Make the copies together; whether that was done, by ledger."""
        works = planned(self.writers, self.lost, self.rate)
        return [
            each is not None for each in rereplicate_many(self.client, works, bounds or Bounds())
        ]


def test_a_limit_that_is_raised_lets_the_rest_go(ground: Ground) -> None:
    loss = Loss(ground, 20, BYTES)
    loss.copies.then = lambda: loss.rate.__setitem__(0, 1_000_000)

    assert all(loss.copy())
    assert loss.runtime.slept <= 1 + LOOK_SECONDS + 1, "and not one second for each"


def test_a_limit_that_is_lowered_or_set_holds_the_rest(ground: Ground) -> None:
    loss = Loss(ground, 20, 4 * BYTES)
    loss.copies.then = lambda: loss.rate.__setitem__(0, BYTES)

    assert all(loss.copy())
    quick = LOOK_SECONDS * 4 + 4  # until it is looked at again, and what was begun then
    assert loss.runtime.slept >= len(loss.writers) - quick


def test_a_limit_that_is_set_before_the_copies_are_stored_holds_a_batch_that_had_none(
    ground: Ground,
) -> None:
    lost, writers = named(ground, 10)
    ground.stop(lost, destroy=True)
    runtime, rate = InlineRuntime(), list[int | None]([None])
    works = planned(writers, lost, rate)
    rate[0] = BYTES
    copies = Copies(ground, runtime)

    assert None not in rereplicate_many(ground.client(runtime), works, Bounds())
    assert copies.keep_to(BYTES)


def test_a_batch_has_as_much_of_the_limit_as_the_items_in_whose_place_it_is(ground: Ground) -> None:
    loss = Loss(ground, 24, BYTES)

    assert all(loss.copy(Bounds(shares=6)))
    assert loss.copies.keep_to(6 * BYTES)
    assert loss.runtime.slept <= 4.4


def test_a_batch_that_is_to_end_does_so_after_what_it_has_begun(ground: Ground) -> None:
    loss = Loss(ground, 12, 3 * BYTES)

    done = loss.copy(Bounds(is_ending=lambda: len(loss.copies.seconds) >= 6))

    assert done == [True] * 6 + [False] * 6
    assert len(loss.copies.seconds) == 6
    for writer in loss.writers[:6]:
        assert loss.lost not in loss.client.store.read_ledger(writer.ledger_id).value.bookies()


def test_a_lost_bookie_that_is_back_in_the_middle_is_noticed(ground: Ground) -> None:
    loss = Loss(ground, 20, 2 * BYTES, destroy=False)
    loss.copies.then = lambda: ground.start(loss.lost)

    assert loss.copy() == [True] * 2 + [False] * 18
    assert len(loss.copies.seconds) == 2


def test_a_worker_notices_in_the_middle_that_a_lost_bookie_is_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, _ = named(ground, 16)
    ground.stop(lost)
    process = Process(ground)
    process.audit()
    write_limit(ground.context.store.registers, BYTES)
    monkeypatch.setattr(process.worker, "_at_once", lambda tasks: tasks)
    copies = Copies(ground, process.runtime)
    copies.then = lambda: ground.start(lost)

    process.work()

    assert len(copies.seconds) == 1
    assert list(ground.context.store.underreplication.ledger_ids()) == []


@pytest.mark.parametrize("error", [MetadataError("no answer"), OSError("of another library")])
def test_what_was_done_before_an_error_is_told(ground: Ground, error: Exception) -> None:
    loss = Loss(ground, 12, 3 * BYTES)

    def is_ending() -> bool:
        if len(loss.copies.seconds) >= 6:
            raise error
        return False

    assert loss.copy(Bounds(is_ending=is_ending)) == [True] * 6 + [False] * 6
    assert len(loss.copies.seconds) == 6


@pytest.mark.parametrize("job", ["recover", "refill"])
def test_a_report_says_what_was_copied_before_an_error(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    bookie, writers = named(ground, 12)
    if job == "recover":
        ground.stop(bookie, destroy=True)
    else:
        ground.format(bookie)
    runtime = InlineRuntime()
    copies = Copies(ground, runtime)
    failed: list[int] = []

    def fail_later(*args: Any) -> Any:
        if len(copies.seconds) >= 6 and not failed:
            failed.append(len(copies.seconds))
            raise OSError("of another library")
        return store_many(*args)

    monkeypatch.setattr(small_copies, "store_many", fail_later)

    report = (recovered if job == "recover" else refilled)(ground, runtime, bookie)

    assert failed
    assert len(copies.seconds) == len(writers)
    assert {row.status for row in report.rows} == {"replicated"}
    assert sum(row.entries for row in report.rows) == len(writers)


def test_ledgers_of_which_nothing_is_to_be_copied_are_no_part_of_a_limit(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, writers = named(ground, 12, entries=0)
    ground.stop(lost, destroy=True)
    portions = portions_of(monkeypatch)

    report = recovered(ground, InlineRuntime(), lost)

    assert report.is_complete
    assert portions == [len(writers)]


def test_a_portion_is_a_seconds_also_where_entries_are_of_different_sizes(ground: Ground) -> None:
    """What is known before they are read is the average of the ledger."""
    lost, writers = unevenly(ground, 6)
    ground.stop(lost, destroy=True)
    runtime = InlineRuntime()
    copies = Copies(ground, runtime)
    asked: list[int] = []
    client = ground.client(runtime)
    works = [
        FragmentWork(
            writer.ledger_id,
            writer.metadata.last_fragment.first_entry_id,
            (lost,),
            None,
            even_if_alive=False,
            bytes_per_second=2 * LARGE_BYTES,
            size_bytes=LARGE_BYTES // 20,
        )
        for writer in writers
    ]

    def is_ending() -> bool:
        asked.append(len(copies.seconds))
        return False

    assert None not in rereplicate_many(client, works, Bounds(is_ending=is_ending))
    assert asked == [2, 4]


LARGE_BYTES: Final = 10_000


def unevenly(ground: Ground, ledgers: int) -> tuple[BookieId, list[LedgerWriter]]:
    """A bookie of the last fragment of each ledger, which has one large entry after small ones."""
    moved, found = ground.bookie_ids[0], list[LedgerWriter]()
    while len(found) < ledgers:
        writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
        for _ in range(40):
            writer.append(b"")
        gone = next(b for b in writer.metadata.last_fragment.ensemble if b != moved)
        ground.stop(gone)
        while gone in writer.metadata.last_fragment.ensemble:
            writer.append(b"")
        writer.append(b"x" * LARGE_BYTES)
        writer.close()
        ground.start(gone)
        if moved in writer.metadata.last_fragment.ensemble:
            found.append(writer)
    return moved, found


def left_open(
    ground: Ground, ledgers: int, first_entries: int = 1
) -> tuple[BookieId, list[LedgerWriter]]:
    """A lost bookie, and ledgers that are not closed, of which it has the first fragment alone.

    Args:
        first_entries: of that fragment of the first ledger; of the others it has one.
    """
    lost, found = ground.bookie_ids[0], list[LedgerWriter]()
    while len(found) < ledgers:
        writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
        for _ in range(1 if found else first_entries):
            writer.append(b"x" * BYTES)
        if lost in writer.metadata.bookies():
            found.append(writer)
        else:
            writer.close()
    ground.stop(lost, destroy=True)
    for writer in found:
        while lost in writer.metadata.last_fragment.ensemble:
            writer.append(b"")
    return lost, found


def portions_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many copies are stored at a time."""
    portions: list[int] = []

    def count(context: ClientContext, wanted: Any, copies: Any, throttle: Any) -> Any:
        portions.append(len(copies))
        return store_many(context, wanted, copies, throttle)

    monkeypatch.setattr(small_copies, "store_many", count)
    return portions


def test_shares_of_ledgers_that_are_not_closed_are_cut_by_what_was_read(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows before how large they are."""
    lost, writers = left_open(ground, 12)
    portions = portions_of(monkeypatch)
    client = ground.client(InlineRuntime())

    done = rereplicate_many(client, planned(writers, lost, [200_000]), Bounds())

    assert None not in done
    assert portions == [12]


def test_shares_of_ledgers_that_are_not_closed_keep_to_the_limit(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, writers = left_open(ground, 12)
    portions = portions_of(monkeypatch)
    runtime = InlineRuntime()
    copies = Copies(ground, runtime)

    done = rereplicate_many(ground.client(runtime), planned(writers, lost, [LIMIT]), Bounds())

    assert None not in done
    assert copies.keep_to(LIMIT)
    assert portions == [4, 4, 4]


def test_of_a_ledger_that_is_not_closed_many_entries_are_not_read_in_company(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be gigabytes, for which the others would wait."""
    monkeypatch.setattr(module, "SMALL_ENTRIES", 5)
    lost, writers = left_open(ground, 3, first_entries=6)
    client = ground.client(InlineRuntime())

    done = rereplicate_many(client, planned(writers, lost, [None]), Bounds())

    assert [shares is not None for shares in done] == [False, True, True]


def test_bookies_that_a_fragment_does_not_name_make_no_portion_smaller(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, writers = named(ground, 8)
    ground.stop(lost, destroy=True)
    portions = portions_of(monkeypatch)
    others = tuple(BookieId(f"gone-{number}") for number in range(7))
    works = [
        replace(work, lost=(lost, *others), size_bytes=BYTES)
        for work in planned(writers, lost, [4 * BYTES])
    ]

    rereplicate_many(ground.client(InlineRuntime()), works, Bounds())

    assert portions == [4, 4]


def test_what_is_read_at_a_time_fits_into_memory_without_a_limit_too(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_copies, "_PORTION_BYTES", 3 * BYTES)
    lost, writers = named(ground, 7)
    ground.stop(lost, destroy=True)
    portions = portions_of(monkeypatch)

    done = rereplicate_many(
        ground.client(InlineRuntime()), planned(writers, lost, [None]), Bounds()
    )

    assert None not in done
    assert portions == [3, 3, 1]


def test_what_may_be_too_much_for_memory_is_not_read_in_company(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a ledger that is not closed may be, of which a bookie had many fragments."""
    monkeypatch.setattr(small_copies, "_PORTION_BYTES", SMALL_BYTES)
    lost, writers = left_open(ground, 2)
    client = ground.client(InlineRuntime())

    assert rereplicate_many(client, planned(writers, lost, [None]), Bounds()) == [None, None]


def test_two_fragments_of_a_ledger_are_done_in_turn_and_in_company(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, writers = named(ground, 3)
    while True:
        with lifecycle.create_ledger(ground.context, Quorum(3, 3, 3)) as two:
            two.append(b"")
            gone = next(b for b in two.metadata.last_fragment.ensemble if b != lost)
            ground.stop(gone)
            two.append(b"")
        ground.start(gone)
        ranges = two.metadata.fragment_ranges()
        firsts = [each.first_entry_id for each in ranges if lost in each.ensemble]
        if len(firsts) == 2:
            break
    ground.stop(lost, destroy=True)
    portions = portions_of(monkeypatch)
    client = ground.client(InlineRuntime())
    work = planned([two], lost, [None])[0]
    works = [replace(work, first_entry_id=first) for first in firsts]

    done = rereplicate_many(client, [*works, *planned(writers, lost, [None])], Bounds())

    assert None not in done
    assert portions == [4, 1]


@pytest.mark.parametrize("job", ["recover", "refill"])
def test_a_job_tells_of_each_portion_when_it_is_done(ground: Ground, job: str) -> None:
    bookie, writers = named(ground, 8)
    if job == "recover":
        ground.stop(bookie, destroy=True)
    else:
        ground.format(bookie)
    runtime = InlineRuntime()
    copies = Copies(ground, runtime)
    client = ground.client(runtime)
    told: list[tuple[int, int]] = []

    def progress(phase: str, done: int, total: int, size_bytes: int) -> None:
        if phase.startswith(("copying", "filling")):
            told.append((done, len(copies.seconds)))

    if job == "recover":
        lost = BookieRecovery((bookie,), bytes_per_second=LIMIT)
        recover_bookie(client, LocalRunner(client), lost, progress=progress)
    else:
        wish = refill_bookie.Refill(bookie, bytes_per_second=LIMIT)
        refill_bookie.refill_bookie(client, LocalRunner(client), wish, progress=progress)

    assert (4, 4) in told, "when so many were copied, and before the next"
    assert [done for done, _ in told if done] == list(range(1, len(writers) + 1))


def test_after_ctrl_c_no_copies_are_made_that_nothing_will_name(ground: Ground) -> None:
    lost, writers = named(ground, 20)
    ground.stop(lost, destroy=True)
    main, may_go_on = threading.current_thread(), threading.Event()
    presses = iter(range(1))

    def press(place: str, operation: str, path: str) -> None:
        if place != METADATA and operation == "put_if_absent" and "/copies/" in path:
            for _ in presses:
                ground.until(lambda: "next" in functions_of(main))
                os.kill(os.getpid(), signal.SIGINT)
            may_go_on.wait(60)

    client = ground.client(ThreadRuntime(), press)
    with pytest.raises(KeyboardInterrupt):
        rereplicate_many(client, planned(writers, lost, [None]), Bounds())
    may_go_on.set()
    bookie_clients = [client.bookies.bookie_client(bookie) for bookie in ground.bookie_ids]
    ground.until(lambda: not any(bookie_client.calls for bookie_client in bookie_clients))

    copies = [path for each in ground.bookie_ids for path in ground.root(each).rglob("copies/*")]
    assert len(copies) < len(ground.bookie_ids), "at most the one that each was about to make"


@pytest.mark.parametrize("limit", [None, 2 * BYTES])
def test_one_bad_ledger_holds_up_no_other(ground: Ground, limit: int | None) -> None:
    lost, writers = named(ground, 9)
    bad = writers[4]
    for bookie in bad.metadata.bookies() - {lost}:
        for path in (ground.root(bookie) / "ledgers").glob(f"{bad.ledger_id}-*/slots/*"):
            path.write_bytes(path.read_bytes()[:100])
    ground.stop(lost, destroy=True)
    client = ground.client(InlineRuntime())

    done = rereplicate_many(client, planned(writers, lost, [limit]), Bounds())

    assert [shares is None for shares in done] == [writer is bad for writer in writers]
    for writer in writers:
        bookies = client.store.read_ledger(writer.ledger_id).value.bookies()
        assert (lost in bookies) == (writer is bad)


def test_a_worker_that_is_disabled_ends_a_batch_that_waits_because_of_a_limit(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, writers = named(ground, 16)
    ground.stop(lost, destroy=True)
    store = ground.context.store
    process = Process(ground)
    process.audit()
    write_limit(store.registers, BYTES)
    monkeypatch.setattr(process.worker, "_at_once", lambda tasks: tasks)  # all of them at a time
    copies = Copies(ground, process.runtime)
    copies.then = store.underreplication.disable

    rows = process.work()

    assert len(copies.seconds) == 1
    told = [row.reason or "" for row in rows if row.action == "task"]
    assert sum("disabled" in reason for reason in told) >= len(writers) - 1
    assert len(list(store.underreplication.ledger_ids())) >= len(writers) - 1
