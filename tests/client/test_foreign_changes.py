"""Another program changes a ledger's metadata as no client may: an error says what is certain.

What the world may do is no assertion, so all of it holds under ``python -O`` as well, where this
file is run as a program.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.client.ledger import INCARNATIONS
from spark_bookkeeper.client.lifecycle import create_ledger
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookKeeperError,
    LedgerFencedError,
    VersionConflictError,
)
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.recovery import Recovery
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.hooks import At


def must(holds: bool, what: object) -> None:
    """An assertion that -O leaves in."""
    if not holds:
        raise RuntimeError(f"it does not hold: {what}")


def fails(call: Callable[[], object]) -> BookKeeperError:
    """The error of ours that a call ends with."""
    try:
        ended = call()
    except BookKeeperError as error:
        return error
    raise RuntimeError(f"no error, but {ended!r}")


def open_writer(ground: Ground) -> LedgerWriter:
    writer = create_ledger(ground.context, Quorum(3, 3, 2))
    for number in range(5):
        writer.append(b"%d" % number)
    return writer


def foreign(
    ground: Ground, ledger_id: LedgerId, change: Callable[[LedgerMetadata], LedgerMetadata]
) -> None:
    """What another program writes, as it can: by compare-and-swap."""
    store: MemoryStore = ground.cluster.session()
    found = store.read_ledger(ledger_id)
    store.write_ledger(ledger_id, change(found.value), found)


def with_fragment(old: LedgerMetadata, first: int = 1000) -> LedgerMetadata:
    made = Fragment(EntryId(first), old.last_fragment.ensemble)
    return replace(old, fragments=(*old.fragments, made))


def before_the_close(ground: Ground, change: Callable[[], None]) -> None:
    """Do something between the flag and the close of a recovery: before the second write."""
    ground.before.append(At("write_ledger", change, only=[1]))


def a_fragment_that_appears_during_a_recovery(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_writer(ground)
    ledger_id = writer.ledger_id
    writer.abandon()
    before_the_close(ground, lambda: foreign(ground, ledger_id, with_fragment))

    error = fails(lambda: recover_ledger(ground.context, ledger_id))

    must(isinstance(error, VersionConflictError), error)
    for said in (f"ledger {ledger_id}", "at entry 1000", "did not close it", "recover the ledger"):
        must(said in error.message, (said, error.message))
    found = ground.context.store.read_ledger(ledger_id).value
    must(found.state is LedgerState.IN_RECOVERY, found)
    must(found.last_fragment.first_entry_id == 1000, found)


def a_ledger_that_is_set_back_to_open_during_its_recovery(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_writer(ground)
    ledger_id = writer.ledger_id
    writer.abandon()
    before_the_close(
        ground,
        lambda: foreign(ground, ledger_id, lambda old: replace(old, state=LedgerState.OPEN)),
    )

    error = fails(lambda: recover_ledger(ground.context, ledger_id))

    must(isinstance(error, VersionConflictError), error)
    must("it is OPEN" in error.message, error.message)
    must(ground.context.store.read_ledger(ledger_id).value.state is LedgerState.OPEN, "state")


def a_recovery_of_a_ledger_that_is_open(directory: Path) -> None:
    ground = Ground(directory)
    metadata = open_writer(ground).metadata

    must(isinstance(fails(lambda: Recovery(metadata)), VersionConflictError), "the machine")


def a_new_ensemble_before_the_last_fragment(directory: Path) -> None:
    ground = Ground(directory)
    old = with_fragment(open_writer(ground).metadata)

    error = fails(lambda: old.with_new_ensemble(EntryId(5), old.last_fragment.ensemble))

    must(isinstance(error, VersionConflictError), error)


def a_fragment_that_appears_under_a_writer_that_closes(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_writer(ground)
    foreign(ground, writer.ledger_id, with_fragment)

    error = fails(writer.close)

    must(isinstance(error, LedgerFencedError), error)
    must("a fragment at entry 1000" in error.message, error.message)
    must("after 4 may or may not" in error.message, error.message)
    state = ground.context.store.read_ledger(writer.ledger_id).value.state
    must(state is LedgerState.OPEN, state)


def a_fragment_that_appears_under_a_writer_that_replaces_a_bookie(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_writer(ground)
    foreign(ground, writer.ledger_id, with_fragment)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    error = fails(lambda: writer.append(b"5"))

    must(isinstance(error, LedgerFencedError), error)
    must("a fragment at entry 1000" in error.message, error.message)


def incarnations_that_are_taken_away_from_a_writer(directory: Path) -> None:
    ground = Ground(directory)
    writer = open_writer(ground)
    foreign(ground, writer.ledger_id, lambda old: old.with_custom(**{INCARNATIONS: b"[1"}))
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    error = fails(lambda: writer.append(b"5"))

    must(isinstance(error, AppendFailedError), error)
    must(INCARNATIONS in error.message, error.message)


SITUATIONS = (
    a_fragment_that_appears_during_a_recovery,
    a_ledger_that_is_set_back_to_open_during_its_recovery,
    a_recovery_of_a_ledger_that_is_open,
    a_new_ensemble_before_the_last_fragment,
    a_fragment_that_appears_under_a_writer_that_closes,
    a_fragment_that_appears_under_a_writer_that_replaces_a_bookie,
    incarnations_that_are_taken_away_from_a_writer,
)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_a_change_by_another_program_is_an_error(
    situation: Callable[[Path], None], tmp_path: Path
) -> None:
    situation(tmp_path)


@pytest.mark.full
def test_it_is_the_same_without_assertions() -> None:
    program = [sys.executable, "-O", __file__]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)

    assert (ended.returncode, ended.stdout) == (0, "optimized\n"), ended.stderr


if __name__ == "__main__":
    for each in SITUATIONS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            each(Path(place))
    sys.stdout.write("with assertions\n" if __debug__ else "optimized\n")
