"""How the ledgers of a log are made. The log's head stores these options as JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.bookie.encoding import PAYLOAD_SCHEMA, LedgerEncoding
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.read.evolution import evolved
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.write.columns import check_columns
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.consumers import parse_consumer_name
from spark_bookkeeper.protocol.arguments import check_password, whole_number
from spark_bookkeeper.protocol.log import LogHead
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum

LIMIT_MAX: Final = (1 << 63) - 1
"""The highest limit that a log can be created with."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options that all ledgers of a log share.

    Raises:
        InvalidArgumentError: a size, column, password or compression that no ledger can have.
    """

    quorum: Quorum
    schema: pa.Schema = PAYLOAD_SCHEMA
    password: bytes = b""
    """Stored in clear, as the password of a ledger is."""
    digest_type: DigestType = DigestType.CRC32C
    compression: str | None = None
    entry_target_bytes: int = DEFAULT_ENTRY_TARGET_BYTES
    roll_bytes: int | None = None
    """The writer goes on in a new ledger when the current one has this many bytes."""
    roll_entries: int | None = None
    """The writer goes on in a new ledger when the current one has this many entries."""
    roll_seconds: int | None = None
    """The longest time for which one ledger is written; checked at each append."""
    retain_seconds: int | None = None
    """Ledgers whose last entry is older, by the writers' clocks, are truncated whenever a ledger is
    added and when a writer closes. No ledger is written for longer than this."""
    retain_for: tuple[str, ...] = ()
    """Names of followers; retention keeps the ledgers that one of them has still to read."""

    def __post_init__(self) -> None:
        for name in ("roll_bytes", "roll_entries", "roll_seconds", "retain_seconds"):
            value = getattr(self, name)
            if value is not None and whole_number(name, value, 1) > LIMIT_MAX:
                raise InvalidArgumentError(f"{name} is above 2**63-1; None sets no limit")
        for name in self.retain_for:
            parse_consumer_name(name)
        if self.retain_for and self.retain_seconds is None:
            raise InvalidArgumentError(
                f"retain_for={list(self.retain_for)!r} says for whom retention waits, and "
                "retain_seconds, which truncates, is not given; give both"
            )
        check_columns(self.schema)
        check_password(self.password)
        whole_number("entry_target_bytes", self.entry_target_bytes, 1)
        LedgerEncoding(self.schema, self.digest_type, self.password, self.compression)

    @property
    def written_seconds(self) -> int | None:
        """How long one ledger is written at most: retention cannot truncate the newest ledger."""
        limits = [each for each in (self.roll_seconds, self.retain_seconds) if each is not None]
        return min(limits, default=None)

    def to_json(self) -> Mapping[str, object]:
        """Return the options as the head of a log holds them."""
        quorum = self.quorum
        return {
            "quorum": [quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size],
            "schema": _schema_text(self.schema),
            "password": b64encode(self.password).decode(),
            "digest_type": self.digest_type.name,
            "compression": self.compression,
            "entry_target_bytes": self.entry_target_bytes,
            "roll_bytes": self.roll_bytes,
            "roll_entries": self.roll_entries,
            "roll_seconds": self.roll_seconds,
            "retain_seconds": self.retain_seconds,
            "retain_for": list(self.retain_for),
        }

    @classmethod
    def from_json(cls, log: str, values: Mapping[str, object]) -> LogOptions:
        """Return the options that ``to_json`` has written.

        Raises:
            MetadataFormatError: the head of that log holds something else.
        """
        try:
            return cls(
                quorum=Quorum(*values["quorum"]),  # type: ignore[misc]  # checked by failing
                schema=pa.ipc.read_schema(pa.py_buffer(b64decode(str(values["schema"])))),
                password=b64decode(str(values["password"])),
                digest_type=DigestType[str(values["digest_type"])],
                compression=None if values["compression"] is None else str(values["compression"]),
                entry_target_bytes=whole_number("entry_target_bytes", values["entry_target_bytes"]),
                roll_bytes=_limit(values, "roll_bytes"),
                roll_entries=_limit(values, "roll_entries"),
                roll_seconds=_limit(values, "roll_seconds"),
                retain_seconds=_limit(values, "retain_seconds"),
                retain_for=_names(values, "retain_for"),
            )
        except (KeyError, ValueError, TypeError, OSError, pa.ArrowException) as error:
            raise MetadataFormatError(
                f"the head of log {log!r} does not say how its ledgers are made ({error!r}). "
                "Nothing was changed. A newer version may have written it: upgrade",
                path=f"logs/{log}",
            ) from error


def evolve(
    context: ClientContext, name: str, nonce: str, schema: Any, frames: Frames | None
) -> LogOptions:
    """Give other columns to the ledgers of a log that are created from now on.

    Args:
        context: the cluster.
        name: name of the log.
        nonce: identifies one life of the log.
        schema: an Arrow schema, or a Spark one where ``frames`` are given.
        frames: the access to Spark DataFrames.

    Raises:
        InvalidArgumentError: the columns cannot follow the log's columns. Nothing was changed.
        NoSuchLogError: the log was deleted.
    """
    wanted = schema if frames is None else frames.arrow_schema(schema)
    if not isinstance(wanted, pa.Schema):
        raise InvalidArgumentError(f"{type(wanted).__name__} is not an Arrow schema")

    def step(old: LogHead) -> LogHead | None:
        before = LogOptions.from_json(name, old.options).schema
        if before.equals(evolved(before, wanted), check_metadata=True):
            return None
        return replace(old, options={**old.options, "schema": _schema_text(wanted)})

    head = logs.change_log(context.store.registers, name, nonce, step)
    return LogOptions.from_json(name, head.options)


def _schema_text(schema: pa.Schema) -> str:
    return b64encode(schema.serialize().to_pybytes()).decode()


def _names(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    names = values.get(key, ())
    if not isinstance(names, list | tuple):
        raise TypeError(f"{key} is {names!r}")
    return tuple(str(name) for name in names)


def _limit(values: Mapping[str, object], key: str) -> int | None:
    """Read a limit. Earlier versions allowed higher ones, which no log reaches either."""
    value = values.get(key)
    return None if value is None else min(whole_number(key, value), LIMIT_MAX)
