"""The options of the data source: each one is a field of ``SourceOptions``.

A field defines an option's name (``starting_offsets`` is ``startingOffsets``), how its text is
parsed (``option_texts.py``), where it can be used, its default, and its meaning for users. The
parser, its errors and the table for users are made from the fields.

Spark passes options as strings, with their names in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Final, Literal

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.offset_options import (
    Place,
    begins_behind_its_end,
    is_reversed,
    parse_place,
)
from spark_bookkeeper.source.option_texts import (
    distinct_names,
    flag,
    ledger_runs,
    nearest,
    number,
    one_of,
    size_bytes,
    some_text,
    utf8,
)

if TYPE_CHECKING:
    from spark_bookkeeper.connection import Connection

VIEWS: Final = (
    "ledgers",
    "fragments",
    "entries",
    "bookies",
    "underreplicated",
    "slots",
    "logs",
)
"""The values of ``view``: each shows metadata as rows."""

OF_LEDGERS: Final = frozenset({"fragments", "entries", "slots"})
"""Views that ``ledger``, ``ledgers`` or ``log`` can limit to some ledgers."""

OpenMode = Literal["recover", "noRecovery"]


class Use(Flag):
    """Where an option can be used."""

    READ = auto()
    STREAM = auto()
    WRITE = auto()
    STREAM_WRITE = auto()


READS: Final = Use.READ | Use.STREAM
WRITES: Final = Use.WRITE | Use.STREAM_WRITE
ALL: Final = READS | WRITES

_USE_TEXTS: Final = {
    ALL: "all",
    Use.READ: "read",
    Use.STREAM: "stream",
    Use.READ | Use.STREAM: "read, stream",
    Use.WRITE: "write",
    Use.STREAM_WRITE: "stream write",
    WRITES: "write, stream write",
}
_USE_NAMES: Final = {
    Use.READ: "spark.read",
    Use.STREAM: "spark.readStream",
    Use.WRITE: "df.write",
    Use.STREAM_WRITE: "df.writeStream",
}

_AS_CREATED: Final = "As of `create_ledger`"
_SHOWN_MOST: Final = 200

_OF_SINKS: Final = frozenset({"checkpointlocation", "queryname", "provider"})
"""Options that Spark itself adds for a sink and for a table."""

_OF_TABLES: Final = re.compile(r"path|owner|location|external|is_managed_location|option\..*")
"""Options that Spark adds only for a table, next to its ``provider``."""

_ELSEWHERE: Final[Mapping[str, str]] = {
    "subscribe": "log",
    "topic": "log",
    "table": "log",
    "kafka.bootstrap.servers": "metadataUri",
    "startingversion": "startingOffsets",
    "startingtimestamp": "startingOffsets",
    "endingversion": "endingOffsets",
    "endingtimestamp": "endingOffsets",
    "versionasof": "endingOffsets",
    "timestampasof": "endingOffsets",
    "ignoredeletes": "failOnDataLoss",
    "maxoffsetspertrigger": "maxEntriesPerTrigger",
    "maxfilespertrigger": "maxEntriesPerTrigger",
}
"""Option names of Kafka's and Delta's sources, and the option that replaces each here."""


def option(
    parse: Callable[[str], Any], use: Use, meaning: str, default: Any = None, shown: str = ""
) -> Any:
    """Define one option: how its text is parsed, where it is used, its meaning and its default.

    Args:
        shown: the default as the table for users shows it; empty shows ``default`` itself.
    """
    told = {"parse": parse, "use": use, "meaning": meaning, "shown": shown}
    return field(default=default, metadata=told)


def _cut(text: str) -> str:
    """Return a value, shortened for an error message."""
    return text if len(text) <= _SHOWN_MOST else f"{text[:_SHOWN_MOST]}..."


@dataclass(frozen=True, repr=False)
class SourceOptions:
    """The options of one read or write, as values. Frozen and picklable; made by ``parse``.

    Its ``repr`` shows no values, as some may be secrets.
    """

    metadata_uri: str | None = option(
        some_text,
        ALL,
        "The cluster: `zk+hierarchical://zk1:2181,zk2:2181/ledgers`, or `zk1:2181`. Without it: "
        "`spark.bookkeeper.metadataUri`, where `sbk.register_source(spark)` was called, or the "
        "environment's `SPARK_BOOKKEEPER_METADATA_URI`",
        shown="required",
    )
    ledger: int | None = option(number(0), READS, "One ledger, by id")
    ledgers: tuple[tuple[int, int], ...] | None = option(
        ledger_runs,
        Use.READ,
        "Several ledgers whose schemas are compatible, in this order: `7,9-12`",
    )
    log: str | None = option(some_text, ALL, "A log, by name")
    view: str | None = option(
        one_of(*VIEWS),
        Use.READ,
        "Metadata instead of data: " + ", ".join(f"`{view}`" for view in VIEWS),
    )
    starting_offsets: Place | None = option(
        parse_place,
        READS,
        'The first entry: `earliest`, `latest`, `{"ledger": 7, "entry": 12}` (or `7:12`), or the '
        'first one appended at a time or later, `{"time": "2026-11-22T06:30:00Z"}`. Streams look '
        "at it when they have no checkpoint yet",
        shown="`earliest`; of a stream `latest`",
    )
    ending_offsets: Place | None = option(
        parse_place, Use.READ, "Up to and without this entry; in the same forms", shown="`latest`"
    )
    open_mode: OpenMode = option(
        one_of("recover", "noRecovery"),
        Use.READ,
        "What to do with a ledger that is not closed: fence, recover and close it, or read as far "
        "as is known to be acknowledged, without disturbing its writer. Logs are always read "
        "without",
        "recover",
    )
    include_metadata: bool = option(
        flag,
        READS,
        "Add the column `_metadata`, a struct of `ledger_id`, `entry_id`, `row`, "
        "`last_add_confirmed`, `bookie` and `digest`",
        False,
    )
    columns: tuple[str, ...] | None = option(
        distinct_names,
        READS,
        'Only these columns, `a,b` (or `["a", "b,c"]`): no others are decoded or sent',
        shown="all",
    )
    bookie: str | None = option(
        some_text, Use.READ, "Read the copy of this bookie and no other, for those who must compare"
    )
    min_partitions: int | None = option(
        number(1), Use.READ, "A hint: at least so many tasks, where there are enough entries"
    )
    max_entries_per_partition: int | None = option(
        number(1), READS, "A hint: no task reads more entries"
    )
    max_entries_per_trigger: int | None = option(
        number(1),
        Use.STREAM,
        "About so many entries in a micro-batch; there is always some progress",
        shown="no limit",
    )
    max_bytes_per_trigger: int | None = option(
        size_bytes,
        Use.STREAM,
        "About so many bytes in a micro-batch, `64m` for example; there is always some progress",
        shown="no limit",
    )
    fail_on_data_loss: bool = option(
        flag,
        READS,
        "Fail when entries that were asked for were truncated or deleted, are behind the end, or "
        "can be read from no bookie; `false` goes on past them, the log of the task says which, "
        "and `bk.lost_entries()` tells of all",
        True,
    )
    consumer: str | None = option(
        some_text,
        Use.STREAM,
        "A name under which the stream publishes how far it has come beside its log, for "
        "`bk.consumers(log)` and for retention",
    )
    ledger_id: int | None = option(number(0), Use.WRITE, "Write a new ledger of this id")
    name: str | None = option(
        some_text, Use.WRITE, "Write a new ledger with this label, to find it by: `bk.ledgers()`"
    )
    ensemble_size: int | None = option(number(1), Use.WRITE, _AS_CREATED, shown="3")
    write_quorum_size: int | None = option(number(1), Use.WRITE, _AS_CREATED, shown="3")
    ack_quorum_size: int | None = option(number(1), Use.WRITE, _AS_CREATED, shown="2")
    digest_type: str | None = option(
        one_of("CRC32C", "CRC32", "MAC", "DUMMY"), Use.WRITE, _AS_CREATED, shown="CRC32C"
    )
    password: bytes = option(utf8, ALL, "Of the ledger", b"", shown="none")
    compression: str | None = option(one_of("lz4", "zstd"), Use.WRITE, _AS_CREATED, shown="none")
    entry_target_bytes: int | None = option(
        size_bytes, Use.WRITE, "About how large entries get", shown="8m"
    )
    txn_app_id: str | None = option(
        some_text,
        WRITES,
        "Who writes to a log: with `txnVersion` it makes a write idempotent. Streams use their "
        "query and batch by themselves",
    )
    txn_version: int | None = option(
        number(0), Use.WRITE, "Number of the write; one that is not above the last is done already"
    )
    create_log: bool = option(
        flag,
        WRITES,
        "Make the log where there is none: of the columns of the rows, and else as by default",
        False,
    )
    zk: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "use": ALL,
            "meaning": "Passed to ZooKeeper's client: `zk.auth_data`",
            "shown": "",
        },
    )
    storage: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "use": ALL,
            "meaning": "Passed to the bookies' file systems (fsspec): `storage.endpoint_url`",
            "shown": "",
        },
    )

    def __repr__(self) -> str:
        return f"SourceOptions({', '.join(sorted(self.given()))})"

    def given(self) -> set[str]:
        """Return the names of options that do not have their default."""
        return {
            option_name(f.name)
            for f in fields(self)
            if getattr(self, f.name) not in (f.default, {})
        }

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the texts of options.

        Raises:
            InvalidArgumentError: an option is not known (the message names the nearest known one),
                or its value is not valid. The message shows no value that may be a secret.
        """
        known = {option_name(f.name).lower(): f for f in fields(cls) if "parse" in f.metadata}
        values: dict[str, Any] = {}
        prefixed: dict[str, dict[str, str]] = {"zk": {}, "storage": {}}
        values.update(prefixed)
        for name, text in options.items():
            prefix, dot, rest = name.partition(".")
            if dot and rest and prefix.lower() in prefixed:
                prefixed[prefix.lower()][rest] = text
                continue
            found = known.get(name.lower())
            if found is None:
                is_of_table = "provider" in options and _OF_TABLES.fullmatch(name.lower())
                if is_of_table or name.lower() in _OF_SINKS:
                    continue
                raise _unknown(name, text)
            try:
                values[found.name] = found.metadata["parse"](text)
            except (ValueError, InvalidArgumentError) as error:
                shown = "" if found.name == "password" else f"={_cut(text)!r}"
                why = error.message if isinstance(error, InvalidArgumentError) else str(error)
                raise InvalidArgumentError(
                    f"option {option_name(found.name)}{shown}: {why}"
                ) from None
        return cls(**values)

    def check_use(self, use: Use) -> None:
        """Raise ``InvalidArgumentError`` for an option that has no effect in this use."""
        for f in fields(self):
            name = option_name(f.name)
            if name in self.given() and not f.metadata["use"] & use:
                where = " and ".join(
                    text for u, text in _USE_NAMES.items() if u & f.metadata["use"]
                )
                raise InvalidArgumentError(
                    f"option {name} means nothing to {_USE_NAMES[use]}; it is for {where}. Leave "
                    "it out"
                )

    def check_reading(self, use: Use) -> None:
        """Raise ``InvalidArgumentError`` unless the options select one thing and fit it."""
        self.check_use(use)
        self.check_one_thing()
        if self.consumer is not None and self.log is None:
            raise InvalidArgumentError(
                f"option consumer={self.consumer!r} is for logs, beside which it publishes how far "
                "the stream has come; this stream reads one ledger. Leave it out"
            )

    def check_one_thing(self) -> None:
        """Raise ``InvalidArgumentError`` unless the options select exactly one thing to read."""
        what = {"ledger": self.ledger, "ledgers": self.ledgers, "log": self.log}
        chosen = [name for name, value in what.items() if value is not None]
        if self.view is not None:
            _check_view(self, chosen)
            return
        if len(chosen) != 1:
            told = f"{' and '.join(chosen)} were given" if chosen else "none was given"
            raise InvalidArgumentError(
                f"exactly one of ledger, ledgers, log and view is read, and {told}. "
                '.option("log", "orders") reads a log; in SQL: '
                "CREATE TEMPORARY VIEW v USING bookkeeper OPTIONS (log 'orders', ...). Of a table "
                "made by CREATE TABLE Spark keeps no options: SELECT * FROM t WITH (log = 'orders')"
                " gives them each time"
            )
        start = self.starting_offsets
        is_told_later = self.log is not None and isinstance(start, Position) and start.entry_id == 0
        if is_reversed(start, self.ending_offsets) and not is_told_later:
            raise begins_behind_its_end()

    def connection(self) -> Connection:
        """Return how to reach the cluster.

        Raises:
            InvalidArgumentError: no cluster was given, or an option of ``zk.*`` is not known.
        """
        import os

        from spark_bookkeeper.config import ClientConfig
        from spark_bookkeeper.connection import METADATA_URI_VARIABLE, Connection

        given = self.metadata_uri
        uri = os.environ.get(METADATA_URI_VARIABLE) if given is None else given
        if not uri:
            raise InvalidArgumentError(
                "option metadataUri is missing: "
                '.option("metadataUri", "zk+hierarchical://zk1:2181/ledgers"), or in SQL '
                "OPTIONS (metadataUri '...'). Of a table made by CREATE TABLE Spark keeps no "
                "options: INSERT INTO t WITH (log = 'orders', metadataUri = '...') gives them each "
                "time, and so does SELECT * FROM t WITH (...). For a whole session set "
                "spark.bookkeeper.metadataUri and call spark_bookkeeper.register_source(spark); "
                f"for all sessions of a driver set {METADATA_URI_VARIABLE} in its environment"
            )
        return Connection(uri, ClientConfig(), dict(self.storage), dict(self.zk), "Spark")


def option_name(field_name: str) -> str:
    """Return the users' name of an option: ``min_partitions`` is ``minPartitions``."""
    first, *others = field_name.split("_")
    name = first + "".join(part.capitalize() for part in others)
    return f"{name}.*" if field_name in {"zk", "storage"} else name


def options_table() -> str:
    """Return all options as a table in Markdown."""
    lines = ["| option | used in | default | meaning |", "|---|---|---|---|"]
    for f in fields(SourceOptions):
        told = f.metadata
        shown = told["shown"]
        if not shown and f.default is not None and "parse" in told:
            shown = str(f.default).lower() if isinstance(f.default, bool) else f"`{f.default}`"
        use = _USE_TEXTS[told["use"]]
        lines.append(f"| `{option_name(f.name)}` | {use} | {shown} | {told['meaning']} |")
    return "\n".join(lines) + "\n"


def _check_view(options: SourceOptions, chosen: list[str]) -> None:
    allowed = {"metadataUri", "view", "password", "zk.*", "storage.*", "minPartitions"}
    if options.view in OF_LEDGERS:
        allowed |= {"ledger", "ledgers", "log"}
    if options.view == "logs":
        allowed |= {"log"}
    wrong = sorted(options.given() - allowed)
    if wrong:
        raise InvalidArgumentError(
            f"option {wrong[0]} means nothing to view={options.view}; leave it out"
        )
    if len(chosen) > 1:
        raise InvalidArgumentError(
            f"{' and '.join(chosen)} were given; view={options.view} is of one of them, or of all "
            "ledgers"
        )


def _unknown(name: str, text: str) -> InvalidArgumentError:
    if name.lower() in {"path", "paths"}:
        return InvalidArgumentError(
            f"nothing here has a path: load({text!r}) and save({text!r}) take none. "
            f'.option("log", {text!r}) names a log; .option("ledger", 7) reads a ledger, and '
            '.option("name", "orders-2024") writes a new one'
        )
    known_elsewhere = _ELSEWHERE.get(name.lower())
    if known_elsewhere is not None:
        return InvalidArgumentError(
            f"option {name!r} is not known; what comes nearest here is {known_elsewhere!r}, whose "
            "values are in the table of options (source/OPTIONS.md)"
        )
    names = [option_name(f.name) for f in fields(SourceOptions)]
    return InvalidArgumentError(
        f"option {name!r} is not known{nearest(name, names) or '; known are ' + ', '.join(names)}"
    )
