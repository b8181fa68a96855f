"""Settings as frozen values: numbers and strings that are checked when made, never components.

They can be printed, compared and sent to a Spark executor. ``load_conf`` reads them from TOML; the
files in ``conf/`` show every key with its unit and default. One file may hold the keys of all
kinds, and tables of options. Clients, stores and clocks are built from them elsewhere
(``connection.py``).
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.runtime.private_files import holds_a_secret, warn_if_others_may_read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLES: Final = ("zk", "storage")
"""Tables of options that a file may hold besides the keys of the configs."""

_PARTITIONS: Final = "partitions"

MIB: Final = 1 << 20
GIB: Final = 1 << 30


@dataclass(frozen=True)
class ClientConfig:
    """How ledgers are written and read.

    Raises:
        InvalidArgumentError: a value is not a whole number, below its least value, or does not
            fit another value. The message names the key, the value and the rule.
    """

    add_timeout_ms: int = 30_000
    """A bookie that does not store an add in this time is replaced. Too short replaces bookies that
    are merely busy; too long keeps writers waiting for dead ones. Four times within it, and at
    least every 2.5 s, a writer reads the registrations. It leaves a bookie that became read-only,
    or whose agent has been gone for 10 s."""

    max_pending_bytes: int = 64 * MIB
    """The most bytes appended but not acknowledged; more appends wait. Bounds a writer's memory."""

    max_group_bytes: int = 8 * MIB
    """The most bytes of small appends that share one slot. Larger groups are fewer files and a
    longer wait for the first append in them. At most ``max_pending_bytes``; no group has 2 GiB."""

    max_group_entries: int = 16_384
    """The most entries of small appends that share one slot."""

    read_threads: int = 16
    """Reads that one reader keeps going at once."""

    bookie_timeout_ms: int = 20_000
    """The time-out of a bookie. If its storage gives no answer for this long, the call ends, and
    other bookies are called. Returned storage calls and moved bytes count as answers. Small appends
    have ``add_timeout_ms`` instead."""

    bookie_retry_ms: int = 10_000
    """A bookie that timed out gets no calls for this long, and then one call, to test whether it
    answers again."""

    read_hedge_ms: int = 500
    """If a bookie does not answer a read in this time, the next one of the write set is read as
    well, and the first good answer counts."""

    explicit_lac_ms: int = 1_000
    """A writer that has appended nothing for this long sends its last add confirmed to its bookies,
    so that followers see its last entry. It costs each bookie a small slot, once for each pause. 0:
    never; the last entry is then seen with the next one."""

    metadata_timeout_ms: int = 10_000
    """The time-out of calls to the metadata store, and the length of a session."""

    metadata_reads_in_flight: int = 500
    """The most ledgers whose metadata one connection has requested and not yet received, when it
    reads many. Fewer spare a shared ZooKeeper; more bring no speed."""

    job_items_at_once: int = 16
    """Ledgers or fragments that a job works on at once: in each of Spark's tasks, or in this
    process. A worker of autorecovery without Spark has ``ledgers_at_once`` instead."""

    def __post_init__(self) -> None:
        _at_least(self, 1, may_be_off="explicit_lac_ms")
        if self.max_group_bytes > self.max_pending_bytes:
            raise InvalidArgumentError(
                f"max_group_bytes={self.max_group_bytes} is more than "
                f"max_pending_bytes={self.max_pending_bytes}: a full group could never be sent; "
                "lower the first or raise the second"
            )


@dataclass(frozen=True)
class BookieConfig:
    """How a bookie agent serves its storage partition.

    Raises:
        InvalidArgumentError: a value is not a whole number, below its least value, or does not
            fit another value. The message names the key, the value and the rule.
    """

    probe_interval_ms: int = 5_000
    """The interval between two probes of the storage (write, sync, read back). A bookie whose
    storage stops answering is noticed after about this time."""

    readonly_below_free_bytes: int = 1 * GIB
    """With less free space the bookie takes no new data. 0: never, for storage without a limit."""

    writable_above_free_bytes: int = 2 * GIB
    """With this much free space it takes data again. It is higher than the limit above, so that a
    bookie near that limit does not change its state with every file."""

    http_host: str = "127.0.0.1"
    """Where ``bookie start`` serves ``/metrics`` and ``/health``: an address of this machine,
    ``0.0.0.0`` for all of them, ``""`` for none. Everyone who can reach it may read, so the default
    is the loopback address."""

    http_port: int = 0
    """The port there. 0: the port of the bookie id."""

    gc_interval_s: int = 900
    """The interval between two garbage collections: of data of deleted ledgers, and of leftovers of
    writes that were never finished. 0: never."""

    gc_copies_interval_s: int = 86_400
    """The interval between two collections of copies that no fragment names. Every other replica of
    their ledgers is read first. A bookie that is short of space has ``gc_interval_s`` instead. 0:
    never."""

    gc_leftovers_after_s: int = 86_400
    """The least age of a leftover of an unfinished write that is removed."""

    compact_interval_s: int = 3_600
    """The interval between two compactions of closed ledgers: many small files become few large
    ones. 0: never."""

    compact_after_files: int = 100_000
    """The number of new files on the bookie's file system, of any program, that starts a compaction
    earlier, but not before a tenth of that interval. 0: never earlier."""

    compact_files_least: int = 16
    """The fewest files of a ledger that are compacted."""

    compact_bytes_per_second: int = 20 * MIB
    """Limit on the bytes that compaction moves. 0: none."""

    scrub_interval_s: int = 1_209_600
    """The interval between the beginnings of two rounds in which everything is read and compared
    with its digests. 0: never."""

    scrub_bytes_per_second: int = 5 * MIB
    """Limit on what scrubbing reads, and on what is read before copies that no fragment names are
    removed. 0: none."""

    def __post_init__(self) -> None:
        _at_least(self, 0)
        if not isinstance(self.http_host, str):
            raise InvalidArgumentError(f"http_host={self.http_host!r} is no text")
        if self.http_port > 65_535:
            raise InvalidArgumentError(f"http_port={self.http_port} is above 65535")
        if self.probe_interval_ms < 1:
            raise InvalidArgumentError(
                f"probe_interval_ms={self.probe_interval_ms} is below 1; 5000 is usual"
            )
        if self.writable_above_free_bytes < self.readonly_below_free_bytes:
            raise InvalidArgumentError(
                f"writable_above_free_bytes={self.writable_above_free_bytes} is below "
                f"readonly_below_free_bytes={self.readonly_below_free_bytes}: the bookie would be "
                "both; raise the first or lower the second"
            )


SPARE_BYTES: Final = BookieConfig.writable_above_free_bytes
"""Bytes that a rebalance leaves free on its targets; with fewer they would soon be read-only."""

COMPACTED_FROM_FILES: Final = BookieConfig.compact_files_least
"""The fewest files of one ledger on one bookie that are worth a compaction."""


@dataclass(frozen=True)
class AutorecoveryConfig:
    """The intervals of an auditor's checks, and the patience of a replication worker.

    The settings of the whole cluster (the switch, the delay of a lost bookie, the limit on copying)
    are kept in the cluster, and set with ``spark-bookkeeper autorecovery``.

    Raises:
        InvalidArgumentError: a value is not a whole number or out of its range.
    """

    bookie_check_interval_s: int = 86_400
    """The interval between two checks whether every bookie that ledgers name is registered, besides
    those at the start and after every loss. 0: only those."""

    ledger_check_interval_s: int = 604_800
    """The interval between two checks of the first and last entries of all replicas. 0: never."""

    ledger_check_percentage: int = 0
    """The percentage of the other entries that are read and verified; 100 verifies every digest."""

    placement_check_interval_s: int = 0
    """The interval between two checks whether copies are on as many racks as possible. 0: never."""

    replicas_check_interval_s: int = 0
    """The interval between two counts of the replicas of every entry. 0: never."""

    check_bytes_per_second: int = 50 * MIB
    """Limit on what a check reads. 0: none."""

    open_ledger_grace_ms: int = 30_000
    """Time for a writer to replace a lost bookie itself, before its ledger is fenced."""

    retry_first_ms: int = 10_000
    """The pause after a ledger could not be repaired, or a check of the auditor failed. It doubles
    with each further failure."""

    retry_most_ms: int = 300_000
    """The longest such pause. A new bookie ends it at once. If only an event can help, such as
    a new bookie, the pause is a day."""

    ledgers_at_once: int = 8
    """Ledgers that one worker without Spark repairs at once, as a process or in one round. In each
    of Spark's tasks it is ``job_items_at_once``."""

    def __post_init__(self) -> None:
        _at_least(self, 0)
        for name in ("retry_first_ms", "retry_most_ms", "ledgers_at_once"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}={getattr(self, name)} is below 1")
        if self.ledger_check_percentage > 100:
            raise InvalidArgumentError(
                f"ledger_check_percentage={self.ledger_check_percentage} is above 100"
            )


Config = TypeVar("Config", ClientConfig, BookieConfig, AutorecoveryConfig)


@dataclass(frozen=True, slots=True)
class PartitionConf:
    """One of several partitions that one agent serves: a table ``[[partitions]]``."""

    bookie_id: str
    """The bookie's id in the cluster, ``host:port``."""
    root: str
    """Its storage: a path or a URI."""
    rack: str | None = None
    """The rack for placement; ``None``: that of the command line."""


@dataclass(frozen=True)
class Conf:
    """The content of one TOML file; a missing setting has its default."""

    client: ClientConfig = field(default_factory=ClientConfig)
    bookie: BookieConfig = field(default_factory=BookieConfig)
    autorecovery: AutorecoveryConfig = field(default_factory=AutorecoveryConfig)
    zk_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The table ``[zk]``: address, TLS and credentials for ZooKeeper."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The table ``[storage]``: for the bookies' file systems. Both may hold secrets."""
    partitions: tuple[PartitionConf, ...] = ()
    """The tables ``[[partitions]]``: the default partitions of ``bookie start``."""


def load_conf(path: str | Path) -> Conf:
    """Read everything that a TOML file may hold. It logs a warning if the file holds a password or
    key and every user may read it.

    Raises:
        InvalidArgumentError: no such file, no TOML, an unknown key (the nearest known one is
            named), or a value that breaks a rule. No option's value is shown.
    """
    values, source = _read_toml(path), str(path)
    options = {name: values.pop(name, {}) for name in _TABLES}
    for name, table in options.items():
        if not isinstance(table, dict):
            raise InvalidArgumentError(f"{name} in {source} is no table; write [{name}] above it")
    partitions = _partitions(values.pop(_PARTITIONS, []), source)
    bookie = {key: values.pop(key) for key in list(values) if key in _keys(BookieConfig)}
    autorecovery = {
        key: values.pop(key) for key in list(values) if key in _keys(AutorecoveryConfig)
    }
    known = (
        *(*_keys(ClientConfig), *_keys(BookieConfig), *_keys(AutorecoveryConfig)),
        *(*_TABLES, _PARTITIONS),
    )
    _check_keys(values, known, source)
    if holds_a_secret(options):
        warn_if_others_may_read(path, "a password or key")
    return Conf(
        config_from(ClientConfig, values, source),
        config_from(BookieConfig, bookie, source),
        config_from(AutorecoveryConfig, autorecovery, source),
        {key: _as_text(key, value, source) for key, value in options["zk"].items()},
        options["storage"],
        partitions,
    )


def config_from(cls: type[Config], values: Mapping[str, Any], source: str) -> Config:
    """Make a config from keys and values; ``source`` is their origin in error messages.

    Raises:
        InvalidArgumentError: an unknown key, or a value that breaks a rule.
    """
    _check_keys(values, _keys(cls), source)
    try:
        return cls(**values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {error.message}") from error


def _keys(cls: type[ClientConfig | BookieConfig | AutorecoveryConfig]) -> list[str]:
    return [known.name for known in fields(cls)]


def _check_keys(values: Mapping[str, Any], known: Sequence[str], source: str) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise InvalidArgumentError(f"unknown key {key!r} in {source}: {hint}")


def _partitions(tables: object, source: str) -> tuple[PartitionConf, ...]:
    known = [each.name for each in fields(PartitionConf)]
    found: list[PartitionConf] = []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidArgumentError(
            f"{_PARTITIONS} in {source} is no list of tables; write [[{_PARTITIONS}]] above each"
        )
    for table in tables:
        _check_keys(table, known, f"[[{_PARTITIONS}]] of {source}")
        if not all(isinstance(value, str) for value in table.values()) or not {
            "bookie_id",
            "root",
        } <= set(table):
            raise InvalidArgumentError(
                f"a table [[{_PARTITIONS}]] of {source} has not both bookie_id and root as texts"
            )
        found.append(PartitionConf(**table))
    return tuple(found)


def _as_text(key: str, value: object, source: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    raise InvalidArgumentError(f"zk.{key} in {source} is neither a text nor true or false")


def _read_toml(path: str | Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is not TOML: {error}") from error
    return values


def _at_least(
    config: ClientConfig | BookieConfig | AutorecoveryConfig, least: int, may_be_off: str = ""
) -> None:
    """Check the values; the key ``may_be_off`` may be 0 as well."""
    for known in fields(config):
        name, value = known.name, getattr(config, known.name)
        if isinstance(known.default, str):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{name}={value!r} is not a whole number")
        if value < least and not (name == may_be_off and value == 0):
            raise InvalidArgumentError(f"{name}={value} is below {least}")
