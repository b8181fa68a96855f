"""Transactions of a log: the last numbered write of each application, so none is stored twice.

An application numbers its writes upwards, and the log stores the last number of each. A write whose
number is not above it was done before. A stream's micro-batch with such a number must be the last
one again, or it is refused. The numbers change in the same compare-and-swap as the list of ledgers,
so a write is in the list exactly when its number is stored.

An application is forgotten only if more than ``MOST_APPLICATIONS`` write, and the log's newest
ledger at the application's last write is no longer part of the log. If none can be forgotten, a
further application is refused: if one were forgotten too early, its repeated write would be stored
twice.

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
"""The most applications in the head of a log: about 64 KB with UUIDs as ids, 230 KB with the
longest ids; a ZooKeeper node holds at most about 1 MB."""

MOST_CHARACTERS: Final = 200
"""The most characters of an application's id."""

MOST_VERSION: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """A write, identified by its application and its number there.

    Raises:
        InvalidArgumentError: the id is not text of 1 to 200 printable characters, or the number is
            not within 0 .. 2**63-1.
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
    """A write of a stream, identified by its query and its number there.

    Spark repeats only the last one, with the same rows. A batch with a lower number was planned
    anew, and contains rows that the log lacks.
    """

    rows: int

    def check_repeats(self, last: Committed, log: str) -> None:
        """Check that no rows are lost if this batch is not written, given the log's ``last``.

        Raises:
            InvalidArgumentError: it is not the last batch again, or has another number of rows.
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
    """Return the transaction of both arguments; ``None`` if both are ``None``.

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
    """The number of its rows; known only for a stream's write."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """The last write of each application, in the order of these writes."""

    last: tuple[Committed, ...] = ()

    def __post_init__(self) -> None:
        again = [app for app, count in Counter(c.app_id for c in self.last).items() if count > 1]
        if again:
            raise InvalidArgumentError(f"application {again[0]!r} has two last transactions")

    def of(self, app_id: str) -> Committed | None:
        """Return the last write of an application, or ``None``."""
        return next((last for last in self.last if last.app_id == app_id), None)

    def done(self, transaction: Transaction) -> Committed | None:
        """Return the last write, if its number is this one or higher; ``None`` if this is new."""
        last = self.of(transaction.app_id)
        return last if last is not None and transaction.version <= last.version else None

    def with_last(
        self, transaction: Transaction, ledger_id: LedgerId, begins_at: LedgerId
    ) -> Transactions:
        """Return the transactions after one more write.

        Args:
            transaction: not done before.
            ledger_id: the newest ledger of the log then.
            begins_at: of the log; an application whose last write is before it may be forgotten.

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
        """Return the transactions without those of an application."""
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
