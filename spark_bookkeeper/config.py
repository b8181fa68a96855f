"""Settings as frozen values: numbers and strings, checked when they are made, never components.

They can be printed, compared and sent to a Spark executor. ``load_client_config`` and
``load_bookie_config`` read them from TOML; the files in ``conf/`` show every key with its unit
and default. Clients, stores and clocks are built from them elsewhere (``connection.py``).
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_bookkeeper.errors import InvalidArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KIB: Final = 1 << 10
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
    that are merely busy; too long keeps writers waiting for dead ones. Four times within it a
    writer looks whether a bookie became read-only, and leaves it."""

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
    """A writer that has appended nothing for this long, or up to twice as long, tells its bookies
    how far it has acknowledged, so that followers see its last entry. It costs each of them a
    small slot, once for each pause. 0: never; the last entry is then seen with the next one."""

    metadata_timeout_ms: int = 10_000
    """Silence of the metadata store after which a call fails, and length of a session."""

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


Config = TypeVar("Config", ClientConfig, BookieConfig)


def load_client_config(path: str | Path) -> ClientConfig:
    """Read a ``ClientConfig`` from a TOML file; keys that are left out have their defaults.

    Raises:
        InvalidArgumentError: no such file, no TOML, an unknown key (the nearest known one is
            named), or a value that breaks a rule.
    """
    return config_from(ClientConfig, _read_toml(path), str(path))


def load_bookie_config(path: str | Path) -> BookieConfig:
    """Read a ``BookieConfig`` from a TOML file, as ``load_client_config`` does."""
    return config_from(BookieConfig, _read_toml(path), str(path))


def config_from(cls: type[Config], values: Mapping[str, Any], source: str) -> Config:
    """Make a config from keys and values; ``source`` says in errors where they came from.

    Raises:
        InvalidArgumentError: an unknown key, or a value that breaks a rule.
    """
    known = [field.name for field in fields(cls)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise InvalidArgumentError(f"unknown key {key!r} in {source}: {hint}")
    try:
        return cls(**values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {error.message}") from error


def _read_toml(path: str | Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path} is not TOML: {error}") from error
    return values


def _at_least(config: ClientConfig | BookieConfig, least: int, may_be_off: str = "") -> None:
    """Check the values; the key ``may_be_off`` may be 0 as well."""
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(field.default, str):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{field.name}={value!r} is not a whole number")
        if value < least and not (field.name == may_be_off and value == 0):
            raise InvalidArgumentError(f"{field.name}={value} is below {least}")
