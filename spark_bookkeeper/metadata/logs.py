"""Logs in the metadata store: the head of each, and its chunks.

The head of log ``orders`` is the register ``logs/orders``, a JSON object. Its chunks are registers
below it, JSON lists of ledger ids. A head is never removed, so its version never begins anew; the
chunks of a deleted log are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LogExistsError,
    MetadataFormatError,
    NoSuchLogError,
)
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Unchanged, Versioned
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import Chunk, LogHead, Position, parse_log_name
from spark_bookkeeper.protocol.transactions import Committed, Transactions

LOGS_PARENT: Final = "logs"
"""The parent of the registers of logs."""

_VERSION = 1
_VERSION_WITH_TRANSACTIONS = 2
"""The version with transactions. A reader without them would drop them and store a write twice."""
_STAGED = "staged-"
"""The prefix of a register with the ledgers that an owner has staged; the owner's key follows."""
_CHUNK_NAME = re.compile(r"[0-9a-f]+")


def log_names(registers: Registers) -> Sequence[str]:
    """Return every name that has a head, in order, including names of deleted logs."""
    return registers.names(LOGS_PARENT)


def unreadable_logs(registers: Registers) -> Iterator[BookKeeperError]:
    """Yield an error for each log whose head cannot be decoded or whose name is invalid."""
    names = [f"{LOGS_PARENT}/{name}" for name in log_names(registers)]
    for register, head in registers.read_many(names):
        try:
            _value(head, parse_log_name(register.partition("/")[2]))
        except (MetadataFormatError, InvalidArgumentError) as error:
            yield error


def read_log(registers: Registers, name: str) -> LogHead:
    """Return the head of a log now.

    Raises:
        NoSuchLogError: no log has that name.
        MetadataFormatError: its register cannot be decoded.
    """
    return _there(registers.read(_register(name)), name)


def read_life(registers: Registers, name: str, nonce: str) -> LogHead:
    """Return the head of a log now, if it still has this nonce.

    Raises:
        NoSuchLogError: it was deleted, even if the name was used again since.
    """
    return _there(registers.read(_register(name)), name, nonce)


def watch_log(registers: Registers, name: str) -> Unchanged:
    """Begin to watch a log's head; the result is true while the head is unchanged."""
    return registers.watch(_register(name))


def find_log(registers: Registers, name: str) -> LogHead | None:
    """Return the head of a log now; ``None`` if no log has that name."""
    head = find_life(registers, name)
    return None if head is None or head.is_deleted else head


def find_life(registers: Registers, name: str) -> LogHead | None:
    """Return the head of a log now, even of a deleted one; ``None`` if the name was never used."""
    return _value(registers.read(_register(name)), name)


def create_log(registers: Registers, name: str, head: LogHead) -> LogHead:
    """Create a log; the name may be that of a deleted log.

    Returns:
        the head as stored; it is deleted if the answer was lost and another client deleted the log.

    Raises:
        LogExistsError: the log exists, or a deleted log of that name has ledgers left, whose list
            would be lost. Nothing was changed.
    """

    def step(old: LogHead | None) -> LogHead | None:
        if old is None:
            return head
        if old.nonce == head.nonce:
            return None  # an earlier attempt made it
        if not old.is_deleted:
            raise LogExistsError(
                f"log {name!r} exists already; nothing was changed. open_log({name!r}) opens it",
                log=name,
            )
        if old.chunks or old.recent:
            raise LogExistsError(
                f"log {name!r} was deleted, and its ledgers are not yet; nothing was changed. "
                f"delete_log({name!r}) deletes them, and then the name is free",
                log=name,
            )
        return head

    created = change_register(
        registers, _register(name), lambda found: _value(found, name), _encoded, step
    )
    assert created is not None
    return created


def change_log(
    registers: Registers, name: str, nonce: str, step: Callable[[LogHead], LogHead | None]
) -> LogHead:
    """Change the head of a log by a pure step, see ``change_register``.

    Args:
        registers: the store of registers.
        name: of the log.
        nonce: of the life of the log that is meant.
        step: called again each time that another client changed the head first.

    Raises:
        NoSuchLogError: it was deleted, even if the name was used again since.
    """

    def decode(found: Versioned[bytes] | None) -> LogHead:
        return _there(found, name, nonce)

    return change_register(registers, _register(name), decode, _encoded, step)


def mark_deleted(
    registers: Registers, name: str, nonce: str, step: Callable[[LogHead], LogHead | None]
) -> LogHead:
    """Do ``change_log`` for the step that deletes; a deleted log is returned unchanged."""

    def decode(found: Versioned[bytes] | None) -> LogHead:
        head = _value(found, name)
        return _there(found, name, nonce) if head is None or head.nonce != nonce else head

    return change_register(
        registers,
        _register(name),
        decode,
        _encoded,
        lambda old: None if old.is_deleted else step(old),
    )


def empty_deleted(registers: Registers, name: str, nonce: str) -> None:
    """Empty the list of a deleted log, after its ledgers were deleted too.

    Do nothing if the name was used again since.
    """

    def decode(found: Versioned[bytes] | None) -> LogHead | None:
        return _value(found, name)

    def step(old: LogHead | None) -> LogHead | None:
        if old is None or old.nonce != nonce or not old.is_deleted:
            return None
        return replace(old, chunks=(), recent=(), transactions=Transactions())

    change_register(registers, _register(name), decode, _encoded, step)


def write_chunk(registers: Registers, log: str, chunk: str, ledgers: tuple[LedgerId, ...]) -> None:
    """Store a sealed run of ledgers; no reader finds it until the head names it."""
    registers.create(f"{_register(log)}/{chunk}", json.dumps(ledgers).encode())


def read_chunk(registers: Registers, log: str, chunk: Chunk) -> tuple[LedgerId, ...] | None:
    """Return the ledgers of a chunk; ``None`` if it was deleted, so the head has changed.

    Raises:
        MetadataFormatError: its content differs from the head's description.
    """
    name = f"{_register(log)}/{chunk.name}"
    found = registers.read(name)
    if found is None:
        return None
    try:
        ledgers = tuple(parse_ledger_id(value) for value in json.loads(found.value))
        if (ledgers[0], ledgers[-1], len(ledgers)) != (chunk.first, chunk.last, chunk.count):
            raise ValueError(f"it holds {len(ledgers)} ledgers, not the {chunk.count} it should")
    except Exception as error:  # a decoder of junk may raise anything; only this log is affected
        raise _unreadable(name, error) from error
    return ledgers


def chunk_is_gone(log: str, chunk: Chunk) -> MetadataFormatError:
    """Return the error for a head that names a chunk which does not exist."""
    return _unreadable(f"{_register(log)}/{chunk.name}", LookupError("it is gone"))


def delete_chunk(registers: Registers, log: str, chunk: Chunk) -> None:
    """Remove a chunk that the head no longer names; idempotent."""
    registers.delete(f"{_register(log)}/{chunk.name}")


def read_staged(registers: Registers, log: str, owner: str) -> list[LedgerId]:
    """Return the ledgers that an owner has staged for a log; some may not be in its list.

    Raises:
        MetadataFormatError: the register holds something else.
    """
    name = _staged(log, owner)
    return _ids_in(registers.read(name), name)


def change_staged(
    registers: Registers, log: str, owner: str, step: Callable[[list[LedgerId]], list[LedgerId]]
) -> None:
    """Change the list of staged ledgers by a pure step that may be called several times."""
    name = _staged(log, owner)
    change_register(
        registers,
        name,
        lambda found: _ids_in(found, name),
        lambda ledgers: json.dumps(ledgers).encode(),
        step,
    )


def delete_staged(registers: Registers, log: str) -> None:
    """Delete the lists of staged ledgers of a deleted log."""
    for child in registers.names(_register(log)):
        if child.startswith(_STAGED):
            registers.delete(f"{_register(log)}/{child}")


def _staged(log: str, owner: str) -> str:
    return f"{_register(log)}/{_STAGED}{owner}"


def _ids_in(found: Versioned[bytes] | None, name: str) -> list[LedgerId]:
    if found is None:
        return []
    try:
        return [parse_ledger_id(value) for value in json.loads(found.value)]
    except Exception as error:  # a decoder of junk may raise anything; only this list is affected
        raise _unreadable(name, error) from error


def _register(name: str) -> str:
    return f"{LOGS_PARENT}/{parse_log_name(name)}"


def _there(found: Versioned[bytes] | None, name: str, nonce: str | None = None) -> LogHead:
    head = _value(found, name)
    if head is not None and not head.is_deleted and nonce not in (None, head.nonce):
        raise NoSuchLogError(
            f"log {name!r} was deleted, and another one was made under its name since; nothing was "
            f"changed. open_log({name!r}) opens the one that there is now",
            log=name,
        )
    if head is None or head.is_deleted:
        raise NoSuchLogError(
            f"there is no log {name!r}: it was deleted or never existed; nothing was changed. "
            "logs() shows those there are; create_log() makes one, and so does Spark's write with "
            "option createLog=true",
            log=name,
        )
    return head


def _value(found: Versioned[bytes] | None, name: str) -> LogHead | None:
    return None if found is None else _decoded(found.value, LOGS_PARENT + "/" + name)


def _encoded(head: LogHead | None) -> bytes:
    assert head is not None
    value = {
        "version": _VERSION_WITH_TRANSACTIONS if head.transactions.last else _VERSION,
        "nonce": head.nonce,
        "options": dict(head.options),
        "chunks": [[c.name, c.first, c.last, c.count] for c in head.chunks],
        "recent": head.recent,
        "begins_at": head.begins_at,
        "deleted_below": head.deleted_below,
        "is_deleted": head.is_deleted,
    }
    if head.truncated_end is not None:
        value["truncated_end"] = str(head.truncated_end)
    if head.transactions.last:
        value["transactions"] = [[t.app_id, t.version, t.ledger_id] for t in head.transactions.last]
        value["rows"] = [t.rows for t in head.transactions.last]  # earlier versions write no rows
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _decoded(data: bytes, path: str) -> LogHead:
    try:
        value = json.loads(data)
        if value["version"] not in (_VERSION, _VERSION_WITH_TRANSACTIONS):
            raise ValueError(f"format version {value['version']!r} is neither 1 nor 2")
        last: list[Any] = value.get("transactions", [])
        counts = value.get("rows", [None] * len(last))
        return LogHead(
            nonce=str(value["nonce"]),
            options=dict(value["options"]),
            chunks=tuple(_chunk(*values) for values in value["chunks"]),
            recent=tuple(parse_ledger_id(ledger) for ledger in value["recent"]),
            begins_at=parse_ledger_id(value["begins_at"]),
            deleted_below=parse_ledger_id(value["deleted_below"]),
            truncated_end=Position.parse(value["truncated_end"])
            if "truncated_end" in value
            else None,
            is_deleted=bool(value["is_deleted"]),
            transactions=Transactions(
                tuple(
                    _committed(app_id, version, ledger_id, rows)
                    for (app_id, version, ledger_id), rows in zip(last, counts, strict=True)
                )
            ),
        )
    except Exception as error:  # a decoder of junk may raise anything; only this log is affected
        raise _unreadable(path, error) from error


def _chunk(name: object, first: object, last: object, count: object) -> Chunk:
    if not isinstance(name, str) or not _CHUNK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a chunk")  # it becomes a path
    return Chunk(name, parse_ledger_id(first), parse_ledger_id(last), whole_number("count", count))


def _committed(app_id: object, version: object, ledger_id: object, rows: object) -> Committed:
    if not isinstance(app_id, str):
        raise ValueError(f"{app_id!r} is no application's id")  # noqa: TRY004  (as all junk is)
    counted = None if rows is None else whole_number("rows", rows, 0)
    number = whole_number("version", version, 0)
    return Committed(app_id, number, parse_ledger_id(ledger_id), counted)


def _unreadable(path: str, error: Exception) -> MetadataFormatError:
    return MetadataFormatError(
        f"{path} holds no log that this version can read: {error!r}. Nothing was changed. A newer "
        "version may have written it: upgrade",
        path=path,
    )
