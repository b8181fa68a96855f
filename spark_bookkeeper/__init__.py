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
    from spark_bookkeeper import demo, pictures
    from spark_bookkeeper.client.ledger_info import LedgerInfo
    from spark_bookkeeper.client.read.reader import Entry, LedgerReader
    from spark_bookkeeper.client.write.writer import LedgerWriter
    from spark_bookkeeper.config import AutorecoveryConfig, BookieConfig, ClientConfig
    from spark_bookkeeper.errors import (
        AppendFailedError,
        BookieError,
        BookieFullError,
        BookieReadOnlyError,
        BookieUnavailableError,
        BookKeeperError,
        CookieMismatchError,
        CorruptEntryError,
        DataLossError,
        EntryUnreadableError,
        InvalidArgumentError,
        LedgerClosedError,
        LedgerError,
        LedgerExistsError,
        LedgerFencedError,
        LogError,
        LogExistsError,
        LogOwnershipLostError,
        MetadataError,
        MetadataFormatError,
        MetadataUnavailableError,
        MissingRequirementError,
        NoClusterError,
        NoSuchEntryError,
        NoSuchLedgerError,
        NoSuchLogError,
        NotEnoughBookiesError,
        ProcessLimitError,
        RecoveryUndecidedError,
        SlotTakenError,
        UnauthorizedError,
        UnsuitableStorageError,
        VersionConflictError,
    )
    from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
    from spark_bookkeeper.logs.log import Log
    from spark_bookkeeper.logs.writer import LogWriter
    from spark_bookkeeper.opening import connect, local
    from spark_bookkeeper.protocol.log import Position
    from spark_bookkeeper.replication.report import CheckReport, RecoveryReport
    from spark_bookkeeper.session import BookKeeper
    from spark_bookkeeper.source.registration import register_source
    from spark_bookkeeper.spark.session import spark_session

    __version__: str

__all__ = [
    "AppendFailedError",
    "AutorecoveryConfig",
    "BookKeeper",
    "BookKeeperError",
    "BookieConfig",
    "BookieError",
    "BookieFullError",
    "BookieReadOnlyError",
    "BookieUnavailableError",
    "CheckReport",
    "ClientConfig",
    "CookieMismatchError",
    "CorruptEntryError",
    "DataLossError",
    "Entry",
    "EntryUnreadableError",
    "InvalidArgumentError",
    "LedgerClosedError",
    "LedgerError",
    "LedgerExistsError",
    "LedgerFencedError",
    "LedgerInfo",
    "LedgerReader",
    "LedgerWriter",
    "LocalCluster",
    "Log",
    "LogError",
    "LogExistsError",
    "LogOwnershipLostError",
    "LogWriter",
    "MetadataError",
    "MetadataFormatError",
    "MetadataUnavailableError",
    "MissingRequirementError",
    "NoClusterError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NoSuchLogError",
    "NotEnoughBookiesError",
    "Position",
    "ProcessLimitError",
    "RecoveryReport",
    "RecoveryUndecidedError",
    "SlotTakenError",
    "UnauthorizedError",
    "UnsuitableStorageError",
    "VersionConflictError",
    "connect",
    "demo",
    "local",
    "pictures",
    "register_source",
    "spark_session",
]

_HOMES = {
    "AutorecoveryConfig": "spark_bookkeeper.config",
    "BookKeeper": "spark_bookkeeper.session",
    "BookieConfig": "spark_bookkeeper.config",
    "CheckReport": "spark_bookkeeper.replication.report",
    "ClientConfig": "spark_bookkeeper.config",
    "Entry": "spark_bookkeeper.client.read.reader",
    "LedgerInfo": "spark_bookkeeper.client.ledger_info",
    "LedgerReader": "spark_bookkeeper.client.read.reader",
    "LedgerWriter": "spark_bookkeeper.client.write.writer",
    "LocalCluster": "spark_bookkeeper.local_cluster.local_cluster",
    "Log": "spark_bookkeeper.logs.log",
    "LogWriter": "spark_bookkeeper.logs.writer",
    "Position": "spark_bookkeeper.protocol.log",
    "RecoveryReport": "spark_bookkeeper.replication.report",
    "connect": "spark_bookkeeper.opening",
    "local": "spark_bookkeeper.opening",
    "register_source": "spark_bookkeeper.source.registration",
    "spark_session": "spark_bookkeeper.spark.session",
}
"""Where a public name lives, when it is not an error."""


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("spark-bookkeeper")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


if not TYPE_CHECKING:  # a type checker would take every misspelt name for a public one

    def __getattr__(name: str) -> object:
        if name == "__version__":
            value = _version()
        elif name in ("demo", "pictures"):
            value = import_module(f"spark_bookkeeper.{name}")
        elif name in __all__:
            value = getattr(import_module(_HOMES.get(name, "spark_bookkeeper.errors")), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
