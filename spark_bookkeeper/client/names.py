"""Find a ledger by its name: the label that ``create_ledger(name=...)`` gives it.

Names need not be unique, and no index has them; so all metadata are read.
"""

from __future__ import annotations

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId, parse_ledger_id

_SHOWN = 10
"""How many ids of ledgers with the same name an error shows."""


def ledger_called(context: ClientContext, ledger: int | str) -> LedgerId:
    """Return the id of a ledger that is given by its id, or by its name if that is unique.

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
