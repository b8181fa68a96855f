"""What takes the space on the bookies: ledgers that somebody owns, that nobody owns, and garbage.

A bookie tells what it holds before the metadata are read, so what was made meanwhile is no garbage.
For people all the same: what recovery or a writer puts on a bookie is there before the metadata
name the bookie, and nothing is to be deleted because of this table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.cluster.orphans import OwnedLedger, ledgers_with_owners
from spark_bookkeeper.errors import BookieError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId

SPACE: Final = pa.schema(
    [
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64()),
        pa.field("log", pa.string()),
        pa.field("live_bytes", pa.int64()),
        pa.field("garbage_bytes", pa.int64()),
        pa.field("orphan_bytes", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)

DELETED: Final = "the ledger was deleted"
ANOTHER_LIFE: Final = "left of a deleted ledger that had this id before"
NOT_NAMED: Final = (
    "no fragment names this bookie: left by an ensemble change or a recovery, or on its way"
)
UNDECODABLE: Final = "counted as live: the ledger's metadata cannot be decoded"


def space_table(context: ClientContext, wanted: Sequence[BookieId] | None = None) -> pa.Table:
    """One row for each ledger on each bookie (``SPACE``): bytes of its files.

    The bytes are in one of three columns, and the others are 0. ``reason`` says why they are not
    simply live. A bookie that cannot be asked has one row, without ledger and bytes.

    Args:
        wanted: only these are asked, and told of; ``None`` is all.

    Raises:
        MetadataUnavailableError: there is no answer.
    """
    known = {cookie.value.bookie_id for cookie in context.store.cookies()}
    alive = context.bookies.registrations()

    def ask(bookie: BookieId) -> dict[LedgerKey, int] | str:
        live = alive.get(bookie)
        if live is None:
            return "lost: it is not registered, so its storage was not looked at"
        if not live.incarnation:
            return "it names no storage"
        try:
            face = context.bookies.bookie(bookie)
            return {key: face.space_of(key) for key in face.ledgers()}
        except BookieError as error:
            return error.message

    asked = sorted(b for b in alive.keys() | known if wanted is None or b in wanted)
    answers = list(zip(asked, context.runtime.map(ask, asked), strict=True))
    owners = ledgers_with_owners(context)
    rows: list[dict[str, Any]] = []
    for bookie, held in answers:
        if isinstance(held, str):
            rows.append({"bookie_id": bookie, "reason": held})
            continue
        for key in sorted(held, key=lambda key: (key.ledger_id, key.nonce)):
            rows.append(_row(bookie, key, held[key], owners))
    named = {b for each in owners.values() if each.metadata for b in each.metadata.bookies()}
    for bookie in sorted(named - alive.keys() - known):
        if wanted is None or bookie in wanted:
            reason = "lost: it has no registration and no cookie"
            rows.append({"bookie_id": bookie, "reason": reason})
    return pa.Table.from_pylist(rows, schema=SPACE)


def _row(
    bookie: BookieId, key: LedgerKey, size_bytes: int, owners: Mapping[LedgerId, OwnedLedger]
) -> dict[str, Any]:
    found = owners.get(LedgerId(key.ledger_id))
    column, reason = _kind(bookie, key, found)
    sizes = dict.fromkeys(("live_bytes", "garbage_bytes", "orphan_bytes"), 0)
    return {
        "bookie_id": bookie,
        "ledger_id": key.ledger_id,
        "log": None if found is None else found.log,
        **sizes,
        column: size_bytes,
        "reason": reason,
    }


def _kind(bookie: BookieId, key: LedgerKey, found: OwnedLedger | None) -> tuple[str, str | None]:
    """The column of the bytes, and why."""
    if found is None:
        return "garbage_bytes", DELETED
    if found.metadata is None:
        return "live_bytes", UNDECODABLE
    if found.metadata.nonce != key.nonce.encode():
        return "garbage_bytes", ANOTHER_LIFE
    if bookie not in found.metadata.bookies():
        return "garbage_bytes", NOT_NAMED
    if found.unowned is not None:
        return "orphan_bytes", found.unowned
    return "live_bytes", None
