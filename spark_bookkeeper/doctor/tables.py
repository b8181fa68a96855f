"""The tables that replace copies of released ledgers: whether they can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError, MetadataFormatError
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, is_table


def table_diagnoses(
    context: ClientContext, ledgers: Mapping[LedgerId, LedgerMetadata]
) -> Iterator[Diagnosis]:
    """Report whether each table answers, and how many ledgers need it. Reads one entry of each."""
    tables: dict[str, list[LedgerId]] = {}
    dropping: list[LedgerId] = []
    for ledger_id, metadata in ledgers.items():
        try:
            archived = archived_of(metadata)
        except MetadataFormatError as error:
            yield Diagnosis(
                f"ledger {ledger_id}", "problem", error.message, "put the value back as it was"
            )
            continue
        if archived is None:
            continue
        if any(map(is_table, metadata.members())):
            tables.setdefault(archived.table, []).append(ledger_id)
        if archived.dropping:
            dropping.append(ledger_id)
    for table, released in sorted(tables.items()):
        yield _look(context, table, {i: ledgers[i] for i in released})
    if dropping:
        yield Diagnosis(
            "copies to be dropped",
            "warning",
            f"of {len(dropping):,} released ledgers: nothing counts on them, and they take space",
            "spark-bookkeeper ledger archive TABLE --release, once more, when all bookies are up",
        )


def _look(
    context: ClientContext, table: str, released: Mapping[LedgerId, LedgerMetadata]
) -> Diagnosis:
    ledger_id, metadata = next(iter(released.items()))
    member = min(filter(is_table, metadata.members()))
    check = f"table {table}"
    try:
        replica = context.bookies.replica(member, Ledger.of(ledger_id, metadata))
        refused = replica.verify([0]).refused
        if refused:
            raise BookieUnavailableError(refused[0].reason, bookie_id=member)
    except BookKeeperError as error:
        return Diagnosis(
            check,
            "problem",
            f"{len(released):,} released ledgers are read from it, and {error.message}",
            "bring it back where it was; until then their entries are read from the copies that "
            "were kept, if any",
        )
    return Diagnosis(check, "ok", f"answers; {len(released):,} released ledgers are read from it")
