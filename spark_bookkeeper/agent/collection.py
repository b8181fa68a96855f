"""Garbage collection: remove what a bookie holds and nothing needs, to free its space.

There are three sorts of garbage: data of deleted ledgers; copies of closed ledgers that no fragment
names, once every share of the ledger was read elsewhere and is whole; and leftovers of writes that
were never finished. Uncertain data stays, and a row says why.

The bookie lists its ledgers before the metadata are read, and the metadata of each ledger are read
by its id: no listing of ledgers is trusted (SLOT-LOG rules R12, R19, R21).

Source: BookKeeper 4.17 ``bookie/ScanAndCompareGarbageCollector`` (with ``verifyMetadataOnGC``;
over-replicated ledgers are those of closed ledgers, under the lock of replication workers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spark_bookkeeper.autorecovery.publishing import chunks
from spark_bookkeeper.bookie.bookie import Bookie, LedgerRef, RangeRef
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.collection import with_collection, without_collection
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.quorum import Share
from spark_bookkeeper.replication.check_ledgers import CheckWork, check_one
from spark_bookkeeper.replication.report import Outcome, Report, Row
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.answer import value_of

LEDGERS_AT_ONCE: Final = 500
"""The number of ledgers whose metadata are read in one call."""

LEFTOVERS_AFTER_MS: Final = 86_400_000
"""One day."""

_LACKS: Final = "the ledger is under-replicated: its copies stay"

T = TypeVar("T")


class GarbageReport(Report):
    """The report of ``collect_garbage``: one row for each ledger and bookie where data was removed,
    or where it is uncertain whether data may be removed.
    """


@dataclass(frozen=True, slots=True)
class Collection:
    """The options of a garbage collection."""

    dry_run: bool = False
    """Only report what would be removed."""
    with_copies: bool = True
    """Also remove closed ledgers' copies that no fragment names; this reads all other replicas."""
    leftovers_after_ms: int = LEFTOVERS_AFTER_MS
    """The least age of a leftover of an unfinished write that is removed."""
    bytes_per_second: int | None = None
    """Limit on reading the other replicas of copies that no fragment names."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether to stop now and leave the rest for the next collection."""


def collect_garbage(
    context: ClientContext,
    bookies: Sequence[BookieId] | None = None,
    wish: Collection | None = None,
    *,
    progress: Progress = no_progress,
) -> GarbageReport:
    """Collect the garbage of the given bookies, or of all registered ones.

    Repeated, or interrupted at any moment and begun again, it removes nothing that is needed. A
    failure of a bookie or of the metadata store ends the collection of that bookie.
    """
    wish = wish or Collection()
    started = context.runtime.now()
    rows: list[Row] = []
    for bookie in sorted(context.bookies.registrations()) if bookies is None else bookies:
        try:
            rows += Collector(context, bookie, wish, progress).run()
        except BookKeeperError as error:
            rows.append(Row(-1, "collect", Outcome.LEFT, error.message, source=bookie))
    duration_ms = round((context.runtime.now() - started) * 1000)
    return GarbageReport("collect_garbage", tuple(rows), wish.dry_run, duration_ms)


def withdraw(context: ClientContext, ledger: Ledger, bookie: BookieId, incarnation: str) -> bool:
    """Remove the copies of a closed ledger from a bookie that no fragment names (rule R19).

    Args:
        ledger: the ledger as it was when the copies were found to be garbage.

    Returns:
        False if its fragments have changed, or it is not allowed; then nothing was removed.

    Raises:
        BookieError: the bookie is another incarnation, or does not answer; the removal
            may still happen. If it had begun, the bookie takes no more copies of the ledger.
    """
    face, ref = context.bookies.bookie(bookie), LedgerRef(ledger.key, incarnation, ledger.encoding)
    face.check(ref)  # fail before a token is published that nothing would remove
    token = context.runtime.token()

    def begin(old: LedgerMetadata) -> LedgerMetadata:
        new = with_collection(old, bookie, incarnation, token)
        if new is None or old.fragments != ledger.metadata.fragments:
            raise _NotAllowedError
        return new

    try:
        update_ledger(context.store, ledger.ledger_id, begin)  # [gc_register]
    except _NotAllowedError:
        return False
    # After other errors the token stays: the removal may still happen. On a mismatch the bookie
    # removed nothing and the call has returned, so the token is removed.
    mismatch: CookieMismatchError | None = None
    try:
        face.clear(ref)
    except CookieMismatchError as error:
        mismatch = error
    update_ledger(
        context.store,
        ledger.ledger_id,
        lambda old: without_collection(old, bookie, incarnation, token),
    )
    if mismatch is not None:
        raise mismatch
    return True


class _NotAllowedError(Exception):
    """The ledger is in a state in which its copies may not be removed."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The cluster and incarnation of a partition, as the metadata store names them."""

    instance_id: str
    incarnation: str


class Collector:
    """Collects the garbage of one bookie."""

    def __init__(
        self,
        context: ClientContext,
        bookie: BookieId,
        wish: Collection,
        progress: Progress = no_progress,
    ) -> None:
        self._context = context
        self._bookie = bookie
        self._wish = wish
        self._progress = progress
        self._owner = self._read_owner()
        self._face: Bookie = context.bookies.bookie(bookie)

    def run(self) -> Iterator[Row]:
        """Collect, one row at a time. Raises errors that concern the whole bookie."""
        keys = sorted(self._face.ledgers(), key=lambda key: (key.ledger_id, key.nonce))
        phase, done = f"collecting garbage of {self._bookie}", 0
        self._progress(phase, done, len(keys), 0)
        for chunk in chunks(keys, LEDGERS_AT_ONCE):
            ids = sorted({LedgerId(key.ledger_id) for key in chunk})
            found = dict(self._context.store.read_ledgers(ids))
            for key in chunk:
                if self._wish.is_stopping():
                    return
                yield from self._guarded(key, found[LedgerId(key.ledger_id)])
                done += 1
                self._progress(phase, done, len(keys), 0)

    def _guarded(
        self, key: LedgerKey, found: Versioned[LedgerMetadata] | MetadataFormatError | None
    ) -> list[Row]:
        """Return an error of one ledger as a row; raise one that concerns every ledger."""
        try:
            row = self._look_at(key, found)
        except (MetadataUnavailableError, CookieMismatchError):
            raise
        except BookKeeperError as error:
            row = self._row(key, Outcome.LEFT, error.message)
        return [] if row is None else [row]

    def _look_at(
        self, key: LedgerKey, found: Versioned[LedgerMetadata] | MetadataFormatError | None
    ) -> Row | None:
        if isinstance(found, MetadataFormatError):
            return self._row(key, Outcome.LEFT, found.message)
        if found is None or found.value.nonce != key.nonce.encode():
            return self._delete(key)
        if not found.value.is_closed:
            return None
        ledger = Ledger.of(LedgerId(key.ledger_id), found.value)
        ref = LedgerRef(key, self._owner.incarnation, ledger.encoding)
        if self._bookie not in found.value.bookies():
            return self._withdraw(ref, ledger) if self._wish.with_copies else None
        return self._sweep(ref, found.value)

    # Deleted ledgers

    def _delete(self, key: LedgerKey) -> Row | None:
        """Remove a ledger that is certainly deleted; its nonce is never used again (R16)."""
        if (reason := self._why_it_may_live(key)) is not None:
            return None if reason == "" else self._row(key, Outcome.LEFT, reason)
        # Metadata of another cluster prove nothing: cluster and bookie must be unchanged.
        if self._read_owner() != self._owner:
            raise CookieMismatchError(
                f"bookie {self._bookie} was formatted, or the cluster was, while its garbage was "
                "collected; nothing more was removed",
                bookie_id=self._bookie,
            )
        ref = LedgerRef(key, self._owner.incarnation, LedgerEncoding())
        with suppress(NoSuchLedgerError):  # a tombstone of a deletion that did not finish
            self._face.check(ref)
        size = sum(self._face.sizes_of(key))
        reason = "the ledger was deleted"
        if self._wish.dry_run:
            return self._row(key, Outcome.PLANNED, reason, size)
        self._face.retire(key)
        self._face.delete(key)
        return self._row(key, Outcome.DELETED, reason, size)

    def _why_it_may_live(self, key: LedgerKey) -> str | None:
        """Return why the ledger may exist: ``None`` if it certainly does not, ``""`` if it does."""
        found = self._why_it_may_live_now(key)
        if found is not None:
            return found
        # A settled read, the register, a second read: a restore removes its register only when the
        # metadata exist, so the second read finds a restore that ended meanwhile [gc_restored].
        ledger_id, store = LedgerId(key.ledger_id), self._context.store
        if restores.is_under_way(store.registers, ledger_id, key.nonce.encode()):
            return f"ledger {key.ledger_id} is being restored; repeat the restore if it was ended"
        return self._why_it_may_live_now(key)

    def _why_it_may_live_now(self, key: LedgerKey) -> str | None:
        try:
            now = self._context.store.read_ledger_settled(LedgerId(key.ledger_id)).value
        except NoSuchLedgerError:
            return None
        except MetadataFormatError as error:
            return error.message
        if now.nonce is None:
            return (
                f"the metadata of ledger {key.ledger_id} do not say which life of it they are of "
                "(another client wrote them): what is here stays"
            )
        return "" if now.nonce == key.nonce.encode() else None

    # Copies that nothing names

    def _withdraw(self, ref: LedgerRef, ledger: Ledger) -> Row | None:
        """Remove the copies of a closed ledger from a bookie that no fragment names."""
        key, ledger_id = ref.key, ledger.ledger_id
        held = value_of(self._face.holdings([RangeRef(ref, 0)])[0])
        if not len(held):
            return None  # at most its fence, or undecodable records
        tree = self._context.store.underreplication
        if tree.read(ledger_id) is not None:
            return self._row(key, Outcome.LEFT, _LACKS)
        holder = Holder(f"garbage collection of {self._bookie}")
        try:
            if not tree.lock(ledger_id, holder):
                return self._row(key, Outcome.LEFT, "a replication worker is at the ledger")
            return self._withdraw_locked(ref, ledger)
        finally:  # also when the answer of lock was lost
            tree.unlock(holder)

    def _withdraw_locked(self, ref: LedgerRef, ledger: Ledger) -> Row | None:
        key = ref.key
        work = CheckWork(
            ledger.ledger_id,
            100,
            nonce=key.nonce.encode(),
            bytes_per_second=self._wish.bytes_per_second,
        )
        tree, is_wanted = self._context.store.underreplication, False

        def must_stop() -> bool:
            """Whether to stop, or a worker needs the lock: a large ledger takes hours to check."""
            nonlocal is_wanted
            is_wanted = is_wanted or tree.read(ledger.ledger_id) is not None
            return is_wanted or self._wish.is_stopping()

        findings = check_one(self._context, work, must_stop)
        if is_wanted:
            return self._row(key, Outcome.LEFT, _LACKS)
        if self._wish.is_stopping():
            return None  # the check is incomplete; the next collection repeats it
        for finding in findings:
            if finding.status is not Outcome.HEALTHY:
                reason = f"not every replica is whole: {finding.source}: {finding.reason}"
                return self._row(key, Outcome.LEFT, reason)
        size = sum(self._face.sizes_of(key))
        reason = "no fragment names this bookie, and every replica is whole"
        if self._wish.dry_run:
            return self._row(key, Outcome.PLANNED, reason, size)
        if not withdraw(self._context, ledger, self._bookie, self._owner.incarnation):
            return self._row(key, Outcome.LEFT, "the ledger was changed meanwhile")
        return self._row(key, Outcome.DELETED, reason, size)

    # Leftovers

    def _sweep(self, ref: LedgerRef, metadata: LedgerMetadata) -> Row | None:
        shares = [
            Share(metadata.quorum, f.ensemble.index(self._bookie), f.first_entry_id, last)
            for f in metadata.fragment_ranges()
            if self._bookie in f.ensemble and (last := f.last_entry_id) is not None
        ]
        before_ms = self._context.earlier_ms() - self._wish.leftovers_after_ms
        swept = self._face.sweep(ref, before_ms, shares, dry_run=self._wish.dry_run)
        if not swept.files:
            return None
        status = Outcome.PLANNED if self._wish.dry_run else Outcome.DELETED
        reason = f"{swept.files} files of writes that were never finished"
        return replace(self._row(ref.key, status, reason, swept.size_bytes), action="sweep")

    # All

    def _read_owner(self) -> _Owner:
        store = self._context.store
        instance_id = store.instance_id()
        cookie = store.read_cookie(self._bookie)
        if cookie is None or not cookie.value.incarnation:
            raise CookieMismatchError(
                f"bookie {self._bookie} has no cookie that says which partition is meant; nothing "
                "was removed. `spark-bookkeeper bookie cookie create` writes it again",
                bookie_id=self._bookie,
            )
        if cookie.value.instance_id != instance_id:
            raise CookieMismatchError(
                f"the cookie of bookie {self._bookie} is of cluster {cookie.value.instance_id}, "
                f"and this is cluster {instance_id}: nothing was removed",
                bookie_id=self._bookie,
            )
        return _Owner(instance_id, cookie.value.incarnation)

    def _row(self, key: LedgerKey, status: Outcome, reason: str | None, size_bytes: int = 0) -> Row:
        return Row(key.ledger_id, "collect", status, reason, source=self._bookie, bytes=size_bytes)
