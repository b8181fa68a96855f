"""Create, open, recover and delete ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, LedgerEncoding
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import delete_ledger as delete_ledger
from spark_bookkeeper.client.ledger import (
    DEFAULT_ENTRY_TARGET_BYTES,
    LOG,
    LOG_LABEL,
    Ledger,
    custom_metadata,
)
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.write.columns import check_new_columns
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError, LedgerExistsError, NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.arguments import check_labels, check_name, whole_number
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.placement import choose_ensemble
from spark_bookkeeper.protocol.quorum import Quorum

RESERVED_PREFIX = "spark-bookkeeper."


def labels_of(
    custom_metadata: Mapping[str, bytes] | None, **named: str | None
) -> Mapping[str, bytes]:
    """Return custom metadata with further labels, which have arguments of their own.

    Raises:
        InvalidArgumentError: a label is given both ways, or is not of the right type.
    """
    labels = {} if custom_metadata is None else custom_metadata
    check_labels(labels)
    for key, value in named.items():
        if value is None:
            continue
        check_name(key, value)
        if key in labels:
            raise InvalidArgumentError(
                f"{key}={value!r} and custom_metadata[{key!r}]={labels[key]!r} are one label; give "
                "one of them"
            )
        labels = {**labels, key: value.encode()}
    return labels


def create_ledger(
    context: ClientContext,
    quorum: Quorum,
    *,
    schema: pa.Schema | None = None,
    password: bytes = b"",
    digest_type: DigestType = DigestType.CRC32C,
    labels: Mapping[str, bytes] | None = None,
    log: str | None = None,
    ledger_id: int | None = None,
    compression: str | None = None,
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
    frames: Frames | None = None,
) -> LedgerWriter:
    """Create a ledger on a random ensemble of live bookies, and return its writer.

    Args:
        log: name of the log that the ledger is made for, and that may later list it.

    Raises:
        NotEnoughBookiesError: with every bookie and why it was not chosen.
        LedgerExistsError: ``ledger_id`` is taken, or was used before.
        InvalidArgumentError: a label has a reserved key, a size makes no sense, or no ledger can
            have these columns.
    """
    with context.metrics.creating(context.runtime):
        ledger, created = make_ledger(
            context,
            quorum,
            schema=schema,
            password=password,
            digest_type=digest_type,
            labels=labels,
            log=log,
            ledger_id=ledger_id,
            compression=compression,
            entry_target_bytes=entry_target_bytes,
        )
    return LedgerWriter(context, ledger, created, frames)


def make_ledger(
    context: ClientContext,
    quorum: Quorum,
    *,
    schema: pa.Schema | None = None,
    password: bytes = b"",
    digest_type: DigestType = DigestType.CRC32C,
    labels: Mapping[str, bytes] | None = None,
    log: str | None = None,
    ledger_id: int | None = None,
    compression: str | None = None,
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES,
    notes: Mapping[str, bytes] | None = None,
) -> tuple[Ledger, Versioned[LedgerMetadata]]:
    """Create a ledger as ``create_ledger`` does, without a writer.

    Args:
        notes: keys of ours, instead of those that say that this process writes the ledger.
    """
    entry_target_bytes = whole_number("entry_target_bytes", entry_target_bytes, 1)
    _check_labels(labels or {})
    wanted = None if ledger_id is None else parse_ledger_id(ledger_id)
    if schema is not None:
        check_new_columns(schema)
    encoding = LedgerEncoding(
        PAYLOAD_SCHEMA if schema is None else schema, digest_type, password, compression
    )
    told = context.writer if notes is None else None

    def create(
        alive: Mapping[BookieId, Registration], store: _Store
    ) -> tuple[Ledger, Versioned[LedgerMetadata]]:
        """Create it on some of these bookies, and return it with the id that it got."""
        reasons = context.bookies.ineligible(alive, quorum.ensemble_size)
        try:
            ensemble = choose_ensemble(quorum, context.bookies.candidates(alive), reasons)
        except NotEnoughBookiesError as error:
            if error.available < quorum.write_quorum_size:
                raise
            fewer = f"{error.message}, or ask for fewer: ensemble_size={error.available}"
            raise NotEnoughBookiesError(fewer, **error.facts) from None
        incarnations = {bookie: alive[bookie].incarnation for bookie in ensemble}
        nonce = context.runtime.token()
        ours = custom_metadata(
            nonce, encoding.schema, compression, entry_target_bytes, incarnations, told
        )
        metadata = LedgerMetadata(
            quorum=quorum,
            state=LedgerState.OPEN,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest_type=digest_type,
            password=password,
            ctime_ms=context.runtime.wall_ms(),
            custom_metadata={**(labels or {}), **_of_log(log), **(notes or {}), **ours},
            ctoken=int(context.runtime.token()[:15], 16),
        )
        ledger_id, created = store(metadata, None if told is None else nonce)
        # The same value that ``Ledger.of`` would read.
        key = LedgerKey(ledger_id, nonce)
        return Ledger(key, encoding, created.value, incarnations, entry_target_bytes), created

    if wanted is not None:
        return create(context.bookies.registrations(), partial(_store_chosen, context, wanted))
    generated = context.store.generate_ledger_id()
    # After this answer, the store has reported all earlier changes of bookies.
    return create(
        context.bookies.last_registrations(), partial(_store_generated, context, generated)
    )


_Store = Callable[[LedgerMetadata, "str | None"], tuple[LedgerId, Versioned[LedgerMetadata]]]
"""Stores the metadata of a new ledger, and the token of its writer; returns its id."""


def _store_chosen(
    context: ClientContext, ledger_id: LedgerId, metadata: LedgerMetadata, writer: str | None
) -> tuple[LedgerId, Versioned[LedgerMetadata]]:
    """Store it under this id. Raises ``LedgerExistsError``: the id is taken, or was used before."""
    return ledger_id, context.store.create_ledger(ledger_id, metadata, writer=writer)


def _store_generated(
    context: ClientContext, ledger_id: LedgerId, metadata: LedgerMetadata, writer: str | None
) -> tuple[LedgerId, Versioned[LedgerMetadata]]:
    """Store it under this id, or, if the id is taken, under the next one that is free."""
    while True:
        with suppress(LedgerExistsError):
            return ledger_id, context.store.create_ledger(
                ledger_id, metadata, is_generated=True, writer=writer
            )
        ledger_id = context.store.generate_ledger_id()


def _of_log(log: str | None) -> dict[str, bytes]:
    return {} if log is None else dict.fromkeys((LOG, LOG_LABEL), log.encode())


def _check_labels(labels: Mapping[str, bytes]) -> None:
    """Raise ``InvalidArgumentError`` if labels have a wrong type or a reserved key."""
    check_labels(labels)
    for key in labels:
        if key.startswith(RESERVED_PREFIX):
            raise InvalidArgumentError(
                f"custom metadata key {key!r} begins with {RESERVED_PREFIX!r}, which is reserved "
                "for what this library keeps there; choose another key"
            )


def open_ledger(
    context: ClientContext, ledger_id: int, password: bytes = b"", frames: Frames | None = None
) -> LedgerReader:
    """Open a ledger for reading all of it; one that is not closed is fenced and recovered.

    Raises what ``recover_ledger`` raises, and ``UnauthorizedError``.
    """
    with context.metrics.opening(context.runtime):
        ledger, found = context.ledger(parse_ledger_id(ledger_id))
        ledger.check_password(password)
        if not found.value.is_closed:
            found = recover_ledger(context, ledger.ledger_id, known=found)
    return LedgerReader(context, ledger.with_metadata(found.value), frames)


def open_ledger_no_recovery(
    context: ClientContext, ledger_id: int, password: bytes = b"", frames: Frames | None = None
) -> LedgerReader:
    """Open a ledger for reading up to its last add confirmed; its writer is not disturbed."""
    with context.metrics.opening(context.runtime):
        ledger, _ = context.ledger(parse_ledger_id(ledger_id))
        ledger.check_password(password)
    return LedgerReader(context, ledger, frames)
