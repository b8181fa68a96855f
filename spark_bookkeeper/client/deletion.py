"""Delete a ledger; stop its writer before, if it may still have one.

A closed ledger is just deleted. The writer of any other ledger may be at work, and would go on to
believe that its entries are stored. So it is stopped (``fencing.py``). Then the ledger is deleted
as it was read, never another one with its id.

A tool that only removes the metadata stops no writer. The writer learns of it from ZooKeeper soon
after, at the latest when it changes its ensemble or closes (``LedgerStore.watch_ledger``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.fencing import stop_writer
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.presence import GONE, writer_of, writer_state
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataFormatError,
    NoSuchLedgerError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.metadata import update
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Deletion:
    """The result of one ledger's deletion; in a dry run, what would be deleted."""

    ledger_id: LedgerId
    state: str | None
    """OPEN, IN_RECOVERY or CLOSED, as it was found; UNREADABLE when its metadata could not be
    decoded; ``None`` when there was no such ledger."""
    not_fenced: Mapping[BookieId, str] = field(default_factory=dict)
    """Bookies that were not fenced, with the reason: a living writer may still store there."""
    length_bytes: int | None = None
    """The length of its entries; ``None`` if it was not closed, or did not exist."""

    def _repr_html_(self) -> str:
        told = ", ".join(f"{b}: {why}" for b, why in self.not_fenced.items()) or "none"
        found = self.state or "not there"
        shown = {"ledger": self.ledger_id, "state": found, "bytes": self.length_bytes}
        return fields_table({**shown, "not fenced": told})


@contextmanager
def noting(context: ClientContext, job: str, about: str) -> Iterator[list[Deletion]]:
    """Yield a list for ledgers as they are deleted; ``bk.jobs()`` shows them, even if one fails.
    Ledgers that did not exist are removed from the list.
    """
    deleted: list[Deletion] = []
    try:
        yield deleted
    finally:
        deleted[:] = [each for each in deleted if each.state is not None]
        if deleted:
            context.on_deleted(context, job, about, deleted)


def delete_ledger(
    context: ClientContext, ledger_id: int, *, even_if_alive: bool = False, dry_run: bool = False
) -> Deletion:
    """Delete a ledger's metadata; its files on bookies become garbage. Idempotent.

    Args:
        dry_run: only return what would be deleted, or raise; nothing is changed.
        even_if_alive: delete it even if its writer lives, may live, or could not be stopped. The
            writer's next append fails as soon as it meets a fence or learns of the deletion.

    Raises:
        InvalidArgumentError: the ledger is not closed, and its writer lives or may live. Nothing
            was changed.
        RecoveryUndecidedError: too few bookies could be fenced, so a writer that is not gone after
            all could go on. The ledger is IN_RECOVERY; it was not deleted.
        MetadataFormatError: its metadata cannot be decoded. Nothing was changed.
        MetadataUnavailableError: it may or may not have been deleted; repeat.
    """
    store, wanted = context.store, parse_ledger_id(ledger_id)
    with nullcontext() if dry_run else context.metrics.deleting(context.runtime):
        try:
            found = store.read_ledger(wanted)
            if not even_if_alive:
                check_nobody_writes(context, wanted, found.value)
            if not (dry_run or found.value.is_closed):
                return _stop_and_delete(context, wanted, found, is_certain=not even_if_alive)
            if not dry_run:
                update.delete_ledger(store, wanted, known=found)
            return Deletion(wanted, found.value.state.name, length_bytes=found.value.length_bytes)
        except NoSuchLedgerError:
            return Deletion(wanted, None)
        except MetadataFormatError as error:
            if not even_if_alive:
                raise _unreadable(error) from error
            if not dry_run:
                store.delete_ledger(wanted, None)
            return Deletion(wanted, "UNREADABLE")


def planned_deletions(context: ClientContext, ledger_ids: Sequence[LedgerId]) -> list[Deletion]:
    """Return what deletions of these ledgers would find now; nothing is changed."""
    return [
        Deletion(ledger_id, found.value.state.name, length_bytes=found.value.length_bytes)
        if isinstance(found, Versioned)
        else Deletion(ledger_id, None if found is None else "UNREADABLE")
        for ledger_id, found in context.store.read_ledgers(ledger_ids)
    ]


def delete_unless_closed(context: ClientContext, ledger_id: LedgerId) -> bool:
    """Delete a ledger that is not closed, even if it has a writer; return whether it is gone.

    Idempotent. It compares and deletes in one step: a ledger that another client closed meanwhile
    stays, because that client may rely on it.

    Raises:
        MetadataFormatError: its metadata cannot be decoded. Nothing was changed.
        MetadataUnavailableError: it may or may not have been deleted; repeat.
    """
    try:
        found = context.store.read_ledger(ledger_id)
        flagged, _ = stop_writer(context, ledger_id, found)
    except NoSuchLedgerError:
        return True
    if flagged.value.is_closed:
        return False
    return update.delete_ledger(context.store, ledger_id, known=flagged, unless_closed=True)


def check_nobody_writes(context: ClientContext, ledger_id: LedgerId, found: LedgerMetadata) -> None:
    """Raise ``InvalidArgumentError`` for a ledger whose writer lives, or may live."""
    if found.is_closed:
        return
    state = writer_state(context, ledger_id, found)
    if state == "gone":
        return
    who = writer_of(found)
    about = "" if who is None else f" ({who})"
    why = (
        f"its writer{about} lives"
        if state == "lives"
        else "it is not known whether its writer lives, as it left no note of itself"
    )
    raise InvalidArgumentError(
        f"ledger {ledger_id} is {found.state.name} and {why}; nothing was changed. Have the writer "
        "close it, or stop it and recover_ledgers() it, and repeat. even_if_alive=True (on the "
        "command line --even-if-alive) stops the writer by a fence, and deletes what it has "
        "written"
    )


def _unreadable(error: MetadataFormatError) -> MetadataFormatError:
    """Return the error for a ledger that cannot be decoded, so that its writer is unknown."""
    return MetadataFormatError(
        f"{error.message}. It was not deleted. even_if_alive=True (on the command line "
        "--even-if-alive) deletes it as it is, without a fence",
        **error.facts,
    )


def _stop_and_delete(
    context: ClientContext,
    ledger_id: LedgerId,
    found: Versioned[LedgerMetadata],
    *,
    is_certain: bool,
) -> Deletion:
    """Flag, fence, delete.

    Args:
        is_certain: delete only when no writer can acknowledge anything any more.
    """
    flagged, stopped = stop_writer(context, ledger_id, found)
    if is_certain and not stopped.is_stopped:
        raise _not_stopped(ledger_id, stopped.not_fenced)
    update.delete_ledger(context.store, ledger_id, known=flagged)
    return Deletion(ledger_id, stopped.state, stopped.not_fenced)


def _not_stopped(ledger_id: LedgerId, not_fenced: Mapping[BookieId, str]) -> RecoveryUndecidedError:
    said = "\n".join(f"  {bookie}: {why}" for bookie, why in not_fenced.items())
    return RecoveryUndecidedError(
        f"ledger {ledger_id} was not deleted. Its writer is gone as far as is known ({GONE}), but "
        "too many of its bookies could not be fenced: should the writer come back, it could go on "
        f"acknowledging there\n{said}\nThe ledger is IN_RECOVERY. Bring a bookie back and repeat; "
        "if the writer is certainly dead, even_if_alive=True (on the command line "
        "--even-if-alive) deletes it as it is",
        ledger_id=ledger_id,
        entry_id=NO_ENTRY,
        answers=dict(not_fenced),
        blockers=tuple(not_fenced),
    )
