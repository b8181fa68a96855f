"""Opens the table at a URI through a client's bookies, as readers do."""

from __future__ import annotations

from spark_bookkeeper.client.bookies.known_bookies import TABLE_ROOT
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.protocol.archive import table_member
from spark_bookkeeper.table.table_bookie import TableBookie


def table_of(context: ClientContext, table: str) -> TableBookie:
    """Return the table at a URI, without checking that it exists.

    Raises:
        InvalidArgumentError: no storage can be opened at the URI.
    """
    member = table_member(table, 0)
    context.bookies.learn({member: TABLE_ROOT + table})
    try:
        bookie = context.bookies.bookie(member)
    except BookieUnavailableError as error:
        raise InvalidArgumentError(
            f"the table {table!r} cannot be opened as storage: {error.message}. It has to be a "
            "path or URI at which every reader finds it"
        ) from error
    assert isinstance(bookie, TableBookie), "its root says that it is a table"
    return bookie
