"""The ledgers of a log: its head together with the chunks that the head names."""

from __future__ import annotations

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead


def list_ledgers(
    context: ClientContext, name: str, nonce: str, first: LedgerId | None = None
) -> tuple[LogHead, list[LedgerId]]:
    """The head of a log now, and its ledgers in order.

    Args:
        context: the cluster.
        name: of the log.
        nonce: of its life.
        first: leave out what is below; without it, what was truncated is left out. Chunks that
            hold none of the others are not read.

    Raises:
        NoSuchLogError: it was deleted.
        MetadataFormatError: the head, or a chunk that it names, is junk or gone.
    """
    before: LogHead | None = None
    while True:
        head = logs.read_life(context.store.registers, name, nonce)
        least = head.begins_at if first is None else first
        found: list[LedgerId] = []
        for chunk in head.chunks:
            if chunk.last < least:
                continue
            part = logs.read_chunk(context.store.registers, name, chunk)
            if part is None:
                if head == before:
                    raise logs.chunk_is_gone(name, chunk)
                before = head
                break  # forgotten meanwhile: look at the head again
            found += part
        else:
            return head, [ledger for ledger in (*found, *head.recent) if ledger >= least]
