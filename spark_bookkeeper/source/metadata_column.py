"""``_metadata``: for each row, its position in its ledger and the bookie it was read from."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from spark_bookkeeper.bookie.bookie import Rows
from spark_bookkeeper.protocol.ids import LedgerId

METADATA_COLUMN: Final = "_metadata"

METADATA_TYPE: Final = pa.struct(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("last_add_confirmed", pa.int64(), nullable=False),
        pa.field("bookie", pa.string(), nullable=False),
        pa.field("digest", pa.string()),
    ]
)
"""``digest`` is the entry's, in hexadecimal; null in a ledger without digests."""


def metadata_column(ledger_id: LedgerId, scanned: Rows) -> pa.StructArray:
    """Return a value of ``METADATA_TYPE`` for each row."""
    ids = np.array(scanned.entries, dtype=np.int64)
    order = np.argsort(ids)
    owners = pa.array(order[np.searchsorted(ids, scanned.entry_ids, sorter=order)])
    confirmed = pa.array([each.last_add_confirmed for each in scanned.details], pa.int64())
    digests = pa.array([each.digest.hex() or None for each in scanned.details], pa.string())
    bookies = pa.array([each.bookie_id for each in scanned.details], pa.string())
    rows = len(scanned.entry_ids)
    return pa.StructArray.from_arrays(
        [
            pa.array(np.full(rows, ledger_id, dtype=np.int64)),
            pa.array(scanned.entry_ids),
            pa.array(scanned.positions.astype(np.int32)),
            confirmed.take(owners),
            bookies.take(owners),
            digests.take(owners),
        ],
        fields=list(METADATA_TYPE),
    )
