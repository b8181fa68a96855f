"""The metadata store in memory: the counterpart of the one in ZooKeeper.

A ``MemoryCluster`` is the content of the servers, and each ``MemoryStore`` is one session with
them. No code here waits, reads a clock or draws random numbers, so a simulation can step through
it. A session with ``faults`` can be disturbed: they are called before and after every operation
with ``("before" | "after", operation, subject)``, where the subject is a ledger or bookie id or
"". They may:

* return: nothing happens, though a simulator may have let others run meanwhile;
* raise ``MetadataUnavailableError`` before: the request was lost;
* raise it after: the effect took place and the answer was lost;
* raise ``Postponed`` before: the request is on its way. The caller gets an error that the outcome
  is unknown. The effect takes place when the test calls the function that was appended to
  ``MemoryCluster.pending``.

Values go through the codec when they are written. So a value that ZooKeeper's bytes cannot hold
is refused here as well.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Literal, TypeVar

from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoClusterError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.metadata.cookie_text import decode_cookie, encode_cookie
from spark_bookkeeper.metadata.service_info import decode_registration, encode_registration
from spark_bookkeeper.metadata.store import (
    Cookie,
    LedgerChange,
    LedgerRange,
    Registration,
    Unchanged,
    Versioned,
)
from spark_bookkeeper.protocol.ids import LEDGER_IDS_END, BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.testing.memory_ballots import MemoryBallots, MemoryVotes
from spark_bookkeeper.testing.memory_registers import MemoryRegisters
from spark_bookkeeper.testing.memory_underreplication import MemoryTasks, MemoryUnderreplication

T = TypeVar("T")

Faults = Callable[[Literal["before", "after"], str, str], None]


class Postponed(Exception):
    """Raised by ``faults`` before an operation: it takes effect later, or never."""


class MemoryCluster:
    """The content of a metadata store's servers; shared by all sessions with them.

    The lock is never held while ``faults`` or a callback runs. So if only one thread runs at a
    time, no thread ever waits for it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledgers: dict[LedgerId, Versioned[LedgerMetadata]] = {}
        self.cookies: dict[BookieId, Versioned[Cookie]] = {}
        self.registrations: dict[BookieId, tuple[Registration, int]] = {}
        """Each with the number of the session that holds it."""
        self.writers: set[tuple[LedgerId, str]] = set()
        """Ledgers whose writers live, each with the writer's token."""
        self.deletion_watchers: dict[tuple[LedgerId, int], Callable[[], None]] = {}
        """Callbacks for deletions, by ledger and session."""
        self.registers: dict[str, Versioned[bytes]] = {}
        self.votes = MemoryVotes(self.lock)
        self.tasks = MemoryTasks()
        self.instance_id: str | None = None
        self.pending: list[Callable[[], None]] = []
        """Postponed requests; a call of one lets it take effect."""
        self.next_ledger_id = 0
        self.used_ids: set[LedgerId] = set()
        """Ids that clients chose; they stay when the ledger is deleted."""
        self.clock_ms: Callable[[], int | None] | None = None
        """The servers' own clock; ``None``: the clock of the calling session."""
        self._numbers = itertools.count(1)
        self._watchers: dict[int, Callable[[], None]] = {}

    def recreate_by_another_tool(
        self, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> Versioned[LedgerMetadata]:
        """Delete a ledger, if it exists, and create it again, as a foreign tool does.

        Such a tool ignores used ids; versions begin at 0 again, and no write counts as ours. Pass
        other metadata, or another nonce or none: the nonce marks a life of the ledger.
        """
        made = Versioned(_as_stored(metadata), 0)
        with self.lock:
            before = self.ledgers.get(ledger_id)
            self.ledgers[ledger_id] = made
        if before is not None:
            self.notify_deleted(ledger_id)
        return made

    def session(
        self, faults: Faults | None = None, wall_ms: Callable[[], int | None] = lambda: None
    ) -> MemoryStore:
        """Return a new session, of a client with this clock."""
        return MemoryStore(self, faults, wall_ms)

    def number(self) -> int:
        """Return a number that is never returned again."""
        return next(self._numbers)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        number = self.number()
        self._watchers[number] = changed

        def stop() -> None:
            self._watchers.pop(number, None)

        return stop

    def notify_deleted(self, ledger_id: LedgerId) -> None:
        """Call the writers' callbacks for a deleted ledger; the lock must not be held."""
        for key in [key for key in list(self.deletion_watchers) if key[0] == ledger_id]:
            self.deletion_watchers.pop(key)()

    def notify(self) -> None:
        """Call every watcher of the registrations; the lock must not be held."""
        for changed in list(self._watchers.values()):
            changed()


class MemoryStore:
    """One session with a ``MemoryCluster``; implements ``MetadataStore``."""

    def __init__(
        self,
        cluster: MemoryCluster,
        faults: Faults | None = None,
        wall_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.cluster = cluster
        self.faults = faults
        self._wall_ms = wall_ms
        self.tell: Callable[[Callable[[], None]], None] = lambda call: call()
        """Makes a callback to this session's client, for example when its ledger was deleted."""
        self._session = cluster.number()
        self._written: set[tuple[LedgerId, str]] = set()
        """Ledgers that are written in this session, each with the writer's token."""
        self._lost: dict[object, Callable[[], None]] = {}
        self._stops: list[Callable[[], None]] = []
        self._is_closed = False
        self.registers = MemoryRegisters(cluster.registers, self._call)
        self.ballots = MemoryBallots(
            cluster.votes,
            self._call,
            lambda: self._session,
            cluster.number,
            lambda gone: self.tell(gone),  # the client may replace ``tell`` later
        )
        self.underreplication = MemoryUnderreplication(
            cluster.tasks, self._call, lambda: self._session, cluster.number
        )

    def __repr__(self) -> str:
        return f"MemoryStore(session={self._session})"

    # Ledgers

    def generate_ledger_id(self) -> LedgerId:
        def effect() -> LedgerId:
            ledger_id = LedgerId(self.cluster.next_ledger_id)
            self.cluster.next_ledger_id += 1
            return ledger_id

        return self._call("generate_ledger_id", "", effect)

    def create_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        *,
        is_generated: bool = False,
        is_kept: bool = False,
        writer: str | None = None,
    ) -> Versioned[LedgerMetadata]:
        if metadata.ctoken is None and metadata.format_version >= 3:
            metadata = replace(metadata, ctoken=self.cluster.number())
        stored = Versioned(_as_stored(metadata), 0, own_writes=1)

        def effect() -> Versioned[LedgerMetadata]:
            there = self.cluster.ledgers.get(ledger_id)
            if there is not None:
                if metadata.ctoken is None or there.value.ctoken != metadata.ctoken:
                    raise refusals.ledger_exists(ledger_id)
                self._show_writer(ledger_id, writer)
                return there
            if ledger_id in self.cluster.used_ids or (
                not (is_generated or is_kept) and ledger_id < self.cluster.next_ledger_id
            ):
                raise refusals.id_used(ledger_id)
            if not is_generated:
                self.cluster.used_ids.add(ledger_id)
            self.cluster.ledgers[ledger_id] = stored
            self._show_writer(ledger_id, writer)
            return stored

        if writer is not None:
            self._written.add((ledger_id, writer))
        try:
            return self._call("create_ledger", str(ledger_id), effect)
        except BaseException:
            if writer is not None:
                self._written.discard((ledger_id, writer))
                self.cluster.writers.discard((ledger_id, writer))
            raise

    def has_used(self, ledger_id: LedgerId, *, is_kept: bool = False) -> bool:
        def effect() -> bool:
            is_given = not is_kept and ledger_id < self.cluster.next_ledger_id
            return is_given or ledger_id in self.cluster.used_ids

        return self._call("has_used", str(ledger_id), effect)

    def use_up_ledger_id(self, ledger_id: LedgerId) -> None:
        self._call("use_up_ledger_id", str(ledger_id), lambda: self.cluster.used_ids.add(ledger_id))

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        return self._call("read_ledger", str(ledger_id), lambda: self._ledger(ledger_id))

    def read_ledger_settled(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        return self.read_ledger(ledger_id)

    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, known: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        token = self.cluster.number() if metadata.format_version >= 3 else None
        value = _as_stored(replace(metadata, ctoken=token))
        stored = Versioned(value, known.version + 1, known.own_writes + 1)

        def effect() -> Versioned[LedgerMetadata]:
            _check_unchanged(ledger_id, self._ledger(ledger_id), known)
            self.cluster.ledgers[ledger_id] = stored
            if stored.value.is_closed:
                self.leave_ledger(ledger_id)
            return stored

        return self._call("write_ledger", str(ledger_id), effect)

    def write_ledgers(
        self, changes: Sequence[LedgerChange]
    ) -> Sequence[Versioned[LedgerMetadata] | BookKeeperError]:
        answers: list[Versioned[LedgerMetadata] | BookKeeperError] = []
        for change in changes:
            try:
                answers.append(self.write_ledger(*change))
            except BookKeeperError as error:
                answers.append(error)
        return answers

    def watch_ledger(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        if any(
            written == ledger_id for written, _ in self._written.copy()
        ):  # a copy, because other threads change it
            self.cluster.deletion_watchers[ledger_id, self._session] = lambda: self.tell(deleted)

    def watch_metadata(self, ledger_id: LedgerId) -> Unchanged:
        ledgers = self.cluster.ledgers
        seen = self._call("watch_metadata", str(ledger_id), lambda: ledgers.get(ledger_id))
        return lambda: ledgers.get(ledger_id) is seen

    def leave_ledger(self, ledger_id: LedgerId) -> None:
        left = {each for each in self._written.copy() if each[0] == ledger_id}
        self._written -= left
        self.cluster.writers -= left
        self.cluster.deletion_watchers.pop((ledger_id, self._session), None)

    def writers(self) -> Set[tuple[LedgerId, str]]:
        return self._call("writers", "", lambda: frozenset(self.cluster.writers))

    def has_writer(self, ledger_id: LedgerId, token: str) -> bool:
        return self._call(
            "has_writer", str(ledger_id), lambda: (ledger_id, token) in self.cluster.writers
        )

    def delete_ledger(self, ledger_id: LedgerId, known: Versioned[LedgerMetadata] | None) -> None:
        def effect() -> bool:
            there = self.cluster.ledgers.get(ledger_id)
            if there is not None and known is not None:
                _check_unchanged(ledger_id, there, known)
            return self.cluster.ledgers.pop(ledger_id, None) is not None

        def announce(is_deleted: bool) -> bool:
            if is_deleted:
                self.cluster.notify_deleted(ledger_id)
            return False

        self._call("delete_ledger", str(ledger_id), effect, announce=announce)

    def ledger_ids(self, among: LedgerRange | None = None) -> Iterator[LedgerId]:
        found = self._call("ledger_ids", "", lambda: sorted(self.cluster.ledgers))
        return (i for i in found if among is None or among.first <= i < among.end)

    def ledger_ranges(self, ledgers: int) -> Iterator[LedgerRange]:
        found = self._call("ledger_ranges", "", lambda: sorted(self.cluster.ledgers))
        firsts = [LedgerId(0), *found[ledgers::ledgers]]
        ends = [*firsts[1:], LEDGER_IDS_END]
        for number, (first, end) in enumerate(zip(firsts, ends, strict=True)):
            count = len(found[number * ledgers : (number + 1) * ledgers])
            yield LedgerRange(first, end, count)

    def read_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, naming: Set[BookieId] | None = None
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | MetadataFormatError | None]]:
        for ledger_id in ledger_ids:
            try:
                found = self.read_ledger(ledger_id)
                if naming is None or not naming.isdisjoint(found.value.members()):
                    yield ledger_id, found
            except NoSuchLedgerError:
                yield ledger_id, None
            except MetadataFormatError as error:
                yield ledger_id, error

    # Bookies

    def require_cluster(self) -> None:
        self._call("require_cluster", "", lambda: None)

    def instance_id(self) -> str:
        return self._call("instance_id", "", self._instance_id)

    def clock_ms(self) -> int | None:
        return self._call("clock_ms", "", self.cluster.clock_ms or self._wall_ms)

    def registrations(self) -> Sequence[Registration]:
        def effect() -> list[Registration]:
            held = self.cluster.registrations
            return [held[bookie_id][0] for bookie_id in sorted(held)]

        return self._call("registrations", "", effect)

    def last_registrations(self) -> Sequence[Registration]:
        return self.registrations()  # here every session sees a change at once

    def register(self, registration: Registration) -> None:
        bookie_id = registration.bookie_id
        stored = decode_registration(
            bookie_id,
            encode_registration(registration),
            bookie_id,
            readonly=registration.is_readonly,
        )

        def effect() -> bool:
            before, holder = self.cluster.registrations.get(bookie_id, (None, self._session))
            if holder != self._session:
                raise refusals.held_elsewhere(bookie_id)
            self.cluster.registrations[bookie_id] = (stored, self._session)
            return before is None or before.is_readonly != stored.is_readonly

        self._call("register", bookie_id, effect, announce=bool)

    def unregister(self, bookie_id: BookieId) -> None:
        def effect() -> bool:
            _, holder = self.cluster.registrations.get(bookie_id, (None, None))
            if holder != self._session:
                return False
            del self.cluster.registrations[bookie_id]
            return True

        self._call("unregister", bookie_id, effect, announce=bool)

    def cookies(self) -> Sequence[Versioned[Cookie]]:
        def effect() -> list[Versioned[Cookie]]:
            return [self.cluster.cookies[bookie_id] for bookie_id in sorted(self.cluster.cookies)]

        return self._call("cookies", "", effect)

    def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        return self._call("read_cookie", bookie_id, lambda: self.cluster.cookies.get(bookie_id))

    def cookie_version(self, bookie_id: BookieId) -> int | None:
        found = self.read_cookie(bookie_id)
        return None if found is None else found.version

    def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        bookie_id = cookie.bookie_id
        stored = decode_cookie(encode_cookie(cookie), bookie_id)

        def effect() -> None:
            self._check_cookie(bookie_id, version)
            next_version = 0 if version is None else version + 1
            self.cluster.cookies[bookie_id] = Versioned(stored, next_version)

        self._call("write_cookie", bookie_id, effect)

    def delete_cookie(self, bookie_id: BookieId, version: int) -> None:
        def effect() -> None:
            if bookie_id in self.cluster.cookies:
                self._check_cookie(bookie_id, version)
                del self.cluster.cookies[bookie_id]

        self._call("delete_cookie", bookie_id, effect)

    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        stop = self.cluster.watch(changed)
        self._stops.append(stop)
        return stop

    # The session

    def initialize_cluster(self) -> str:
        def effect() -> str:
            if self.cluster.instance_id is not None:
                raise refusals.cluster_exists("this store")
            self.cluster.instance_id = f"00000000-0000-4000-8000-{self.cluster.number():012x}"
            return self.cluster.instance_id

        return self._call("initialize_cluster", "", effect, needs_cluster=False)

    def format_cluster(self) -> str:
        def effect() -> str:
            self._clear()
            self.cluster.instance_id = f"00000000-0000-4000-8000-{self.cluster.number():012x}"
            return self.cluster.instance_id

        return self._call("format_cluster", "", effect)

    def remove_cluster(self) -> None:
        def effect() -> None:
            self._clear()
            self.cluster.registrations.clear()
            self.cluster.instance_id = None

        self._call("remove_cluster", "", effect)

    def _clear(self) -> None:
        cluster = self.cluster
        for gone in (
            cluster.ledgers,
            cluster.cookies,
            cluster.registers,
            cluster.writers,
            cluster.used_ids,
        ):
            gone.clear()
        cluster.next_ledger_id = 0
        cluster.tasks = MemoryTasks()

    @property
    def session_number(self) -> int:
        """The number of the store's current session."""
        return self._session

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._lost[key] = lost

        def stop() -> None:
            self._lost.pop(key, None)

        return stop

    def expire(self) -> None:
        """End the session as the servers would: registrations go, and a new session begins."""
        before = self._session
        self._end_session()
        self._session = self.cluster.number()
        with self.cluster.lock:
            self.cluster.writers |= self._written
            for ledger_id, _ in sorted(self._written):
                deleted = self.cluster.deletion_watchers.pop((ledger_id, before), None)
                if deleted is not None:
                    self.cluster.deletion_watchers[ledger_id, self._session] = deleted
        for lost in list(self._lost.values()):
            lost()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for stop in self._stops:
                stop()
            for ledger_id, _ in sorted(self._written):
                self.leave_ledger(ledger_id)
            self._end_session()

    # Inside

    def _call(
        self,
        operation: str,
        subject: str,
        effect: Callable[[], T],
        *,
        needs_cluster: bool = True,
        announce: Callable[[T], bool] | None = None,
    ) -> T:
        """Run one operation: faults, the effect in one step, callbacks, faults."""

        def take_effect() -> T:
            with self.cluster.lock:
                if needs_cluster:
                    self._instance_id()
                result = effect()
            if announce is not None and announce(result):
                self.cluster.notify()
            return result

        if self._is_closed:
            raise MetadataUnavailableError("the metadata store was closed; connect again")
        if self.faults is not None:
            try:
                self.faults("before", operation, subject)
            except Postponed as postponed:
                self.cluster.pending.append(lambda: _ignoring_refusal(take_effect))
                raise MetadataUnavailableError(
                    f"{operation} {subject}: no answer; it may or may not take effect"
                ) from postponed
        try:
            return take_effect()
        finally:
            if self.faults is not None:
                self.faults("after", operation, subject)

    def _instance_id(self) -> str:
        if self.cluster.instance_id is None:
            raise refusals.no_cluster("this store")
        return self.cluster.instance_id

    def _show_writer(self, ledger_id: LedgerId, writer: str | None) -> None:
        """Show that a writer lives, unless its create failed before it took effect."""
        if writer is not None and (ledger_id, writer) in self._written:
            self.cluster.writers.add((ledger_id, writer))

    def _ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        try:
            return self.cluster.ledgers[ledger_id]
        except KeyError:
            raise refusals.no_such_ledger(ledger_id) from None

    def _check_cookie(self, bookie_id: BookieId, version: int | None) -> None:
        there = self.cluster.cookies.get(bookie_id)
        found = None if there is None else there.version
        if found != version:
            raise refusals.cookie_conflict(bookie_id, version, found)

    def _end_session(self) -> None:
        with self.cluster.lock:
            held = [b for b, (_, s) in self.cluster.registrations.items() if s == self._session]
            for bookie_id in held:
                del self.cluster.registrations[bookie_id]
            self.cluster.writers -= self._written
            self.cluster.votes.end_session(self._session)
            told = self.cluster.tasks.end_session(self._session)
        for changed in told:
            changed()
        if held:
            self.cluster.notify()
        self.cluster.votes.tell()


def _as_stored(metadata: LedgerMetadata) -> LedgerMetadata:
    return decode_ledger(encode_ledger(metadata), "memory")


def _check_unchanged(
    ledger_id: LedgerId, found: Versioned[LedgerMetadata], known: Versioned[LedgerMetadata]
) -> None:
    """Raise unless the found version is the known one, as a compare-and-swap does."""
    if (found.version, found.own_writes) != (known.version, known.own_writes):
        raise refusals.ledger_conflict(ledger_id, known.version, found.version)


def _ignoring_refusal(take_effect: Callable[[], object]) -> None:
    """Run a late request; a refusal is ignored, because its caller waits no longer."""
    try:
        take_effect()
    except (LedgerExistsError, NoSuchLedgerError, VersionConflictError):
        return
    except (CookieMismatchError, InvalidArgumentError, NoClusterError):
        return
