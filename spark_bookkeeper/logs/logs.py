"""Create, open, list and delete logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.views import UNREADABLE
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.write.columns import check_new_columns
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError, NoSuchLogError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.log import LogHead

GONE: Final = "GONE"
"""State of a ledger that a log names although it was deleted."""

LOGS: Final = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("position", pa.int32()),
        pa.field("ledger_id", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("is_truncated", pa.bool_()),
    ]
)


def create_log(
    context: ClientContext, name: str, options: LogOptions, frames: Frames | None = None
) -> Log:
    """Create an empty log.

    Ledgers left by the deletion of an earlier log of that name are deleted first.

    Raises:
        LogExistsError: a log of that name exists. Nothing was changed.
        InvalidArgumentError: the name or the columns are not valid.
        MetadataFormatError, MetadataUnavailableError, RecoveryUndecidedError: ledgers of a deleted
            earlier log of that name cannot be deleted. No log was created.
    """
    check_new_columns(options.schema)
    truncation.finish_deletion(context, name)
    head = LogHead(context.runtime.token(), options.to_json())
    return Log(context, name, logs.create_log(context.store.registers, name, head), frames)


def open_log(context: ClientContext, name: str, frames: Frames | None = None) -> Log:
    """Return an existing log, without fencing its writer.

    Raises:
        NoSuchLogError: no log has that name.
    """
    return Log(context, name, logs.read_log(context.store.registers, name), frames)


def logs_table(context: ClientContext) -> pa.Table:
    """Return one row for each ledger of each log (``LOGS``), with those not yet deleted.

    A log without ledgers has one row. A log whose head or chunks cannot be decoded, or whose name
    is not valid, has one row with the state ``UNREADABLE``.
    """
    rows = [
        row for name in logs.log_names(context.store.registers) for row in _log_rows(context, name)
    ]
    return pa.Table.from_pylist(rows, schema=LOGS)


def log_table(context: ClientContext, name: str) -> pa.Table:
    """Return the rows of ``logs_table`` for one log; none if no log has that name."""
    return pa.Table.from_pylist(list(_log_rows(context, name)), schema=LOGS)


def _log_rows(context: ClientContext, name: str) -> Iterator[dict[str, Any]]:
    try:
        head = logs.find_log(context.store.registers, name)
        if head is None:
            return
        head, listed = list_ledgers(context, name, head.nonce, first=head.deleted_below)
    except (MetadataFormatError, InvalidArgumentError):
        yield {"log": name, "state": UNREADABLE}
        return
    except NoSuchLogError:
        return
    if not listed:
        yield {"log": name}
    for position, (ledger_id, found) in enumerate(context.store.read_ledgers(listed)):
        is_truncated = ledger_id < head.begins_at
        if found is None and is_truncated:
            continue  # deleted by a truncation
        row = {
            "log": name,
            "position": position,
            "ledger_id": ledger_id,
            "state": GONE if found is None else UNREADABLE,
            "is_truncated": is_truncated,
        }
        if isinstance(found, Versioned):
            row["state"] = found.value.state.name
            row["last_entry_id"] = found.value.last_entry_id
        yield row
