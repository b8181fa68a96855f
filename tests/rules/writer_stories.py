"""Stories of a writer: what it acknowledges, whom it leaves, and the last space of a disk."""

from __future__ import annotations

from contextlib import suppress

import pytest

from spark_bookkeeper.bookie.reserve import Reserve, reserve_bytes
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.errors import AppendFailedError, BookieFullError
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.writer import (
    Acknowledge,
    AddRequested,
    BookieFailed,
    BookiesLookedAt,
    ChangeEnsemble,
    Command,
    EnsembleChanged,
    Stored,
    Writer,
)
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground
from tests.client import test_gone_agents as gone
from tests.rules.story import needs, without
from tests.simulation import mutants
from tests.worlds import USUAL

A, B, C, D = (BookieId(name) for name in "abcd")


# R7


@needs("ec_cas_first", mutants.ec_cas_first)
def confirmed_only_when_published(_: Ground) -> None:
    writer = Writer(USUAL, (A, B, C))
    writer.step(AddRequested(1))
    writer.step(BookieFailed(2, C))
    told = writer.step(Stored(0, A, EntryId(0))) + writer.step(Stored(1, B, EntryId(0)))

    assert told == [], "the metadata does not name the ensemble yet"


@needs("leave_whole", mutants.leave_whole)
def a_bookie_that_is_left_has_its_whole_share(_: Ground) -> None:
    """It is read-only and serves what it has: nobody would look for what it never got."""
    writer = Writer(USUAL, (A, B, C))
    commands: list[Command] = []
    for event in (AddRequested(2), Stored(0, A, EntryId(0)), Stored(1, B, EntryId(0))):
        commands += writer.step(event)
    assert commands == [Acknowledge(EntryId(0))]

    assert writer.step(BookiesLookedAt({2: C}, {})) == []
    assert writer.step(Stored(0, A, EntryId(1))) == []
    assert writer.step(Stored(1, B, EntryId(1))) == [], "or a slow bookie would never be left"
    assert writer.step(Stored(2, C, EntryId(0))) == [
        ChangeEnsemble(EntryId(1), {2: C}, may_stay=True)
    ]


@needs("back_certain", mutants.back_certain)
def who_goes_back_knows_the_next_slot(ground: Ground) -> None:
    with gone.world_in(ground.directory / "gone") as world:
        gone.test_a_writer_does_not_go_back_while_what_it_sent_last_has_no_answer(world)


@needs("back_ascending", mutants.back_ascending)
def who_goes_back_sends_nothing_again(ground: Ground) -> None:
    with gone.world_in(ground.directory / "gone") as world:
        gone.test_a_writer_does_not_go_back_while_what_is_there_is_not_acknowledged(world)


@needs("last_space", without(Reserve, "_look", lambda _, size_bytes: None), bookies=3)
def the_last_space_is_left_to_fences(ground: Ground) -> None:
    """Every disk is full of appends: the ledger must still be closed at its end."""
    size, used = 40_000_000, [0]
    kept = reserve_bytes(size)

    def space(storage: LocalStorage) -> tuple[int, int]:
        return size - used[0], size

    def put(storage: LocalStorage, path: str, data: bytes) -> bool:
        used[0] += len(data)
        if used[0] > size - kept // 2:
            raise BookieFullError("no space left on device", bookie_id="b:1")
        return put_if_absent(storage, path, data)

    put_if_absent = LocalStorage.put_if_absent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "space", space)
        patch.setattr(LocalStorage, "put_if_absent", put)
        writer = lifecycle.create_ledger(ground.context, USUAL)
        acknowledged = -1
        with suppress(AppendFailedError):
            while True:
                acknowledged = writer.append(bytes(100_000))

        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed >= acknowledged > 0


@needs("ec_recount", mutants.ec_recount)
def what_a_lost_bookie_stored_is_not_counted(_: Ground) -> None:
    writer = Writer(USUAL, (A, B, C))
    writer.step(AddRequested(1))
    writer.step(Stored(2, C, EntryId(0)))
    writer.step(BookieFailed(2, C))
    writer.step(EnsembleChanged((A, B, D)))
    told = writer.step(Stored(0, A, EntryId(0)))

    assert told == [], "the ensemble a, b, d has one copy of entry 0"
