"""A ledger by its name: the label that ``create_ledger(name=...)`` gives it.

Nothing keeps names apart, and nothing lists ledgers by them; so all metadata are read.
"""

from __future__ import annotations

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId, parse_ledger_id

_SHOWN = 10
"""Ids of ledgers that share a name, in an error."""


def ledger_called(context: ClientContext, ledger: int | str) -> LedgerId:
    """The id of a ledger that is given by its id, or by its name where that is unique.

    Ledgers whose metadata cannot be decoded have no names.

    Raises:
        NoSuchLedgerError: none has that name.
        InvalidArgumentError: several have it, with their ids; or it is no id.
    """
    if not isinstance(ledger, str):
        return parse_ledger_id(ledger)
    name = ledger.encode()
    found = [
        ledger_id
        for ledger_id, metadata in context.store.read_ledgers(context.store.ledger_ids())
        if isinstance(metadata, Versioned) and metadata.value.custom_metadata.get("name") == name
    ]
    if not found:
        as_id = (
            f". The ledger of this id is asked for by the number {int(ledger)}, without quotes"
            if ledger.isdecimal()
            else ""
        )
        raise NoSuchLedgerError(
            f"there is no ledger with the name {ledger!r}; `spark-bookkeeper ledger list` shows "
            f"those that there are, and with `--name NAME` those of one name{as_id}"
        )
    if len(found) > 1:
        shown = ", ".join(map(str, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
        raise InvalidArgumentError(
            f"{len(found)} ledgers have the name {ledger!r}; nothing was done. Give the id of "
            f"one of them: {shown}"
        )
    return found[0]
