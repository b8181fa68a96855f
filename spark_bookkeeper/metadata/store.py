"""The interface of the metadata store, for every back end.

Two back ends exist: ``zookeeper/zookeeper_store.py`` and ``testing/memory_store.py`` (the twin, for
simulation). Both inherit ``testing/conformance/metadata.py``.

A method that changes something either did it or raises. After ``MetadataUnavailableError`` from
such a method the change MAY have happened (SLOT-LOG rule R14: re-read and compare).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError
from spark_bookkeeper.metadata.versioned import Versioned as Versioned
from spark_bookkeeper.protocol.balance import usable_bytes
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

if TYPE_CHECKING:
    from spark_bookkeeper.metadata.election import Ballots
    from spark_bookkeeper.metadata.underreplication import Underreplication

T = TypeVar("T")


READONLY_REASON: Final = "spark-bookkeeper.readonly_reason"
"""The property with the reason why a bookie is read-only, written by its agent for people."""

READONLY_CAUSES: Final = "spark-bookkeeper.readonly_causes"
"""The property with the same reason for programs: words separated by commas."""

READONLY_BELOW: Final = "spark-bookkeeper.readonly_below_free_bytes"
"""The property with the number of free bytes below which the agent makes its bookie read-only."""

CLOCK_AHEAD: Final = "spark-bookkeeper.clock_ahead_s"
"""The property with the seconds that the agent's clock is ahead of the store's."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The description that a live bookie publishes (BookKeeper's ``BookieServiceInfo``)."""

    bookie_id: BookieId
    root_uri: str
    """fsspec URI of the storage partition."""
    incarnation: str
    """The random name of this formatting of the partition; '' if a foreign bookie has none."""
    is_readonly: bool = False
    rack: str = "/default-rack"
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    total_inodes: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """All other properties, unchanged."""

    @property
    def readonly_reason(self) -> str | None:
        """Why the bookie takes no new data, for people; ``None`` if its agent does not say."""
        return self.properties.get(READONLY_REASON)

    @property
    def readonly_causes(self) -> frozenset[str]:
        """The same reason for programs (``agent/health.py`` lists the words)."""
        return frozenset(self.properties.get(READONLY_CAUSES, "").split(",")) - {""}

    @property
    def usable_bytes(self) -> int | None:
        """The free bytes that small files can use; ``None``: unknown or unlimited."""
        if not (self.free_bytes and self.total_bytes and self.total_inodes):
            return self.free_bytes
        inodes = None if self.free_inodes is None else (self.free_inodes, self.total_inodes)
        return usable_bytes((self.free_bytes, self.total_bytes), inodes)

    def told(self, name: str) -> int | None:
        """Return a whole number among the properties; ``None`` if its agent publishes none."""
        value = self.properties.get(name, "")
        return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None  # any text can be there


@dataclass(frozen=True, slots=True)
class Cookie:
    """The permanent proof that a storage partition belongs to a bookie id."""

    bookie_id: BookieId
    root_uri: str
    incarnation: str
    """'' in a cookie that Apache BookKeeper wrote."""
    instance_id: str | None
    """The cluster's INSTANCEID when the partition was formatted."""


Unchanged = Callable[[], bool]
"""Whether a watched value is unchanged since the watch began, as far as this session knows.

A call sends no request. It returns false after a change and after a loss of the connection. Then
set a new watch first and read again after it. So a value that was read after the watch began is
current as long as this is true.
"""


class Registers(Protocol):
    """Our named values under compare-and-swap (``registers.py``).

    Every method raises ``MetadataUnavailableError`` when no answer comes; a change may have
    happened then.
    """

    def read(self, name: str) -> Versioned[bytes] | None:
        """Return the newest value; ``None`` if no such register exists.

        The value includes every change that was confirmed to any client before this call. Later
        reads of this session, of ledgers too, are no older than that.
        """

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, Versioned[bytes] | None]]:
        """Do the same for many, in order and pipelined; values may be older than ``read``'s."""

    def create(self, name: str, data: bytes) -> Versioned[bytes]:
        """Create a register; one with the same bytes counts as made by an earlier attempt.

        Raises:
            VersionConflictError: a register of that name exists with other bytes.
        """

    def write(self, name: str, data: bytes, version: int) -> Versioned[bytes]:
        """Replace the value by compare-and-swap.

        Raises:
            VersionConflictError: it has another version or was deleted; nothing was written.
        """

    def delete(self, name: str, version: int | None = None) -> None:
        """Delete a register with any value; a register that does not exist counts as deleted.

        Args:
            name: of the register.
            version: delete this version only. A register that is made again has its versions anew.

        Raises:
            VersionConflictError: it has another version; nothing was deleted.
        """

    def names(self, parent: str) -> Sequence[str]:
        """Return the last parts of the names of all registers directly below ``parent``, sorted."""

    def watch(self, name: str) -> Unchanged:
        """Begin to watch a register, which need not exist."""


class LedgerRange(NamedTuple):
    """A range of adjacent ledger ids."""

    first: LedgerId
    end: int
    """The first id after the range."""
    ledgers: int
    """The number of ledgers in it when the range was made."""


class LedgerChange(NamedTuple):
    """The arguments of one ``write_ledger``."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    known: Versioned[LedgerMetadata]


class LedgerStore(Protocol):
    """Ledger metadata under compare-and-swap."""

    def generate_ledger_id(self) -> LedgerId:
        """Return a ledger id that was never given out before."""

    def create_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        *,
        is_generated: bool = False,
        is_kept: bool = False,
        writer: str | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Create a ledger; a create with a lost answer is recognised by its cToken.

        No id is used twice, even after its ledger was deleted (SLOT-LOG rule R16). A chosen id
        leaves a permanent mark, written in the same transaction as the ledger.

        Args:
            is_generated: the id comes from ``generate_ledger_id``, and no create with a known
                answer has used it.
            is_kept: the id came from ``generate_ledger_id`` earlier. Its client made no ledger with
                it and kept it for restores (``restores.py``). It is marked like a chosen id.
            writer: hexadecimal token of this life of the ledger. From now on this session is shown
                as a writer of the ledger, until it closes or leaves the ledger, or ends.

        Raises:
            LedgerExistsError: another client has a ledger with this id, or the id was used before.
                If it was generated, generate the next one.
            MetadataUnavailableError: it may or may not have been created.
        """

    def has_used(self, ledger_id: LedgerId, *, is_kept: bool = False) -> bool:
        """Return whether an id was given out, chosen or used up, so that no create may choose it.

        Args:
            is_kept: as for ``create_ledger``: an id that was only given out does not count as used.
        """

    def use_up_ledger_id(self, ledger_id: LedgerId) -> None:
        """Prevent all later creates of a ledger with this id; idempotent.

        An existing ledger stays. If ``read_ledger_settled`` finds none after this call, no ledger
        with this id will ever exist.
        """

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Return a ledger's metadata. Raises ``NoSuchLedgerError`` if no such ledger exists."""

    def read_ledger_settled(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Do the same, with every change that was confirmed to any client before this call.

        Use it before a step that cannot be undone: ``read_ledger`` may return an earlier state,
        although it never misses a ledger that exists.
        """

    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, known: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        """Replace metadata by compare-and-swap. Callers use ``update.update_ledger``, which
        retries.

        Args:
            known: what was read before; its version and the count of our writes are compared.

        Raises:
            VersionConflictError: another client wrote or made it again; nothing was written.
            NoSuchLedgerError: it was deleted.
            MetadataUnavailableError: it may or may not have been written.
        """

    def write_ledgers(
        self, changes: Sequence[LedgerChange]
    ) -> Sequence[Versioned[LedgerMetadata] | BookKeeperError]:
        """Do ``write_ledger`` for many in one batch, tried once; return the answers in order.

        An error is returned, not raised. After any error the outcome is unknown: change that ledger
        alone, through ``update.update_ledger`` (SLOT-LOG rule R14).
        """

    def watch_ledger(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        """Call ``deleted`` once, from any thread, after the deletion of a ledger.

        Only for a ledger that this session writes. The call comes soon, or when the store answers
        again. ``leave_ledger`` ends the watch.
        """

    def watch_metadata(self, ledger_id: LedgerId) -> Unchanged:
        """Begin to watch a ledger's metadata; the ledger need not exist."""

    def leave_ledger(self, ledger_id: LedgerId) -> None:
        """End this session's writing of the ledger. Neither waits nor raises."""

    def writers(self) -> Set[tuple[LedgerId, str]]:
        """Return the ledgers with living writers, with tokens, for people (SLOT-LOG rule R17).

        Ledger metadata read before this call is no newer than the result.
        """

    def has_writer(self, ledger_id: LedgerId, token: str) -> bool:
        """Return whether one writer lives, after all confirmed changes; else as ``writers``."""

    def delete_ledger(self, ledger_id: LedgerId, known: Versioned[LedgerMetadata] | None) -> None:
        """Delete a ledger as it was read; a ledger that does not exist counts as deleted.

        Callers use ``update.delete_ledger``, which retries.

        Args:
            known: compared as by ``write_ledger``. ``None`` is for a ledger that cannot be decoded:
                it is deleted without a comparison.

        Raises:
            VersionConflictError: it has changed since it was read; nothing was deleted.
            MetadataError: another client made a node below the ledger's; nothing was deleted.
            MetadataUnavailableError: it may or may not have been deleted.
        """

    def ledger_ids(self, among: LedgerRange | None = None) -> Iterator[LedgerId]:
        """Yield every ledger id, ascending, read in bounded pieces.

        Args:
            among: only the ids of this range, including ledgers made since the range was.
        """

    def ledger_ranges(self, ledgers: int) -> Iterator[LedgerRange]:
        """Yield ranges that cover all possible ids, ascending, without reading the ids of ledgers.

        Args:
            ledgers: the most ledgers in a range; 10,000 if that is more.
        """

    def read_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, naming: Set[BookieId] | None = None
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | MetadataFormatError | None]]:
        """Yield the metadata of many ledgers, pipelined; ``None`` for a ledger deleted meanwhile.

        A ledger that cannot be decoded yields its error and does not delay the others.

        Args:
            naming: leave out the ledgers that name none of these bookies in any fragment. They are
                read and checked, but no value is built.
        """


class BookieRegistry(Protocol):
    """The bookies of the cluster: live ones (registrations) and known ones (cookies)."""

    def require_cluster(self) -> None:
        """Raise ``NoClusterError`` if no cluster exists."""

    def instance_id(self) -> str:
        """Return the cluster's INSTANCEID.

        Raises:
            NoClusterError: no cluster exists.
            MetadataFormatError: the stored value is not a valid name. Only agents need it.
        """

    def clock_ms(self) -> int | None:
        """Return the time on the store's own clock, in milliseconds since the epoch.

        The call creates a node and removes it again. ``None``: the time could not be read. On
        ZooKeeper that is so until the cluster's first ledger is made: this call must leave nothing
        behind, so it does not create the node's parent, and without a ledger no time can mislead.
        """

    def registrations(self) -> Sequence[Registration]:
        """Return the live bookies, writable and read-only, ordered by id.

        A bookie whose registration cannot be decoded is returned without storage, so it is not
        chosen. Nodes whose names are not bookie ids are left out, with a warning in the log.
        """

    def last_registrations(self) -> Sequence[Registration]:
        """Return the same, as of the last answer to any request of this session.

        Use it to choose bookies after another request; a stale choice costs an ensemble change.
        """

    def register(self, registration: Registration) -> None:
        """Create or replace the ephemeral registration held by this session.

        Raises:
            CookieMismatchError: another session holds it, and kept it for longer than a session can
                live without its client.
        """

    def unregister(self, bookie_id: BookieId) -> None:
        """Remove this session's registration; do nothing if none exists."""

    def cookies(self) -> Sequence[Versioned[Cookie]]:
        """Return every cookie, ordered by bookie id: all known bookies, including dead ones.

        Cookies that cannot be decoded are left out, with a warning in the log.
        """

    def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        """Return one bookie's cookie. Raises ``MetadataFormatError`` if it cannot be decoded."""

    def cookie_version(self, bookie_id: BookieId) -> int | None:
        """Return the version of a bookie's cookie, even if the cookie cannot be decoded."""

    def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        """Create the cookie (``version=None``) or replace the one with that version.

        Raises:
            VersionConflictError: it exists, or has another version.
        """

    def delete_cookie(self, bookie_id: BookieId, version: int) -> None:
        """Delete a cookie. Raises ``VersionConflictError`` if it has another version."""

    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` (from any thread) after each change; return a function that stops it."""


class MetadataStore(LedgerStore, BookieRegistry, Protocol):
    """The whole store, over one connection."""

    def initialize_cluster(self) -> str:
        """Create the tree of a new cluster and return its INSTANCEID.

        Raises:
            InvalidArgumentError: a cluster exists already; nothing was changed.
        """

    def format_cluster(self) -> str:
        """Remove all ledgers, cookies and tasks, and return the new INSTANCEID.

        Ids begin at 0 again. The caller must have made sure that no bookie and no client is at work
        (``agent/clearing.py``). If the call is interrupted, repeat it.
        """

    def remove_cluster(self) -> None:
        """Remove everything, the cluster itself last; otherwise as ``format_cluster``.

        Raises:
            InvalidArgumentError: the tree holds nodes of another program; nothing was changed.
        """

    @property
    def registers(self) -> Registers:
        """Our values under compare-and-swap, see ``registers.py``."""

    @property
    def ballots(self) -> Ballots:
        """The nodes of leader elections, see ``election.py``."""

    @property
    def underreplication(self) -> Underreplication:
        """The ledgers that lack replicas, see ``underreplication.py``."""

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call ``lost`` after each end of a session, when its ephemeral nodes no longer exist;
        return a function that stops it.
        """

    def close(self) -> None:
        """End the session; idempotent."""
