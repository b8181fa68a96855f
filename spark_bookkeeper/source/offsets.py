"""The offsets of a stream, as Spark writes them into a checkpoint.

An offset is the entry that is to be read next. It is JSON with a version::

    {"version": 1, "log": "orders", "nonce": "9f..", "ledger": 7, "entry": 12}

A stream of one ledger has no ``log``. The nonce is that of the log's or ledger's life: what was
deleted and made again under the same name is something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream reads on."""

    position: Position
    nonce: str
    log: str | None = None

    def at(self, position: Position) -> Offset:
        """Another place of the same log or ledger."""
        return replace(self, position=position)

    def source(self) -> str:
        """What it is a place of, for people."""
        return f"ledger {self.position.ledger_id}" if self.log is None else f"log {self.log!r}"

    def to_json(self) -> dict[str, Any]:
        """As Spark takes it. The order of the keys is fixed: Spark compares texts."""
        log = {} if self.log is None else {"log": self.log}
        place = {"ledger": int(self.position.ledger_id), "entry": int(self.position.entry_id)}
        return {"version": VERSION, **log, "nonce": self.nonce, **place}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """What ``to_json`` gave, perhaps to an earlier run.

        Raises:
            InvalidArgumentError: it is no offset of this source, or of a newer version of it.
        """
        try:
            if value["version"] != VERSION:
                raise ValueError(f"its version is {value['version']!r}, and this one reads 1")
            ledger, entry = int(value["ledger"]), int(value["entry"])
            if min(ledger, entry) < 0:
                raise ValueError("an id is below 0")
            position = Position(LedgerId(ledger), EntryId(entry))
            log = value.get("log")
            return cls(position, str(value["nonce"]), None if log is None else str(log))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise InvalidArgumentError(
                f"the checkpoint holds an offset that this source cannot read: {value!r} "
                f"({error}). A newer version may have written it, or another source: use the "
                "checkpoint with what wrote it, or begin a new one"
            ) from error
