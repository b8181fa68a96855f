"""The parts that every client operation needs: metadata, bookies, runtime, configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.cluster_clock import ClusterClock
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.metrics import ClientMetrics
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.runtime import process
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.runtime.throttle import CachedValue


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The parts that a session passes to all its objects. Not picklable; built per process."""

    store: MetadataStore
    bookies: Bookies
    runtime: Runtime
    config: ClientConfig
    metadata_uri: str | None = None
    """The argument of ``connect`` for this cluster; ``None`` if nothing connects."""
    process: object = field(default_factory=lambda: process.here, repr=False, compare=False)
    """The process that made it (``process.here``)."""
    writer: WriterInfo | None = None
    """The writer that new ledgers record; ``None`` records nothing."""
    metrics: ClientMetrics = field(default_factory=ClientMetrics, repr=False, compare=False)
    """The counters of everything that is done with these parts."""
    copy_limit: CachedValue = field(default_factory=CachedValue, repr=False, compare=False)
    """The last value read here of the limit on copying (``autorecovery/limit.py``)."""

    clock: ClusterClock = field(default_factory=ClusterClock, repr=False, compare=False)
    """See ``cluster_ms``."""

    on_deleted: Callable[..., None] = field(default=lambda *_: None, repr=False, compare=False)
    """``recent_jobs.note_deletion``, which keeps for ``bk.jobs()`` what was deleted for ever."""

    def __post_init__(self) -> None:
        silent = self.bookies.silent
        self.metrics.show_silent_bookies(lambda: len(list(silent())))

    def cluster_ms(self) -> int:
        """Return milliseconds since 1970 by the clock that all processes of the cluster share.

        Use it for a time that one process notes and another compares with its own; see
        ``ClusterClock.now_ms``. Raises ``MetadataUnavailableError``.
        """
        return self.clock.now_ms(self.store, self.runtime)

    def earlier_ms(self) -> int:
        """Return the time by that clock or by this machine's, whichever is behind.

        A removal by age that uses it is never too early because one of the clocks is ahead. Raises
        ``MetadataUnavailableError``.
        """
        return min(self.cluster_ms(), self.runtime.wall_ms())

    def check_here(self, what: str, how: str = "") -> None:
        """Raise ``InvalidArgumentError`` in a forked child of the process that made it.

        Args:
            what: the object that is used, in words for people.
            how: the call that gives such an object there: ``.open_ledger(7)``.
        """
        if self.process is not process.here:
            process.check_here(self.process, what, self.connecting(how))

    def refuse_pickling(self, what: str, how: str = "") -> NoReturn:
        """Raise ``InvalidArgumentError``, because an object with this context cannot be pickled."""
        process.refuse_pickling(what, self.connecting(how))

    def connecting(self, how: str = "") -> str:
        """Return the code that makes such an object in another process."""
        uri = "..." if self.metadata_uri is None else repr(self.metadata_uri)
        return f"spark_bookkeeper.connect({uri}){how}"

    def __reduce__(self) -> NoReturn:
        self.refuse_pickling("connection to a cluster")

    def ledger(
        self, ledger_id: LedgerId, nonce: bytes | None = None
    ) -> tuple[Ledger, Versioned[LedgerMetadata]]:
        """Read a ledger's metadata now.

        Args:
            nonce: of the ledger that was read before; ``None`` takes the one that exists.

        Raises:
            NoSuchLedgerError: it was deleted, even if another ledger has its id now.
            MetadataFormatError: it was not written by this library.
        """
        if nonce is None:
            found = self.store.read_ledger(ledger_id)
        else:
            found = read_again(self.store, ledger_id, nonce)
        return Ledger.of(ledger_id, found.value), found
