"""The bookies that a client can reach: where their storage is, and which may be chosen.

Registrations list the live bookies. Cookies also say where the storage of dead ones was, which can
still be copied from as long as it answers with the right incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from spark_bookkeeper.bookie.bookie import Bookie, LedgerRef
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataError,
    MetadataFormatError,
    MissingRequirementError,
)
from spark_bookkeeper.metadata.store import BookieRegistry, Registration
from spark_bookkeeper.protocol.archive import Archived, archived_of
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import is_table
from spark_bookkeeper.protocol.placement import Candidate, drawn
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.call import Call
from spark_bookkeeper.storage.retry_policy import Patience

T = TypeVar("T")

TABLE_ROOT: Final = "table+"
"""The prefix of a root URI if a table stands for a bookie; the table's URI follows."""

_OTHER_STORAGE: Final = "its cookie names another storage than its registration (see `doctor`)"

OpenBookie = Callable[[str, BookieClient], Bookie]
"""Opens the bookie at a root URI. No call of the bookie lasts for ever, because its bookie client
watches the calls of its storage. The session decides how (options, back ends)."""


class Bookies:
    """Finds bookies by id, and opens each once.

    Args:
        config: how long a bookie may be silent.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        open_bookie: OpenBookie,
        runtime: Runtime,
        config: ClientConfig | None = None,
    ) -> None:
        self._registry = registry
        self._open_bookie = open_bookie
        self._runtime = runtime
        self._patience = Patience.of(config or ClientConfig())
        self._roots: dict[BookieId, str] = {}
        self._opened: dict[str, tuple[BookieClient, Bookie]] = {}
        self._looks: dict[BookieId, Call[None]] = {}
        self._agreed: set[tuple[BookieId, str, str]] = set()
        """Registrations that a cookie has confirmed: id, incarnation and root."""

    def registrations(self) -> Mapping[BookieId, Registration]:
        """Return the bookies that are alive now."""
        return self._learned(self._registry.registrations())

    def last_registrations(self) -> Mapping[BookieId, Registration]:
        """Return the bookies that were alive at the metadata store's last answer of any kind."""
        return self._learned(self._registry.last_registrations())

    def _learned(self, registrations: Sequence[Registration]) -> Mapping[BookieId, Registration]:
        alive = {r.bookie_id: r for r in registrations}
        self._roots.update({bookie: r.root_uri for bookie, r in alive.items() if r.root_uri})
        return alive

    def hosts(self) -> Mapping[BookieId, str]:
        """Return the hosts of live bookies that are not in buckets, by their ids; make no call."""
        alive = self.last_registrations()
        on_disk = (b for b, each in alive.items() if each.root_uri.startswith(("/", "file:")))
        return {bookie: bookie.rpartition(":")[0] for bookie in on_disk}

    def known(self) -> Sequence[BookieId]:
        """Return the bookies that are registered or have a cookie, in order."""
        cookies = {cookie.value.bookie_id for cookie in self._registry.cookies()}
        return sorted(cookies | self.registrations().keys())

    def candidates(self, registrations: Mapping[BookieId, Registration]) -> list[Candidate]:
        """Return live bookies in random order, by free space (``drawn``), with silent ones last."""
        candidates = [
            Candidate(each, r.is_readonly, r.rack, self.is_silent(each), r.usable_bytes)
            for each, r in registrations.items()
        ]
        self._runtime.shuffle(candidates)
        if any(each.free_bytes for each in candidates):  # else there are no weights
            candidates = drawn(self._runtime.token(), candidates)
        return sorted(candidates, key=lambda candidate: candidate.is_silent)

    def is_silent(self, bookie_id: BookieId) -> bool:
        """Whether this client has waited for a bookie so long that others are better.

        Makes no call.
        """
        opened = self._opened.get(self._roots.get(bookie_id, ""))
        return opened is not None and opened[0].is_silent

    def silent(self) -> Iterator[tuple[BookieId, str, float]]:
        """Yield the late bookies, each with the call that has no answer and its seconds."""
        for bookie_client, _ in tuple(self._opened.values()):
            if bookie_client.is_silent and (silence := bookie_client.silence()) is not None:
                yield BookieId(bookie_client.bookie_id), *silence

    def look(self, bookie_ids: Iterable[BookieId]) -> None:
        """Start a call to each of these bookies, without waiting; ``silent`` yields the late ones.

        If the last look at a bookie has no answer, it is repeated only after its time-out.
        """
        for bookie in bookie_ids:
            last = self._looks.get(bookie)
            if last is not None and not last.is_over and last.left_to_answer() > 0:
                continue
            with suppress(BookieUnavailableError):
                bookie_client, opened = self._open(bookie)
                self._looks[bookie] = bookie_client.begin(
                    "looking whether it answers",
                    opened.answer,
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
        """Return bookies that must not be chosen, with the reason for people.

        Args:
            needed: how many will be chosen; when too few are left, the bookies that have a cookie
                but no registration are listed as well, because a reader of the error needs them.
            ledger: a ledger that they would join. It remembers one incarnation for each bookie id,
                so a bookie that was formatted again since cannot join it under the same id.
                ``None`` is a new ledger, which gets no bookie whose cookie contradicts its
                registration. The cookies are read once for each registration.
            excluded: further ones.
        """
        reasons: dict[BookieId, str] = {}
        for bookie, registration in registrations.items():
            known = ledger.incarnations.get(bookie) if ledger else None
            if not registration.incarnation:
                reasons[bookie] = "no spark_bookkeeper storage (its registration names none)"
            elif known and known != registration.incarnation:
                reasons[bookie] = "was formatted again since this ledger used it"
        if ledger is None:
            reasons.update(dict.fromkeys(self._doubtful(registrations), _OTHER_STORAGE))
        archived = _archived(ledger) if ledger else None
        if archived is not None:  # copies made there now would be dropped with the others
            reasons.update(dict.fromkeys(archived.dropping, "is to drop what it has of the ledger"))
        reasons.update(excluded or {})
        usable = {bookie for bookie, r in registrations.items() if not r.is_readonly}
        if len(usable - reasons.keys()) < needed:
            for cookie in self._registry.cookies():
                if cookie.value.bookie_id not in registrations:
                    reasons.setdefault(cookie.value.bookie_id, "not registered: down or lost")
        return reasons

    def _doubtful(self, registrations: Mapping[BookieId, Registration]) -> set[BookieId]:
        """Return bookies that are registered with another storage than their cookies name.

        Their agents will notice soon, or no agent has registered them. A bookie without a cookie is
        not doubtful, and none is if the registry does not answer.
        """
        said = {
            bookie: (bookie, each.incarnation, each.root_uri.rstrip("/"))
            for bookie, each in registrations.items()
            if each.incarnation and not each.is_readonly  # others are not chosen anyway
        }
        asked = {bookie: each for bookie, each in said.items() if each not in self._agreed}
        doubtful: set[BookieId] = set()
        with suppress(MetadataError):
            cookies = [found.value for found in self._registry.cookies()] if asked else []
            for cookie in cookies:  # Apache BookKeeper's own name no incarnation
                named = (cookie.bookie_id, cookie.incarnation, cookie.root_uri.rstrip("/"))
                if cookie.incarnation and asked.get(cookie.bookie_id, named) != named:
                    doubtful.add(cookie.bookie_id)
            self._agreed.update(each for bookie, each in asked.items() if bookie not in doubtful)
        return doubtful

    def root_uri(self, bookie_id: BookieId) -> str:
        """Return where a bookie's partition is, even if the bookie is not registered now.

        Raises:
            BookieUnavailableError: neither a registration nor a cookie knows it, or they cannot be
                decoded.
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
        """Read the registrations again; return whether a live bookie has moved."""
        before = dict(self._roots)
        self.registrations()
        return any(self._roots[bookie] != uri for bookie, uri in before.items())

    def learn(self, roots: Mapping[BookieId, str]) -> None:
        """Add root URIs that were read from the registry elsewhere."""
        self._roots.update(roots)

    def known_roots(self, bookie_ids: Iterable[BookieId]) -> dict[BookieId, str]:
        """Return the root URIs of those of these bookies that have a known one."""
        roots: dict[BookieId, str] = {}
        for bookie_id in bookie_ids:
            with suppress(BookieUnavailableError):
                roots[bookie_id] = self.root_uri(bookie_id)
        return roots

    def bookie(self, bookie_id: BookieId) -> Bookie:
        """Return a session with a bookie, for a caller that does one thing there.

        Raises:
            BookieUnavailableError: its storage is not known.
        """
        return self._open(bookie_id)[1].session()

    def replica(
        self, bookie_id: BookieId, ledger: Ledger, incarnation: str | None = None
    ) -> Replica:
        """Return one ledger on one bookie, in a session of its own.

        Args:
            incarnation: for a bookie that the ledger's metadata does not name yet.

        Raises:
            BookieUnavailableError: the bookie is not known, or its incarnation is not.
        """
        ref = self.ref(bookie_id, ledger, incarnation)  # also learns where a table is
        return Replica(self.bookie(bookie_id), ref)

    def ref(self, bookie_id: BookieId, ledger: Ledger, incarnation: str | None = None) -> LedgerRef:
        """Return a reference to a ledger for calls of a bookie; as ``replica``.

        If copies were removed from the bookie before, or the ledger means another formatting of it,
        only new copies count for a caller that is about to publish the bookie [copy_era].
        """
        if is_table(bookie_id) and (archived := _archived(ledger)) is not None:
            self._roots[bookie_id] = TABLE_ROOT + archived.table
        expected = incarnation or ledger.incarnations.get(bookie_id)
        if expected is None:
            raise BookieUnavailableError(
                f"ledger {ledger.ledger_id} does not say which incarnation of bookie {bookie_id} "
                "it means",
                bookie_id=bookie_id,
            )
        cleared = ledger.times_cleared(bookie_id, expected)
        named = ledger.incarnations.get(bookie_id, expected)
        era_alone = incarnation is not None and (cleared > 0 or named != expected)
        return LedgerRef(ledger.key, expected, ledger.encoding, cleared, era_alone)

    def bookie_client(self, bookie_id: BookieId) -> BookieClient:
        """Return the bookie client, for tasks that take several calls of the bookie's storage.

        Raises:
            BookieUnavailableError: its storage is not known.
        """
        return self._open(bookie_id)[0]

    def ask(self, replica: Replica, purpose: str, run: Callable[[], T]) -> T:
        """Return the result of ``run``, which calls this bookie; see ``BookieClient.ask``."""
        return self.bookie_client(BookieId(replica.bookie_id)).ask(purpose, run)

    def ask_both(self, source: Replica, target: Replica, purpose: str, run: Callable[[], T]) -> T:
        """Return the result of ``run``, which calls the bookies of two replicas; see
        ``BookieClient.ask_with``.
        """
        other = self.bookie_client(BookieId(source.bookie_id))
        return self.bookie_client(BookieId(target.bookie_id)).ask_with(other, purpose, run)

    def _open(self, bookie_id: BookieId) -> tuple[BookieClient, Bookie]:
        uri = self.root_uri(bookie_id)
        found = self._opened.get(uri)
        if found is None:
            bookie_client = BookieClient(bookie_id, uri, self._runtime, self._patience)
            try:
                bookie = self._open_bookie(uri, bookie_client)
            except (InvalidArgumentError, MissingRequirementError) as error:
                raise BookieUnavailableError(
                    f"bookie {bookie_id} says that its storage is at {uri!r}, which cannot be "
                    f"opened here: {error.message}",
                    bookie_id=bookie_id,
                ) from error
            # If two tasks open it at once, both use the one that was first.
            found = self._opened.setdefault(uri, (bookie_client, bookie))
            if found[1] is not bookie:
                bookie.close()
        return found

    def close(self) -> None:
        """Release every bookie; idempotent."""
        for _, bookie in self._opened.values():
            bookie.close()
        self._opened.clear()


def _archived(ledger: Ledger) -> Archived | None:
    """Return the table that stands for copies. Raises ``BookieUnavailableError`` if unreadable."""
    try:
        return archived_of(ledger.metadata)
    except MetadataFormatError as error:
        raise BookieUnavailableError(
            error.message, bookie_id=f"ledger {ledger.ledger_id}"
        ) from error
