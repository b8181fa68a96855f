"""Changes of ledgers: what happens when others are faster, and when answers get lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_bookkeeper.errors import LedgerFencedError, MetadataUnavailableError, NoSuchLedgerError
from spark_bookkeeper.metadata.update import delete_ledger, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.testing.conformance.metadata import A, B, C, open_ledger
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore

L = LedgerId(7)
D = BookieId("10.0.0.4:3181")


class ContestedLedger:
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
def contested() -> ContestedLedger:
    return ContestedLedger()


def test_an_update_with_a_known_value_is_one_write(contested: ContestedLedger) -> None:
    updated = update_ledger(contested.store, L, LedgerMetadata.in_recovery, known=contested.created)

    assert contested.operations == ["write_ledger"]
    assert updated.value.state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("transform", [lambda old: None, lambda old: old])
def test_nothing_to_change_is_nothing_written(
    contested: ContestedLedger, transform: Callable[[LedgerMetadata], LedgerMetadata | None]
) -> None:
    updated = update_ledger(contested.store, L, transform)

    assert contested.operations == ["read_ledger"]
    assert updated == contested.created


def test_two_closes_at_the_same_end_agree(contested: ContestedLedger) -> None:
    def close(old: LedgerMetadata) -> LedgerMetadata:
        return old.closed(EntryId(4), 50)

    def interfere() -> None:
        contested.before_write = None
        update_ledger(contested.other, L, close)

    contested.before_write = interfere

    # The step would fail its assertion if it were asked about the closed ledger.
    updated = update_ledger(contested.store, L, close)

    assert updated.value.is_closed
    assert updated.version == 1


def test_a_lost_answer_is_found_to_be_ones_own_write(contested: ContestedLedger) -> None:
    asked: list[LedgerMetadata] = []

    def change(old: LedgerMetadata) -> LedgerMetadata:
        asked.append(old)
        return old.with_new_ensemble(EntryId(5), (A, D, C))

    contested.after_write = _lost

    updated = update_ledger(contested.store, L, change)

    assert len(asked) == 1
    assert updated.version == 1
    assert [f.ensemble for f in updated.value.fragments] == [(A, B, C), (A, D, C)]


def test_what_the_step_raises_goes_to_the_caller(contested: ContestedLedger) -> None:
    def only_while_open(old: LedgerMetadata) -> LedgerMetadata:
        if old.state is not LedgerState.OPEN:
            raise LedgerFencedError("it may or may not be written", ledger_id=L)
        return old.with_new_ensemble(EntryId(5), (A, D, C))

    def interfere() -> None:
        contested.before_write = None
        update_ledger(contested.other, L, LedgerMetadata.in_recovery)

    contested.before_write = interfere

    with pytest.raises(LedgerFencedError):
        update_ledger(contested.store, L, only_while_open)

    assert len(contested.other.read_ledger(L).value.fragments) == 1


def test_a_ledger_deleted_meanwhile_is_not_made_again(contested: ContestedLedger) -> None:
    contested.before_write = lambda: contested.other.delete_ledger(L, contested.created)

    with pytest.raises(NoSuchLedgerError):
        update_ledger(contested.store, L, LedgerMetadata.in_recovery)

    assert contested.cluster.ledgers == {}


@pytest.mark.parametrize("change", ["write_ledger", "delete_ledger"])
def test_a_change_in_doubt_is_what_the_caller_is_told_of_when_reading_fails_too(
    change: str,
) -> None:
    contested = ContestedLedger()

    def faults(phase: str, operation: str, subject: str) -> None:
        if (phase, operation) == ("after", change):
            raise MetadataUnavailableError("the change is in doubt")
        if (phase, operation) == ("before", "read_ledger"):
            raise MetadataUnavailableError("nothing was changed")

    contested.store.faults = faults

    changes: dict[str, Callable[[], object]] = {
        "write_ledger": lambda: update_ledger(
            contested.store, L, LedgerMetadata.in_recovery, known=contested.created
        ),
        "delete_ledger": lambda: delete_ledger(contested.store, L, known=contested.created),
    }
    with pytest.raises(MetadataUnavailableError, match="in doubt"):
        changes[change]()
