"""Transactions of a log: which write of which application it holds, so that none is there twice.

An application numbers its writes upwards, and the log remembers the last number of each. A write
whose number is not above it was done before; of a stream's micro-batches it is the last one, or
it is refused. The numbers change together with the list of ledgers, in one compare-and-swap, so a
write is in the list exactly when its number is remembered.

An application is forgotten only where there are more than ``MOST_APPLICATIONS``, and the ledger
that was the log's newest when it wrote last is no longer part of the log. Where none can be
forgotten, a further one is refused: a write of one that was forgotten too early could be repeated
and be there twice.

Source: Delta Lake, "Idempotent writes" (``txnAppId``, ``txnVersion``), whose ``txn`` actions are
kept for ever by default.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import LedgerId

MOST_APPLICATIONS: Final = 1_000
"""In the head of one log: about 64 KB when their ids are UUIDs, 230 KB when they are as long as
they can be; a node of ZooKeeper ends near 1 MB."""

MOST_CHARACTERS: Final = 200
"""Of an application's id."""

MOST_VERSION: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """One write, by its application and its number there.

    Raises:
        InvalidArgumentError: an id that is no text of 1 to 200 printable characters, or a number
            that is not within 0 .. 2**63-1.
    """

    app_id: str
    version: int

    def __post_init__(self) -> None:
        if (
            not isinstance(self.app_id, str)
            or not 0 < len(self.app_id) <= MOST_CHARACTERS
            or not self.app_id.isprintable()
        ):
            raise InvalidArgumentError(
                f"txnAppId {str(self.app_id)[:80]!r} cannot be: 1 to {MOST_CHARACTERS} printable "
                "characters that are the same whenever this application writes to the log"
            )
        if whole_number("txnVersion", self.version, 0) > MOST_VERSION:
            raise InvalidArgumentError(f"txnVersion={self.version} is above 2**63-1")

    def __str__(self) -> str:
        return f"{self.app_id}:{self.version}"


@dataclass(frozen=True, slots=True)
class MicroBatch(Transaction):
    """A write of a stream, by its query and its number there.

    Spark repeats the last one, with the rows that it had, and none before it. What comes with a
    lower number was planned anew: the rows that the log has not are among it.
    """

    rows: int

    def check_repeats(self, last: Committed, log: str) -> None:
        """Make sure that nothing is lost when this batch is not written: the log has ``last``.

        Raises:
            InvalidArgumentError: this is not the last one again, or has not as many rows.
        """
        if self.version < last.version:
            why = f"has batch {last.version} of application {self.app_id!r}, and this is batch "
            why += f"{self.version}. A batch before the last one is never repeated"
        elif last.rows not in (None, self.rows):
            why = f"has {last.rows} rows of batch {last.version} of application {self.app_id!r}, "
            why += f"and the batch has {self.rows} now"
        else:
            return
        raise InvalidArgumentError(
            f"nothing was written: log {log!r} {why}. An older checkpoint was put back, so that "
            "rows are among them which the log has not; or another query uses this txnAppId, or "
            "this checkpoint; or the query gives other rows when it is run again. Begin a new "
            "checkpoint, with another txnAppId if there was one, behind the rows that the log has: "
            "from an earlier place they are there twice",
            log=log,
            app_id=self.app_id,
            version=self.version,
            last_version=last.version,
        )


def transaction_of(app_id: str | None, version: int | None) -> Transaction | None:
    """The transaction that both name; ``None`` for neither.

    Raises:
        InvalidArgumentError: one of the two is missing, or is not valid.
    """
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        names = ("txnVersion", "txnAppId")
        given, missing = names if app_id is None else reversed(names)
        raise InvalidArgumentError(
            f"{given} was given without {missing}; nothing was written. Together they make a write "
            "idempotent: txnAppId says who writes, and is always the same; txnVersion counts its "
            "writes upwards"
        )
    return Transaction(app_id, version)


@dataclass(frozen=True, slots=True)
class Committed:
    """The last write of one application."""

    app_id: str
    version: int
    ledger_id: LedgerId
    """The newest ledger of the log after this write: its own, unless it had no rows."""
    rows: int | None = None
    """How many it had, where that is known: of a stream."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """The last write of each application, in the order of these writes."""

    last: tuple[Committed, ...] = ()

    def __post_init__(self) -> None:
        again = [app for app, count in Counter(c.app_id for c in self.last).items() if count > 1]
        if again:
            raise InvalidArgumentError(f"application {again[0]!r} has two last transactions")

    def of(self, app_id: str) -> Committed | None:
        """The last write of an application."""
        return next((last for last in self.last if last.app_id == app_id), None)

    def done(self, transaction: Transaction) -> Committed | None:
        """What was written with this number, or a higher one; ``None`` if it is still to be."""
        last = self.of(transaction.app_id)
        return last if last is not None and transaction.version <= last.version else None

    def with_last(
        self, transaction: Transaction, ledger_id: LedgerId, begins_at: LedgerId
    ) -> Transactions:
        """The same after one write more.

        Args:
            transaction: not done before.
            ledger_id: the newest ledger of the log then.
            begins_at: of the log; an application whose last write lies before it may be forgotten.

        Raises:
            InvalidArgumentError: too many applications, and none of them may be forgotten.
        """
        assert self.done(transaction) is None, "a transaction is done once"
        others = self.without(transaction.app_id).last
        if len(others) >= MOST_APPLICATIONS:
            others = _without_oldest(others, transaction, begins_at)
        rows = transaction.rows if isinstance(transaction, MicroBatch) else None
        last = Committed(transaction.app_id, transaction.version, ledger_id, rows)
        return Transactions((*others, last))

    def without(self, app_id: str) -> Transactions:
        """The same as if an application had never written."""
        return Transactions(tuple(last for last in self.last if last.app_id != app_id))


def _without_oldest(
    others: tuple[Committed, ...], transaction: Transaction, begins_at: LedgerId
) -> tuple[Committed, ...]:
    for place, last in enumerate(others):
        if last.ledger_id < begins_at:
            return (*others[:place], *others[place + 1 :])
    raise InvalidArgumentError(
        f"the log remembers the last transaction of {len(others)} applications, which is as many "
        f"as it can, and {transaction.app_id!r} is one more; nothing was written. An application "
        "keeps its id for all its writes: a new id for each run is not meant. "
        f"forget_application({others[0].app_id!r}) of the log forgets the one that wrote longest "
        "ago; do so only if it will not repeat its last write. Truncating the log makes room, too"
    )
