"""Notes on the attempts at each task, stored where they survive the worker that tried.

A note is a register of this library, so BookKeeper's own nodes hold nothing that its tools do not
know. Only a ledger with a problem, or one whose writer is waited for, has a note.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import MetadataFormatError, VersionConflictError
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.stored_json import decoded, number, text
from spark_bookkeeper.protocol.task_notes import LocalRefusal, Marked, TaskNote, Whole

T = TypeVar("T")

_LEDGER_ID: Final = re.compile(r"\d{1,19}", re.ASCII)

_PARENT: Final = "autorecovery/notes"
_IN_A_FOLDER: Final = 10_000
"""The most notes in a folder, so that a reply of ZooKeeper can hold the list of their names."""


class Notes:
    """The notes of one cluster."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers

    def read(self, ledger_id: LedgerId) -> TaskNote:
        """Return the note of one ledger; an empty one if it is missing or unreadable."""
        return _decode(self._registers.read(_name(ledger_id)))

    def read_many(self, ledger_ids: Iterable[LedgerId]) -> Iterator[tuple[LedgerId, TaskNote]]:
        """Yield the notes of many ledgers, in order; each may be a little out of date."""
        ids = list(ledger_ids)
        found = self._registers.read_many(map(_name, ids))
        for ledger_id, (_, note) in zip(ids, found, strict=True):
            yield ledger_id, _decode(note)

    def ledger_ids(self) -> Iterator[LedgerId]:
        """Yield the ledgers that have a note, in no order."""
        for folder in self._registers.names(_PARENT):
            for name in self._registers.names(f"{_PARENT}/{folder}"):
                if _LEDGER_ID.fullmatch(name) and int(name) < 1 << 63:  # else not ours
                    yield LedgerId(int(name))

    def change(self, ledger_id: LedgerId, step: Callable[[TaskNote], TaskNote]) -> TaskNote:
        """Change a note by a pure step, and return the new note."""
        return change_register(self._registers, _name(ledger_id), _decode, _encode, step)

    def read_versioned(self, ledger_id: LedgerId) -> Versioned[TaskNote] | None:
        """Return the note of one ledger, for ``forget``; ``None`` if there is none."""
        found = self._registers.read(_name(ledger_id))
        return None if found is None else Versioned(_decode(found), found.version)

    def forget(self, ledger_id: LedgerId, note: Versioned[TaskNote] | None) -> bool:
        """Remove the note of a finished task. Return ``False`` if the note has changed: then it is
        about the next task, and stays.

        Args:
            note: the note as it was read while the task existed; ``None`` if there was none.
        """
        if note is not None:
            try:
                self._registers.delete(_name(ledger_id), note.version)
            except VersionConflictError:
                return False
        return True


def forget_what_is_done(context: ClientContext) -> None:
    """Remove the notes of ledgers that have no task.

    A worker whose session ended may write a note after another worker has done the task. The note
    would stay for ever, and the ledger's next task would begin with its attempts and times.
    """
    notes, tree = Notes(context.store.registers), context.store.underreplication
    noted = set(notes.ledger_ids())
    for ledger_id in sorted(noted.difference(tree.ledger_ids()) if noted else ()):
        note = notes.read_versioned(ledger_id)
        if (ledger_id, None) in tree.read_many([ledger_id]):  # else a task came after its note
            notes.forget(ledger_id, note)


def as_marked(task: Versioned[Task] | MetadataFormatError) -> Marked | None:
    """Return a task as notes store it; ``None`` if the task cannot be read."""
    if not isinstance(task, Versioned):
        return None
    return Marked(task.value.missing, task.value.marked_at_ms, task.version)


def _name(ledger_id: LedgerId) -> str:
    return f"{_PARENT}/{ledger_id // _IN_A_FOLDER}/{ledger_id}"


def _encode(note: TaskNote) -> bytes:
    return json.dumps(asdict(note)).encode()


def _decode(found: Versioned[bytes] | None) -> TaskNote:
    """Return the note; one that cannot be read counts as empty, because it only delays retries."""
    if found is None:
        return TaskNote()
    try:
        return decoded(found.value, _note)
    except ValueError:
        return TaskNote()


def _note(values: Any) -> TaskNote:
    """Return a note without the fields that another version of this library added."""
    return TaskNote(**{name: _FIELDS[name](values[name]) for name in _FIELDS.keys() & values})


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(text, values))


def _marked(values: Any) -> Marked:
    # BookKeeper's auditor marks by its own clock, so every time is accepted.
    at_ms = None if values["at_ms"] is None else number(values["at_ms"], -(1 << 63))
    return Marked(_texts(values["missing"]), at_ms, number(values.get("version", 0)))


def _refusal(values: Any) -> LocalRefusal:
    return LocalRefusal(
        text(values["bookie"]),
        number(values["attempts"]),
        text(values["error"]),
        number(values["next_try_at_ms"]),
    )


def _whole(values: Any) -> Whole:
    replicas = tuple(
        (text(bookie), text(incarnation)) for bookie, incarnation in values["replicas"]
    )
    return Whole(tuple(map(number, values["seen"])), number(values["at_ms"]), replicas)


def _or_none(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else read(value)


_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "attempts": number,
    "last_error": _or_none(text),
    "blocker": _or_none(text),
    "next_try_at_ms": number,
    "waits_for": _texts,
    "writable": number,
    "open_fragment": _or_none(number),
    "open_ensemble": _texts,
    "open_since_ms": number,
    "percentage": number,
    "findings": number,
    "suspects": _texts,
    "waits_for_event": bool,
    "marked": _or_none(_marked),
    "tried_at_ms": number,
    "refusals": lambda values: tuple(map(_refusal, values)),
    "whole": _or_none(_whole),
}
"""The function that reads each field of a note."""
