"""What every client operation needs: metadata, bookies, runtime, configuration."""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.client.bookies import Bookies
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.runtime import Runtime
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.metadata.store import MetadataStore, Versioned
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The parts that a session hands to everything it makes. Not picklable; built per process."""

    store: MetadataStore
    bookies: Bookies
    runtime: Runtime
    config: ClientConfig

    def ledger(
        self, ledger_id: LedgerId, nonce: bytes | None = None
    ) -> tuple[Ledger, Versioned[LedgerMetadata]]:
        """Read a ledger's metadata now.

        Args:
            nonce: of the ledger that was read before; ``None`` takes the one that is there.

        Raises:
            NoSuchLedgerError: it was deleted, also when its id is another ledger's by now.
            MetadataFormatError: it was not written by this library.
        """
        if nonce is None:
            found = self.store.read_ledger(ledger_id)
        else:
            found = read_again(self.store, ledger_id, nonce)
        return Ledger.of(ledger_id, found.value), found
