"""The ledgers of a log: those in its head, and those in the chunks that the head names."""

from __future__ import annotations

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead


def list_ledgers(
    context: ClientContext, name: str, nonce: str, first: LedgerId | None = None
) -> tuple[LogHead, list[LedgerId]]:
    """Return the current head of a log, and its ledgers in order.

    Args:
        context: the cluster.
        name: name of the log.
        nonce: identifies one life of the log.
        first: the lowest ledger id to return; by default the first one that is not truncated.
            Chunks that hold only lower ids are not read.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataFormatError: the head or a chunk cannot be decoded, or a chunk is missing.
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
                break  # a truncation deleted the chunk: read the head again
            found += part
        else:
            return head, [ledger for ledger in (*found, *head.recent) if ledger >= least]
