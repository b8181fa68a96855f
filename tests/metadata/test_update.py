"""Changes of ledgers: what happens when others are faster, and when answers get lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_bookkeeper.errors import (
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.compare_and_swap import CONFLICTS_MAX, UNKNOWN_MAX
from spark_bookkeeper.metadata.update import delete_ledger, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing.conformance.metadata import A, B, C, open_ledger
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

L = LedgerId(7)
D = BookieId("10.0.0.4:3181")


class World:
    """A ledger, a store whose operations are counted, and somebody else."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.other = self.cluster.session()
        self.other.initialize_cluster()
        self.created = self.other.create_ledger(L, open_ledger())
        self.operations: list[str] = []
        self.before_write: Callable[[], None] | None = None
        self.after_write: Callable[[], None] | None = None
        self.store: MemoryStore = self.cluster.session(self._faults)

    def _faults(self, phase: str, operation: str, subject: str) -> None:
        if phase == "before":
            self.operations.append(operation)
        if operation == "write_ledger":
            happen = self.before_write if phase == "before" else self.after_write
            if happen is not None:
                happen()


def _lost() -> None:
    raise MetadataUnavailableError("no answer")


@pytest.fixture
def world() -> World:
    return World()


def test_an_update_with_a_known_value_is_one_write(world: World) -> None:
    updated = update_ledger(world.store, L, LedgerMetadata.in_recovery, known=world.created)

    assert world.operations == ["write_ledger"]
    assert updated.value.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("transform", [lambda old: None, lambda old: old])
def test_nothing_to_change_is_nothing_written(
    world: World, transform: Callable[[LedgerMetadata], LedgerMetadata | None]
) -> None:
    updated = update_ledger(world.store, L, transform)

    assert world.operations == ["read_ledger"]
    assert updated == world.created


def test_the_step_is_asked_again_when_somebody_was_faster(world: World) -> None:
    def interfere() -> None:
        world.before_write = None
        update_ledger(world.other, L, lambda old: old.with_custom(theirs=b"1"))

    world.before_write = interfere

    updated = update_ledger(world.store, L, lambda old: old.with_custom(mine=b"2"))

    assert updated.version == 2
    assert updated.value.custom_metadata["theirs"] == b"1"
    assert updated.value.custom_metadata["mine"] == b"2"


def test_an_old_known_value_costs_only_a_retry(world: World) -> None:
    update_ledger(world.other, L, lambda old: old.with_custom(theirs=b"1"))

    updated = update_ledger(world.store, L, LedgerMetadata.in_recovery, known=world.created)

    assert world.operations == ["write_ledger", "read_ledger", "write_ledger"]
    assert updated.value.custom_metadata["theirs"] == b"1"


def test_two_closes_at_the_same_end_agree(world: World) -> None:
    def close(old: LedgerMetadata) -> LedgerMetadata:
        return old.closed(EntryId(4), 50)

    def interfere() -> None:
        world.before_write = None
        update_ledger(world.other, L, close)

    world.before_write = interfere

    # The step would fail its assertion if it were asked about the closed ledger.
    updated = update_ledger(world.store, L, close)

    assert updated.value.is_closed
    assert updated.version == 1


def test_a_lost_answer_is_found_to_be_ones_own_write(world: World) -> None:
    asked: list[LedgerMetadata] = []

    def change(old: LedgerMetadata) -> LedgerMetadata:
        asked.append(old)
        return old.with_new_ensemble(EntryId(5), (A, D, C))

    world.after_write = _lost

    updated = update_ledger(world.store, L, change)

    assert len(asked) == 1
    assert updated.version == 1
    assert [f.ensemble for f in updated.value.fragments] == [(A, B, C), (A, D, C)]


def test_a_lost_request_is_sent_again(world: World) -> None:
    def lose_once() -> None:
        world.before_write = None
        _lost()

    world.before_write = lose_once

    updated = update_ledger(world.store, L, LedgerMetadata.in_recovery)

    assert updated.version == 1


def test_what_the_step_raises_goes_to_the_caller(world: World) -> None:
    def only_while_open(old: LedgerMetadata) -> LedgerMetadata:
        if old.state is not LedgerState.OPEN:
            raise LedgerFencedError("it may or may not be written", ledger_id=L)
        return old.with_new_ensemble(EntryId(5), (A, D, C))

    def interfere() -> None:
        world.before_write = None
        update_ledger(world.other, L, LedgerMetadata.in_recovery)

    world.before_write = interfere

    with pytest.raises(LedgerFencedError):
        update_ledger(world.store, L, only_while_open)

    assert len(world.other.read_ledger(L).value.fragments) == 1


def test_a_ledger_deleted_meanwhile_is_not_made_again(world: World) -> None:
    world.before_write = lambda: world.other.delete_ledger(L, world.created)

    with pytest.raises(NoSuchLedgerError):
        update_ledger(world.store, L, LedgerMetadata.in_recovery)

    assert world.cluster.ledgers == {}


def test_answers_that_stay_away_end_the_loop(world: World) -> None:
    world.before_write = _lost

    with pytest.raises(MetadataUnavailableError):
        update_ledger(world.store, L, LedgerMetadata.in_recovery)

    assert world.operations.count("write_ledger") == UNKNOWN_MAX


def test_a_ledger_that_never_holds_still_ends_the_loop(world: World) -> None:
    def interfere() -> None:
        number = b"%d" % len(world.operations)
        update_ledger(world.other, L, lambda old: old.with_custom(n=number))

    world.before_write = interfere

    with pytest.raises(VersionConflictError):
        update_ledger(world.store, L, LedgerMetadata.in_recovery)

    assert world.operations.count("write_ledger") == CONFLICTS_MAX


@pytest.mark.parametrize("change", ["write_ledger", "delete_ledger"])
def test_a_change_in_doubt_is_what_the_caller_is_told_of_when_reading_fails_too(
    change: str,
) -> None:
    world = World()

    def faults(phase: str, operation: str, subject: str) -> None:
        if (phase, operation) == ("after", change):
            raise MetadataUnavailableError("the change is in doubt")
        if (phase, operation) == ("before", "read_ledger"):
            raise MetadataUnavailableError("nothing was changed")

    world.store.faults = faults

    changes: dict[str, Callable[[], object]] = {
        "write_ledger": lambda: update_ledger(
            world.store, L, LedgerMetadata.in_recovery, known=world.created
        ),
        "delete_ledger": lambda: delete_ledger(world.store, L, known=world.created),
    }
    with pytest.raises(MetadataUnavailableError, match="in doubt"):
        changes[change]()
