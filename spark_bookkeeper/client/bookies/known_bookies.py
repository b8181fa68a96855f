"""The bookies a client can reach: where each one's storage is, and who may be chosen.

Registrations say who lives; cookies also know where the dead ones' storage was, which remains
a source to copy from as long as it answers with the right incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.client.bookies.asking import Call, Door, Patience
from spark_bookkeeper.client.bookies.bounded_storage import BoundedStorage
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataFormatError,
    MissingRequirementError,
)
from spark_bookkeeper.metadata.store import BookieRegistry, Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.placement import Candidate
from spark_bookkeeper.runtime.runtime import Runtime

T = TypeVar("T")

OpenStorage = Callable[[str], Storage]
"""Opens the partition at a root URI; the session decides how (options, back ends)."""


class Bookies:
    """Finds bookies by id, and opens their storage once.

    Args:
        config: how long a bookie may be silent.
        roots: root URIs that are known already, so that nobody needs to ask the registry.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        open_storage: OpenStorage,
        runtime: Runtime,
        config: ClientConfig | None = None,
        roots: Mapping[BookieId, str] | None = None,
    ) -> None:
        self._registry = registry
        self._open_storage = open_storage
        self._runtime = runtime
        self._patience = Patience.of(config or ClientConfig())
        self._roots: dict[BookieId, str] = dict(roots or {})
        self._storages: dict[str, BoundedStorage] = {}
        self._looks: dict[BookieId, Call[Marker | None]] = {}

    def registrations(self) -> Mapping[BookieId, Registration]:
        """Bookies that are alive now."""
        return self._learned(self._registry.registrations())

    def last_registrations(self) -> Mapping[BookieId, Registration]:
        """Bookies that were alive when the metadata store answered anything last."""
        return self._learned(self._registry.last_registrations())

    def _learned(self, registrations: Sequence[Registration]) -> Mapping[BookieId, Registration]:
        alive = {r.bookie_id: r for r in registrations}
        self._roots.update({bookie: r.root_uri for bookie, r in alive.items() if r.root_uri})
        return alive

    def known(self) -> Sequence[BookieId]:
        """The bookies that are registered or have a cookie, in order."""
        cookies = {cookie.value.bookie_id for cookie in self._registry.cookies()}
        return sorted(cookies | self.registrations().keys())

    def candidates(self, registrations: Mapping[BookieId, Registration]) -> list[Candidate]:
        """The live bookies in random order, those that are silent last, as placement wants them."""
        candidates = [Candidate(r.bookie_id, r.is_readonly) for r in registrations.values()]
        self._runtime.shuffle(candidates)
        return sorted(candidates, key=lambda candidate: self.is_silent(candidate.bookie_id))

    def is_silent(self, bookie_id: BookieId) -> bool:
        """Whether this client waits for an answer of a bookie for so long that others are better.

        Asks nobody.
        """
        storage = self._storages.get(self._roots.get(bookie_id, ""))
        return storage is not None and storage.door.is_silent

    def silent(self) -> Iterator[tuple[BookieId, str, float]]:
        """The bookies that this client waits for: what has had no answer, for how many seconds."""
        for storage in tuple(self._storages.values()):
            if storage.door.is_silent and (silence := storage.door.silence()) is not None:
                yield BookieId(storage.door.bookie_id), *silence

    def look(self, bookie_ids: Iterable[BookieId]) -> None:
        """Ask each of these bookies for its marker, and wait for none; ``silent`` knows the rest.

        A bookie that has not answered the last look is asked again only as one that hangs is.
        """
        for bookie in bookie_ids:
            last = self._looks.get(bookie)
            if last is not None and not last.is_over and last.left_to_answer() > 0:
                continue
            with suppress(BookieUnavailableError):
                storage = self._bounded(bookie)
                self._looks[bookie] = storage.door.begin(
                    "looking whether it answers",
                    partial(read_marker, storage),
                    self._runtime.condition(),
                    may_wait=False,
                )

    def ineligible(
        self,
        registrations: Mapping[BookieId, Registration],
        needed: int,
        ledger: Ledger | None = None,
        excluded: Mapping[BookieId, str] | None = None,
    ) -> dict[BookieId, str]:
        """Bookies that must not be chosen, with the reason a person is told.

        Args:
            needed: how many will be chosen; when too few are left, the bookies that have a cookie
                but no registration are listed as well, because that is what one wants to know.
            ledger: a ledger they would join. It remembers one incarnation for each bookie id, so
                a bookie that was formatted again since cannot join it under the same id.
            excluded: further ones.
        """
        reasons: dict[BookieId, str] = {}
        for bookie, registration in registrations.items():
            known = ledger.incarnations.get(bookie) if ledger else None
            if not registration.incarnation:
                reasons[bookie] = "no spark_bookkeeper storage (its registration names none)"
            elif known and known != registration.incarnation:
                reasons[bookie] = "was formatted again since this ledger used it"
        reasons.update(excluded or {})
        usable = {bookie for bookie, r in registrations.items() if not r.is_readonly}
        if len(usable - reasons.keys()) < needed:
            for cookie in self._registry.cookies():
                if cookie.value.bookie_id not in registrations:
                    reasons.setdefault(cookie.value.bookie_id, "not registered: down or lost")
        return reasons

    def root_uri(self, bookie_id: BookieId) -> str:
        """Where a bookie's partition is, also of one that is not registered now.

        Raises:
            BookieUnavailableError: neither a registration nor a cookie knows it, or what they
                say cannot be decoded.
        """
        if bookie_id not in self._roots:
            self.registrations()
        if bookie_id not in self._roots:
            try:
                cookie = self._registry.read_cookie(bookie_id)
            except MetadataFormatError as error:
                raise BookieUnavailableError(
                    f"bookie {bookie_id} is not registered, and its cookie does not tell where "
                    f"its storage is: {error.message}",
                    bookie_id=bookie_id,
                ) from error
            if cookie is None:
                raise BookieUnavailableError(
                    f"bookie {bookie_id} is not registered and has no cookie: nobody knows where "
                    "its storage is. Where it is whole, `spark-bookkeeper bookie cookie create` "
                    "makes it known again",
                    bookie_id=bookie_id,
                )
            self._roots[bookie_id] = cookie.value.root_uri
        return self._roots[bookie_id]

    def have_moved(self) -> bool:
        """Ask again where the live bookies are; whether one is elsewhere than was known."""
        before = dict(self._roots)
        self.registrations()
        return any(self._roots[bookie] != uri for bookie, uri in before.items())

    def learn(self, roots: Mapping[BookieId, str]) -> None:
        """Take over root URIs from somebody who asked the registry."""
        self._roots.update(roots)

    def known_roots(self, bookie_ids: Iterable[BookieId]) -> dict[BookieId, str]:
        """The root URIs of those of these bookies that anybody knows."""
        roots: dict[BookieId, str] = {}
        for bookie_id in bookie_ids:
            with suppress(BookieUnavailableError):
                roots[bookie_id] = self.root_uri(bookie_id)
        return roots

    def storage(self, bookie_id: BookieId) -> Storage:
        """The partition of a bookie; no call of it takes for ever.

        Raises:
            BookieUnavailableError: nobody knows where it is.
        """
        return self._bounded(bookie_id)

    def door(self, bookie_id: BookieId) -> Door:
        """Where to ask a bookie for something that takes several calls of its storage.

        Raises:
            BookieUnavailableError: nobody knows where its storage is.
        """
        return self._bounded(bookie_id).door

    def ask(self, log: LedgerLog, purpose: str, run: Callable[[], T]) -> T:
        """What ``run`` returns, which asks one ledger's log on one bookie; see ``Door.ask``."""
        return self.door(BookieId(log.bookie_id)).ask(purpose, run)

    def _bounded(self, bookie_id: BookieId) -> BoundedStorage:
        uri = self.root_uri(bookie_id)
        storage = self._storages.get(uri)
        if storage is None:
            door = Door(bookie_id, uri, self._runtime, self._patience)
            try:
                opened = BoundedStorage(self._open_storage(uri), door)
            except (InvalidArgumentError, MissingRequirementError) as error:
                raise BookieUnavailableError(
                    f"bookie {bookie_id} says that its storage is at {uri!r}, which cannot be "
                    f"opened here: {error.message}",
                    bookie_id=bookie_id,
                ) from error
            # Of two tasks that open it at once, one wins, and both use that.
            storage = self._storages.setdefault(uri, opened)
        return storage

    def log(self, bookie_id: BookieId, ledger: Ledger, incarnation: str | None = None) -> LedgerLog:
        """One ledger on one bookie.

        Args:
            incarnation: for a bookie that the ledger's metadata does not name yet.

        Raises:
            BookieUnavailableError: the bookie is not known, or its incarnation is not.
        """
        expected = incarnation or ledger.incarnations.get(bookie_id)
        if expected is None:
            raise BookieUnavailableError(
                f"ledger {ledger.ledger_id} does not say which incarnation of bookie {bookie_id} "
                "it means",
                bookie_id=bookie_id,
            )
        return LedgerLog(self.storage(bookie_id), bookie_id, expected, ledger.key, ledger.encoding)

    def close(self) -> None:
        """Release every storage; idempotent."""
        for storage in self._storages.values():
            storage.close()
        self._storages.clear()
