"""Bookies drop the copies that a table stands for now.

The ledger's metadata say which bookies have to drop theirs, so that any later run can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.agent.collection import withdraw
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.archive import archived_of, copies_kept, dropped
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, is_table
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Failure, Step
from spark_bookkeeper.replication.stragglers import name_of

RELEASE: Final = "release"
"""The action in the rows of a report."""


@dataclass(frozen=True, slots=True)
class DropWork:
    """Make bookies drop copies of a released ledger that no fragment relies on. Picklable."""

    ledger_id: LedgerId
    nonce: bytes | None
    table: str
    size_bytes: int = 0
    """Always 0: nothing is read."""

    def name(self) -> str:
        """Return the name of the ledger, for messages."""
        return name_of(self.ledger_id)


def to_drop(metadata: LedgerMetadata) -> dict[BookieId, str]:
    """Return the bookies that have to drop their copies, with their incarnations. A bookie that a
    fragment names again keeps its copies.
    """
    archived = archived_of(metadata)
    named = metadata.members()
    said = {} if archived is None else archived.dropping
    return {bookie: inc for bookie, inc in said.items() if bookie not in named}


def release_row(ledger: Ledger, table: str, status: Outcome, reason: str | None) -> Row:
    """Return the row of a ledger in a report."""
    last, size = ledger.metadata.last_entry_id, ledger.metadata.length_bytes or 0
    place = (0, last, None, table, 0 if last is None else last + 1, size)
    return Row(ledger.ledger_id, RELEASE, status, reason, *place)


def released_row(ledger: Ledger, failures: Sequence[str] = ()) -> Row:
    """Return the row of a ledger for which a table stands, or stood until a recovery replaced it.

    Args:
        failures: where copies could not be dropped, and why.
    """
    archived = archived_of(ledger.metadata)
    assert archived is not None, "release-after-proof"
    kept = copies_kept(ledger.metadata, ())
    stands = any(map(is_table, ledger.metadata.members()))
    where = f"{kept} copies are on bookies"
    where = f"read from {archived.table}; {where}" if stands else where
    if not failures:
        outcome = Outcome.RELEASED if stands else Outcome.NO_LONGER_NEEDED
        return release_row(ledger, archived.table, outcome, where)
    reason = (
        f"{where}, and could not be dropped everywhere ({'; '.join(failures)}). Nothing counts on "
        "these; repeat it when the bookies are back"
    )
    return release_row(ledger, archived.table, Outcome.PENDING, reason)


def drop(context: ClientContext, work: DropWork) -> Sequence[Row]:
    """Drop copies of one ledger. The bookies are read now: one that is named again is skipped."""
    try:
        return [_drop(context, work)]
    except NoSuchLedgerError as error:
        return [Row(work.ledger_id, RELEASE, Outcome.GONE, error.message)]


def _drop(context: ClientContext, work: DropWork) -> Row:
    ledger, _ = context.ledger(work.ledger_id, work.nonce)
    done: list[BookieId] = []
    failures: list[str] = []
    for bookie, incarnation in to_drop(ledger.metadata).items():
        try:
            if withdraw(context, ledger, bookie, incarnation):
                done.append(bookie)
            else:
                failures.append(f"{bookie}: the ledger was changed meanwhile")
        except CookieMismatchError:
            done.append(bookie)  # it was formatted since, and holds no copies
        except BookieUnavailableError as error:
            if _is_forgotten(context, bookie):
                done.append(bookie)
            else:
                failures.append(f"{bookie}: {error.message}")
        except BookKeeperError as error:
            failures.append(f"{bookie}: {error.message}")
    if done:
        store, ledger_id = context.store, work.ledger_id
        known = read_again(store, ledger_id, work.nonce)
        found = update_ledger(store, ledger_id, lambda old: dropped(old, done), known=known)
        ledger = ledger.with_metadata(found.value)
    return released_row(ledger, failures)


def not_dropped(work: DropWork, failure: Failure) -> Row:
    return Row(work.ledger_id, RELEASE, Outcome.LEFT, failure.reason, target=work.table)


DROPPING: Final = Step("dropping copies", drop, not_dropped)


def _is_forgotten(context: ClientContext, bookie: BookieId) -> bool:
    """Whether the cluster has no such bookie any more."""
    return (
        bookie not in context.bookies.registrations()
        and context.store.cookie_version(bookie) is None
    )
