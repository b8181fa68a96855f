"""Replicated, fenced, recoverable ledgers for Apache Spark.

Apache BookKeeper's protocol on plain storage: a bookie is a storage partition that holds Arrow
files, ZooKeeper holds the metadata, and recovery runs as Spark jobs.

The names below are the public ones. Each is imported when it is first used, so that
``import spark_bookkeeper`` costs nothing on an executor or behind ``--help``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_bookkeeper.config import BookieConfig, ClientConfig
    from spark_bookkeeper.errors import (
        AppendFailedError,
        BookieError,
        BookieFullError,
        BookieReadOnlyError,
        BookieUnavailableError,
        BookKeeperError,
        CookieMismatchError,
        CorruptEntryError,
        EntryUnreadableError,
        InvalidArgumentError,
        LedgerClosedError,
        LedgerError,
        LedgerExistsError,
        LedgerFencedError,
        MetadataError,
        MetadataFormatError,
        MetadataUnavailableError,
        MissingRequirementError,
        NoClusterError,
        NoSuchEntryError,
        NoSuchLedgerError,
        NotEnoughBookiesError,
        RecoveryUndecidedError,
        SlotTakenError,
        UnauthorizedError,
        UnsuitableStorageError,
        VersionConflictError,
    )
    from spark_bookkeeper.spark.session import spark_session

__all__ = [
    "AppendFailedError",
    "BookKeeperError",
    "BookieConfig",
    "BookieError",
    "BookieFullError",
    "BookieReadOnlyError",
    "BookieUnavailableError",
    "ClientConfig",
    "CookieMismatchError",
    "CorruptEntryError",
    "EntryUnreadableError",
    "InvalidArgumentError",
    "LedgerClosedError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerFencedError",
    "MetadataError",
    "MetadataFormatError",
    "MetadataUnavailableError",
    "MissingRequirementError",
    "NoClusterError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotEnoughBookiesError",
    "RecoveryUndecidedError",
    "SlotTakenError",
    "UnauthorizedError",
    "UnsuitableStorageError",
    "VersionConflictError",
    "spark_session",
]

_HOMES = {
    "BookieConfig": "spark_bookkeeper.config",
    "ClientConfig": "spark_bookkeeper.config",
    "spark_session": "spark_bookkeeper.spark.session",
}
"""Where a public name lives, when it is not an error."""


if not TYPE_CHECKING:  # a type checker would take every misspelt name for a public one

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "spark_bookkeeper.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
