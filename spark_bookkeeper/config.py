"""Settings as frozen values: numbers and strings, checked when they are made, never components.

They can be printed, compared and sent to a Spark executor. ``load_conf`` reads them from
TOML; the files in ``conf/`` show every key with its unit and default. One file may hold the keys of
all kinds, and tables of options. Clients, stores and clocks are built from them elsewhere
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
    """A bookie that does not store an add in this time is replaced. Too short replaces bookies
    that are merely busy; too long keeps writers waiting for dead ones. Four times within it,
    and at least every 2.5 s, a writer looks whether a bookie became read-only or its agent is gone,
    for 10 s then, and leaves it."""

    max_pending_bytes: int = 64 * MIB
    """Appended and not yet acknowledged; further appends wait. Bounds a writer's memory."""

    max_group_bytes: int = 8 * MIB
    """Small appends that may share one slot, in bytes. Larger groups are fewer files and a longer
    wait for the first append in them. At most ``max_pending_bytes``; no group has 2 GiB."""

    max_group_entries: int = 16_384
    """Small appends that may share one slot, as a count of entries."""

    read_threads: int = 16
    """Reads that one reader keeps going at once."""

    bookie_timeout_ms: int = 20_000
    """A bookie whose storage gives no answer for this long hangs: whatever was asked is given up,
    and other bookies are asked. Storage calls that come back, and bytes that move, are answers.
    Small appends have ``add_timeout_ms`` instead."""

    bookie_retry_ms: int = 10_000
    """A bookie that hangs is asked for nothing for this long, and then for one thing, to see
    whether it answers again."""

    read_hedge_ms: int = 500
    """A bookie that is silent for this long when it is read from: the next one of the write set is
    asked as well, and the first good answer counts."""

    explicit_lac_ms: int = 1_000
    """A writer that has appended nothing for this long tells its bookies how far it has
    acknowledged, so that followers see its last entry. It costs each of them a
    small slot, once for each pause. 0: never; the last entry is then seen with the next one."""

    metadata_timeout_ms: int = 10_000
    """Silence of the metadata store after which a call fails, and length of a session."""

    metadata_reads_in_flight: int = 500
    """Ledgers whose metadata one connection has asked for, and not got, when it reads many. Fewer
    spare a ZooKeeper that others need; more bring no speed."""

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
    """How a bookie agent looks after its storage partition.

    Raises:
        InvalidArgumentError: a value is not a whole number, below its least value, or does not
            fit another value. The message names the key, the value and the rule.
    """

    probe_interval_ms: int = 5_000
    """Between two probes of the storage (write, sync, read back). A bookie whose storage stops
    answering is noticed after about this time."""

    readonly_below_free_bytes: int = 1 * GIB
    """With less free space the bookie takes no new data. 0: never, on storage without an end."""

    writable_above_free_bytes: int = 2 * GIB
    """With this much free space it takes data again. Kept apart from the limit above, so that a
    bookie near it does not change its mind with every file."""

    http_host: str = "127.0.0.1"
    """Where ``bookie start`` serves ``/metrics`` and ``/health``: an address of this machine,
    ``0.0.0.0`` for all of them, ``""`` for nowhere. Whoever reaches it may read, so it is the
    loopback address unless it is told otherwise."""

    http_port: int = 0
    """The port there. 0: that of the bookie id."""

    gc_interval_s: int = 900
    """Between two collections of garbage: what is left of deleted ledgers, and of writes that were
    never finished. 0: never."""

    gc_copies_interval_s: int = 86_400
    """Between two collections of copies that nothing names. Every other replica of their ledgers
    is read before they go. A bookie that is short of space has ``gc_interval_s`` instead. 0: never.
    """

    gc_leftovers_after_s: int = 86_400
    """What is left of unfinished writes goes when it is older."""

    compact_interval_s: int = 3_600
    """Between two looks for closed ledgers of many small files, to make few large ones of them. 0:
    never."""

    compact_after_files: int = 100_000
    """And sooner, but not before a tenth of that time, when so many files have come to the bookie's
    file system since, of anybody. 0: not for that."""

    compact_files_least: int = 16
    """Fewer files of a ledger are not worth it."""

    compact_bytes_per_second: int = 20 * MIB
    """Limit on what compaction moves. 0: none."""

    scrub_interval_s: int = 1_209_600
    """Between the beginnings of two rounds in which everything is read and compared with its
    digests. 0: never."""

    scrub_bytes_per_second: int = 5 * MIB
    """Limit on what scrubbing reads, and on what is read before copies that nothing names go. 0:
    none."""

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
"""What a rebalance leaves free on its targets, or they would soon take nothing more."""

COMPACTED_FROM_FILES: Final = BookieConfig.compact_files_least
"""Files that one ledger has on one bookie before compaction is worth the work."""


@dataclass(frozen=True)
class AutorecoveryConfig:
    """When an auditor looks at what, and how patient a replication worker is.

    What concerns the whole cluster (the switch, the delay of a lost bookie, the limit on copying)
    is kept in the cluster, and set with ``spark-bookkeeper autorecovery``.

    Raises:
        InvalidArgumentError: a value is not a whole number or out of its range.
    """

    bookie_check_interval_s: int = 86_400
    """Between two looks whether every bookie that ledgers name is there, besides the one at the
    start and after every loss. 0: only those."""

    ledger_check_interval_s: int = 604_800
    """Between two checks of all ledgers, the first and last entry of every replica. 0: never."""

    ledger_check_percentage: int = 0
    """Of the other entries, how many are read and verified; 100 verifies every digest."""

    placement_check_interval_s: int = 0
    """Between two looks whether copies are on as many racks as they could be. 0: never."""

    replicas_check_interval_s: int = 0
    """Between two counts of the replicas of every entry. 0: never."""

    check_bytes_per_second: int = 50 * MIB
    """Limit on what a check reads. 0: none."""

    open_ledger_grace_ms: int = 30_000
    """A writer has so long to replace a lost bookie itself before its ledger is fenced."""

    retry_first_ms: int = 10_000
    """After a ledger could not be repaired, it is left alone for so long; then twice as long. So is
    a check of the auditor that failed."""

    retry_most_ms: int = 300_000
    """And never longer than this. A bookie that comes ends the wait; where nothing else can help, a
    day does."""

    ledgers_at_once: int = 8
    """Ledgers that one worker without Spark repairs side by side, as long as it runs or in one
    round. In each of Spark's tasks it is ``job_items_at_once``."""

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
    """One of several partitions that one agent looks after: a table ``[[partitions]]``."""

    bookie_id: str
    """Its name in the cluster, ``host:port``."""
    root: str
    """Its storage: a path or a URI."""
    rack: str | None = None
    """For placement; ``None`` is that of the command line."""


@dataclass(frozen=True)
class Conf:
    """What one TOML file says; what it leaves out has its default."""

    client: ClientConfig = field(default_factory=ClientConfig)
    bookie: BookieConfig = field(default_factory=BookieConfig)
    autorecovery: AutorecoveryConfig = field(default_factory=AutorecoveryConfig)
    zk_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its table ``[zk]``: how to reach and prove oneself to ZooKeeper."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Its table ``[storage]``: for the bookies' file systems. Both may hold secrets."""
    partitions: tuple[PartitionConf, ...] = ()
    """Its tables ``[[partitions]]``: what ``bookie start`` looks after when it is told nothing."""


def load_conf(path: str | Path) -> Conf:
    """Read everything that a TOML file may hold. The log warns of one that holds a password or key,
    and that every user may read.

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
    """Make a config from keys and values; ``source`` says in errors where they came from.

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
