"""The use of space on the bookies: ledgers with an owner, ledgers without one, and garbage.

A bookie lists its ledgers before the metadata are read, so a ledger that was created meanwhile is
not garbage. Delete nothing because of this table alone: recovery and writers store entries on a
bookie before the metadata name the bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.agent.orphans import OwnedLedger, ledgers_with_owners
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.client.context import ClientContext
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
        pa.field("files", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)

_GARBAGE: Final = "garbage_bytes"
_NOTHING: Final = {"live_bytes": 0, _GARBAGE: 0, "orphan_bytes": 0}

DELETED: Final = "the ledger was deleted"
ANOTHER_LIFE: Final = "left of a deleted ledger that had this id before"
NOT_NAMED: Final = (
    "no fragment names this bookie: left by an ensemble change or a recovery, or on its way"
)
UNDECODABLE: Final = "counted as live: the ledger's metadata cannot be decoded"


def space_table(
    context: ClientContext,
    wanted: Sequence[BookieId] | None = None,
    *,
    garbage_most: int | None = None,
) -> pa.Table:
    """Return one row for each ledger on each bookie (``SPACE``): its files and their bytes.

    The bytes are in one of three columns, and the others are 0. ``reason`` says why they are not
    simply live. A bookie that cannot be read has one row, without ledger and bytes.

    Args:
        wanted: read and return only these bookies; ``None``: all.
        garbage_most: return garbage only, which takes less time, and list ledgers of a bookie
            until they have so many files; the numbers of its other ledgers are null.

    Raises:
        MetadataUnavailableError: there is no answer.
    """
    known = {cookie.value.bookie_id for cookie in context.store.cookies()}
    alive = context.bookies.registrations()

    def ask(bookie: BookieId) -> Sequence[LedgerKey] | str:
        live = alive.get(bookie)
        if live is None:
            return "lost: it is not registered, so its storage was not looked at"
        if not live.incarnation:
            return "it names no storage"
        try:
            return context.bookies.bookie(bookie).ledgers()
        except BookieError as error:
            return error.message

    asked = sorted(b for b in alive.keys() | known if wanted is None or b in wanted)
    answers = dict(zip(asked, context.runtime.map(ask, asked), strict=True))
    owners = ledgers_with_owners(context)

    def look(bookie: BookieId) -> list[dict[str, Any]]:
        held = answers[bookie]
        if isinstance(held, str):
            return [{"bookie_id": bookie, "reason": held}]
        rows: list[dict[str, Any]] = []
        looked_at = 0
        try:
            face = context.bookies.bookie(bookie)
            for key in sorted(held, key=lambda key: (key.ledger_id, key.nonce)):
                found = owners.get(LedgerId(key.ledger_id))
                column, reason = _kind(bookie, key, found)
                if garbage_most is not None and column != _GARBAGE:
                    continue
                row = {"bookie_id": bookie, "ledger_id": key.ledger_id, "reason": reason}
                row["log"] = None if found is None else found.log
                if garbage_most is None or looked_at < garbage_most:
                    sizes = face.sizes_of(key)
                    looked_at += 1 + len(sizes)  # a listing costs as much as a file
                    row |= {**_NOTHING, column: sum(sizes), "files": len(sizes)}
                rows.append(row)
        except BookieError as error:
            return [{"bookie_id": bookie, "reason": error.message}]
        return rows

    rows = [row for found in context.runtime.map(look, asked) for row in found]
    named = {b for each in owners.values() if each.metadata for b in each.metadata.bookies()}
    for bookie in sorted(named - alive.keys() - known):
        if wanted is None or bookie in wanted:
            rows.append({"bookie_id": bookie, "reason": "lost: neither registration nor cookie"})
    return pa.Table.from_pylist(rows, schema=SPACE)


def _kind(bookie: BookieId, key: LedgerKey, found: OwnedLedger | None) -> tuple[str, str | None]:
    """Return the column of the bytes, and the reason."""
    if found is None:
        return _GARBAGE, DELETED
    if found.metadata is None:
        return "live_bytes", UNDECODABLE
    if found.metadata.nonce != key.nonce.encode():
        return _GARBAGE, ANOTHER_LIFE
    if bookie not in found.metadata.bookies():
        return _GARBAGE, NOT_NAMED
    if found.unowned is not None:
        return "orphan_bytes", found.unowned
    return "live_bytes", None
