"""What the metadata store offers, whatever it is made of.

Two back ends: ``zookeeper/zookeeper_store.py`` and ``testing/memory_store.py`` (the twin, for
simulation). Both inherit ``testing/conformance/metadata.py``.

A method that changes something either did it, or raises. ``MetadataUnavailableError`` from
such a method means that it MAY have happened (SLOT-LOG rule R14: re-read and compare).
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
"""The property in which an agent says why its bookie is read-only."""

READONLY_CAUSES: Final = "spark-bookkeeper.readonly_causes"
"""The property in which it says the same for programs: words with commas between them."""

READONLY_BELOW: Final = "spark-bookkeeper.readonly_below_free_bytes"
"""The property in which an agent says with how little free space its bookie becomes read-only."""

CLOCK_AHEAD: Final = "spark-bookkeeper.clock_ahead_s"
"""The property in which an agent says how far its machine's clock is ahead of the store's."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a live bookie says of itself (BookKeeper's ``BookieServiceInfo``)."""

    bookie_id: BookieId
    root_uri: str
    """fsspec URI of the storage partition."""
    incarnation: str
    """Random name of this formatting of the partition; '' where a foreign bookie has none."""
    is_readonly: bool = False
    rack: str = "/default-rack"
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    total_inodes: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    """Everything else, kept as it was."""

    @property
    def readonly_reason(self) -> str | None:
        """Why it takes no new data, where its agent says so; for people."""
        return self.properties.get(READONLY_REASON)

    @property
    def readonly_causes(self) -> frozenset[str]:
        """The same for programs (``agent/health.py`` has them)."""
        return frozenset(self.properties.get(READONLY_CAUSES, "").split(",")) - {""}

    @property
    def usable_bytes(self) -> int | None:
        """Free bytes, as far as there are inodes for them; ``None``: not known, or without end."""
        if not (self.free_bytes and self.total_bytes and self.total_inodes):
            return self.free_bytes
        inodes = None if self.free_inodes is None else (self.free_inodes, self.total_inodes)
        return usable_bytes((self.free_bytes, self.total_bytes), inodes)

    def told(self, name: str) -> int | None:
        """A whole number among the properties; ``None``: its agent says none."""
        value = self.properties.get(name, "")
        return int(value) if re.fullmatch(r"-?\d{1,18}", value) else None  # it may be anything


@dataclass(frozen=True, slots=True)
class Cookie:
    """Proof that a storage partition and a bookie id belong together, kept for ever."""

    bookie_id: BookieId
    root_uri: str
    incarnation: str
    """'' in cookies that Apache BookKeeper wrote."""
    instance_id: str | None
    """The cluster's INSTANCEID when the partition was formatted."""


Unchanged = Callable[[], bool]
"""Whether nothing became of something since it began to be watched, as far as the session was told.

Asks nobody, and costs no request. It is false after a change, and after the connection was lost:
read again then, and watch again before that. So what was read after the watching began holds as
long as this is true.
"""


class Registers(Protocol):
    """Named values of ours under compare-and-swap (``registers.py``).

    Every method raises ``MetadataUnavailableError`` when there is no answer; a change may have
    happened then.
    """

    def read(self, name: str) -> Versioned[bytes] | None:
        """The newest value, ``None`` if there is no such register.

        As it is after every change that anybody was told of before this call. What this session
        reads afterwards, ledgers too, is no older than that.
        """

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, Versioned[bytes] | None]]:
        """The same for many, in order and pipelined; each may be a little older than ``read``'s."""

    def create(self, name: str, data: bytes) -> Versioned[bytes]:
        """Make a register. One that has these very bytes counts as made by an earlier attempt.

        Raises:
            VersionConflictError: there is one of that name, with other bytes.
        """

    def write(self, name: str, data: bytes, version: int) -> Versioned[bytes]:
        """Compare-and-swap.

        Raises:
            VersionConflictError: it has another version, or is gone; nothing was written.
        """

    def delete(self, name: str, version: int | None = None) -> None:
        """Remove a register, whatever it holds; one that is not there counts as removed.

        Args:
            name: of the register.
            version: only this one. A register that is made again begins anew with its versions.

        Raises:
            VersionConflictError: it has another version; nothing was removed.
        """

    def names(self, parent: str) -> Sequence[str]:
        """The last parts of the names of all registers directly below, sorted."""

    def watch(self, name: str) -> Unchanged:
        """Begin to watch a register, whether it is there or not."""


class LedgerRange(NamedTuple):
    """Ledgers whose ids lie side by side."""

    first: LedgerId
    end: int
    """The first id behind it."""
    ledgers: int
    """How many it had when it was made."""


class LedgerChange(NamedTuple):
    """What ``write_ledger`` is given."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    known: Versioned[LedgerMetadata]


class LedgerStore(Protocol):
    """Ledger metadata under compare-and-swap."""

    def generate_ledger_id(self) -> LedgerId:
        """A ledger id that was never given out before."""

    def create_ledger(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        *,
        is_generated: bool = False,
        is_kept: bool = False,
        writer: str | None = None,
    ) -> Versioned[LedgerMetadata]:
        """Create a ledger; a create whose answer was lost is recognised by its cToken.

        No id is used twice, also when its ledger was deleted (SLOT-LOG rule R16). An id that
        was chosen leaves a mark that stays, set together with the ledger.

        Args:
            is_generated: the id comes from ``generate_ledger_id``, and was used for no create
                yet whose answer is known.
            is_kept: the id came from ``generate_ledger_id`` earlier, and whoever got it has made no
                ledger of it, and kept it for restores (``restores.py``). It is marked as a chosen
                one is.
            writer: hexadecimal token of this life of the ledger. From now on this session is
                shown as one that writes it, until it closes the ledger, leaves it or ends.

        Raises:
            LedgerExistsError: the id is taken by somebody else, or was used before. A generated
                one: let the next be generated.
            MetadataUnavailableError: it may or may not have been created.
        """

    def has_used(self, ledger_id: LedgerId, *, is_kept: bool = False) -> bool:
        """Whether an id was given out, chosen or used up, so that nobody can choose it.

        Args:
            is_kept: as ``create_ledger`` has it: that it was given out is no hindrance.
        """

    def use_up_ledger_id(self, ledger_id: LedgerId) -> None:
        """From now on nobody creates a ledger of this id; idempotent.

        One that is there stays. Who looks with ``read_ledger_settled`` afterwards and finds none
        knows that there will be none.
        """

    def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Raises ``NoSuchLedgerError`` for one that is not there."""

    def read_ledger_settled(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The same, as it is after every change that anybody was told of before this call.

        For whoever is about to do what cannot be undone: ``read_ledger`` may tell of an earlier
        state, though never of one without a ledger that is there.
        """

    def write_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, known: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        """Compare-and-swap. Callers use ``update.update_ledger``, which knows how to retry.

        Args:
            known: what was read before; its version and the count of our writes are compared.

        Raises:
            VersionConflictError: somebody else wrote, or made the ledger again; nothing was
                written.
            NoSuchLedgerError: it was deleted.
            MetadataUnavailableError: it may or may not have been written.
        """

    def write_ledgers(
        self, changes: Sequence[LedgerChange]
    ) -> Sequence[Versioned[LedgerMetadata] | BookKeeperError]:
        """``write_ledger`` for many, tried once, together; the answers in the order asked.

        An error is told and not raised, and says nothing for certain: whoever gets one changes
        that ledger by itself, through ``update.update_ledger`` (SLOT-LOG rule R14).
        """

    def watch_ledger(self, ledger_id: LedgerId, deleted: Callable[[], None]) -> None:
        """Call ``deleted`` once, from any thread, after a ledger that we write was deleted.

        As soon as the store tells of it: soon, or when it answers again. Ends with ``leave``.
        """

    def watch_metadata(self, ledger_id: LedgerId) -> Unchanged:
        """Begin to watch a ledger's metadata, whether it is there or not."""

    def leave_ledger(self, ledger_id: LedgerId) -> None:
        """This session writes the ledger no more. Waits for nothing, raises nothing."""

    def writers(self) -> Set[tuple[LedgerId, str]]:
        """Ledgers whose writers live, with the token of each. For people (SLOT-LOG rule R17).

        What was read of ledgers before this call is no newer than what it tells.
        """

    def has_writer(self, ledger_id: LedgerId, token: str) -> bool:
        """Whether one writer lives, as everybody knows it; otherwise as ``writers``."""

    def delete_ledger(self, ledger_id: LedgerId, known: Versioned[LedgerMetadata] | None) -> None:
        """Delete a ledger as it was read; one that is not there counts as deleted.

        Callers use ``update.delete_ledger``, which knows how to retry.

        Args:
            known: compared as by ``write_ledger``. ``None`` is for one that cannot be decoded:
                whatever is there is deleted.

        Raises:
            VersionConflictError: it is not as it was read; nothing was deleted.
            MetadataError: somebody made a node below its own; nothing was deleted.
            MetadataUnavailableError: it may or may not have been deleted.
        """

    def ledger_ids(self, among: LedgerRange | None = None) -> Iterator[LedgerId]:
        """Every ledger id, ascending, read in bounded pieces.

        Args:
            among: only those of a range, also of ledgers that were made since.
        """

    def ledger_ranges(self, ledgers: int) -> Iterator[LedgerRange]:
        """All possible ids, in ranges, ascending; found without the ids of the ledgers.

        Args:
            ledgers: so many are in a range at the most; or 10,000, if that is more.
        """

    def read_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, naming: Set[BookieId] | None = None
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata] | MetadataFormatError | None]]:
        """The metadata of many ledgers, pipelined; ``None`` for one that is gone meanwhile.

        One that cannot be decoded is told with its error, and does not hold up the others.

        Args:
            naming: leave out the ledgers of which no fragment names one of these. They are read
                and checked, and no value is built.
        """


class BookieRegistry(Protocol):
    """Which bookies there are: alive (registrations) and known (cookies)."""

    def require_cluster(self) -> None:
        """Raises ``NoClusterError`` when there is no cluster, and nothing when there is one."""

    def instance_id(self) -> str:
        """The cluster's INSTANCEID.

        Raises:
            NoClusterError: there is no cluster.
            MetadataFormatError: what stands there is no name. Only agents need it.
        """

    def clock_ms(self) -> int | None:
        """The time on the store's own clock, in milliseconds since the epoch.

        A node is made for it, and removed again. ``None``: it could not be asked. On ZooKeeper that
        is so until the cluster's first ledger is made: a look leaves nothing behind, so it does not
        make the place for that node, and before there is a ledger no time misleads anybody.
        """

    def registrations(self) -> Sequence[Registration]:
        """Bookies alive now, writable and read-only, ordered by id.

        One whose registration cannot be decoded is there without storage, so it is not chosen.
        Nodes whose names are no bookie ids are left out, with a warning in the log.
        """

    def last_registrations(self) -> Sequence[Registration]:
        """The same, as old as the last answer that this session had to any request.

        For choosing bookies after something else was asked; a stale choice costs an ensemble
        change.
        """

    def register(self, registration: Registration) -> None:
        """Make or replace the ephemeral registration held by this session.

        Raises:
            CookieMismatchError: another session holds it, and goes on holding it for longer
                than a session can live without its client.
        """

    def unregister(self, bookie_id: BookieId) -> None:
        """Remove this session's registration; nothing happens when there is none."""

    def cookies(self) -> Sequence[Versioned[Cookie]]:
        """Every cookie, ordered by bookie id: all bookies that are known, dead ones too.

        Those that cannot be decoded are left out, with a warning in the log.
        """

    def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        """The cookie of one bookie. Raises ``MetadataFormatError`` when it cannot be decoded."""

    def cookie_version(self, bookie_id: BookieId) -> int | None:
        """The version of one bookie's cookie, also of one that cannot be decoded."""

    def write_cookie(self, cookie: Cookie, version: int | None) -> None:
        """Create it (``version=None``) or replace the one with that version.

        Raises:
            VersionConflictError: it exists, or has another version.
        """

    def delete_cookie(self, bookie_id: BookieId, version: int) -> None:
        """Raises ``VersionConflictError`` when it has another version."""

    def watch_registrations(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` (from any thread) after each change; returns how to stop."""


class MetadataStore(LedgerStore, BookieRegistry, Protocol):
    """Everything, over one connection."""

    def initialize_cluster(self) -> str:
        """Create the tree of a new cluster and return its INSTANCEID.

        Raises:
            InvalidArgumentError: there is a cluster already; nothing was changed.
        """

    def format_cluster(self) -> str:
        """Remove all ledgers, cookies and tasks, and return the INSTANCEID that is new then.

        Ids begin at 0 again. Whoever calls it has made sure that no bookie and no client is at
        work (``agent/clearing.py``). Ended in the middle, it is repeated.
        """

    def remove_cluster(self) -> None:
        """Remove everything, the cluster itself last; as ``format_cluster`` otherwise.

        Raises:
            InvalidArgumentError: somebody else keeps something there; nothing was changed.
        """

    @property
    def registers(self) -> Registers:
        """Values of ours under compare-and-swap, see ``registers.py``."""

    @property
    def ballots(self) -> Ballots:
        """Votes for who is to lead, see ``election.py``."""

    @property
    def underreplication(self) -> Underreplication:
        """Ledgers that lack replicas, see ``underreplication.py``."""

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call ``lost`` after each end of a session, whose ephemeral nodes are gone; returns how to
        stop.
        """

    def close(self) -> None:
        """End the session; idempotent."""
