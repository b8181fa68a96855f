"""The history of a ledger, as far as its metadata and its bookies still show it.

They keep the ledger's creator and time of creation, its ensemble changes, its fences, and its end.
They keep no times of changes, and no names of bookies that a recovery replaced: a fragment has the
bookies that hold it now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.presence import writer_of
from spark_bookkeeper.client.views import moment, slot_rows
from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata

HISTORY: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("by", pa.string()),
        pa.field("entry_id", pa.int64()),
        pa.field("bookies", pa.list_(pa.string()), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


def history_table(context: ClientContext, ledger_id: LedgerId) -> pa.Table:
    """Return the events of one ledger in their order (``HISTORY``); nothing is fenced.

    ``event`` is ``created``, ``ensemble changed``, ``fenced``, ``in recovery`` or ``closed``.
    ``entry_id`` is the first entry of a new ensemble, and the last one of a ledger that is closed.
    ``by`` is the process that created it. A fact that was not kept is null.

    Raises:
        NoSuchLedgerError: there is no such ledger.
        MetadataFormatError: its metadata cannot be decoded.
    """
    found = context.store.read_ledger(ledger_id)
    events = [*_of_metadata(found.value), *_fences(context, ledger_id, found)]
    events += _end(found)
    rows = [{"ledger_id": ledger_id, "step": step, **event} for step, event in enumerate(events)]
    return pa.Table.from_pylist(rows, schema=HISTORY)


def _of_metadata(metadata: LedgerMetadata) -> Iterator[dict[str, Any]]:
    quorum, writer = metadata.quorum, writer_of(metadata)
    sizes = (quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size)
    first, *later = metadata.fragments
    yield {
        "event": "created",
        "at": moment(metadata.ctime_ms),
        "by": None if writer is None else str(writer),
        "entry_id": first.first_entry_id,
        "bookies": first.ensemble,
        "detail": "E/Qw/Qa {}/{}/{}; the bookies are those that hold it now".format(*sizes),
    }
    before = first
    for fragment in later:
        yield {
            "event": "ensemble changed",
            "entry_id": fragment.first_entry_id,
            "bookies": fragment.ensemble,
            "detail": _changed(before, fragment),
        }
        before = fragment


def _changed(before: Fragment, after: Fragment) -> str:
    pairs = zip(before.ensemble, after.ensemble, strict=True)
    changes = [f"{new} in place of {old}" for old, new in pairs if old != new]
    return ", ".join(changes) or "the same bookies: what differed was replaced since"


def _fences(
    context: ClientContext, ledger_id: LedgerId, found: Versioned[LedgerMetadata]
) -> Iterator[dict[str, Any]]:
    """Yield the bookies that are fenced now. No record has the cause, so it is inferred."""
    metadata = found.value
    try:
        ledger = Ledger.of(ledger_id, metadata)
    except MetadataFormatError:
        return  # another client's ledger, which is fenced otherwise
    fenced: dict[str, list[BookieId]] = {}
    for bookie in metadata.last_fragment.ensemble:
        kinds = {slot["slot"]: slot["kind"] for slot in slot_rows(context, ledger, bookie)}
        if "FENCE" not in kinds.values():
            continue
        if metadata.is_closed and found.version == 1:  # created and closed, and no other write
            by = "by compaction, after its writer had closed it"
        elif 0 not in kinds:  # compaction removed the slots below
            by = "before its end, or by compaction after it: nobody keeps which"
        else:
            by = "by a recovery, a deletion or a person; from then on its writer could add nothing"
        fenced.setdefault(by, []).append(bookie)
    for by, bookies in fenced.items():
        yield {"event": "fenced", "bookies": bookies, "detail": by}


def _end(found: Versioned[LedgerMetadata]) -> Sequence[dict[str, Any]]:
    metadata = found.value
    foreign = found.version - found.own_writes + 1
    writes = f"metadata written {found.version + 1} times"
    if found.own_writes and foreign > 0:
        writes += f", {foreign} of them by other tools"
    if metadata.is_closed:
        return [
            {
                "event": "closed",
                "entry_id": metadata.last_entry_id,
                "bookies": (),
                "detail": f"{metadata.length_bytes} bytes; {writes}",
            }
        ]
    if metadata.state.name == "IN_RECOVERY":
        return [
            {
                "event": "in recovery",
                "bookies": (),
                "detail": f"fenced, and not closed yet; {writes}",
            }
        ]
    return []
