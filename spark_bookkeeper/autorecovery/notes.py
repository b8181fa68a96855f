"""What was tried for each task, kept where it survives the worker that tried.

A note is a register of ours, so BookKeeper's own nodes hold nothing that its tools do not know.
Only ledgers with trouble, or whose writers are being waited for, have one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.task_notes import LocalRefusal, Marked, TaskNote

_PARENT: Final = "autorecovery/notes"
_IN_A_FOLDER: Final = 10_000
"""So that no list of names gets longer than ZooKeeper answers with."""

_KNOWN: Final = frozenset(field.name for field in fields(TaskNote))


class Notes:
    """Those of one cluster."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers

    def read(self, ledger_id: LedgerId) -> TaskNote:
        """The note of one ledger; an empty one where there is none, or none that can be read."""
        return _decode(self._registers.read(_name(ledger_id)))

    def read_many(self, ledger_ids: Iterable[LedgerId]) -> Iterator[tuple[LedgerId, TaskNote]]:
        """The same for many, in order; each may be a little older."""
        ids = list(ledger_ids)
        found = self._registers.read_many(map(_name, ids))
        for ledger_id, (_, note) in zip(ids, found, strict=True):
            yield ledger_id, _decode(note)

    def ledger_ids(self) -> Iterator[LedgerId]:
        """The ledgers that have a note, in no order."""
        for folder in self._registers.names(_PARENT):
            for name in self._registers.names(f"{_PARENT}/{folder}"):
                if name.isascii() and name.isdigit():
                    yield LedgerId(int(name))

    def change(self, ledger_id: LedgerId, step: Callable[[TaskNote], TaskNote]) -> TaskNote:
        """Change a note by a pure step."""
        return change_register(self._registers, _name(ledger_id), _decode, _encode, step)

    def forget(self, ledger_id: LedgerId) -> None:
        """Its task is done."""
        self._registers.delete(_name(ledger_id))


def forget_what_is_done(context: ClientContext) -> None:
    """Remove the notes of ledgers that have no task.

    A worker whose session ended may write one after another worker has done its task. It would
    stay for ever, and the next task of that ledger would begin with its attempts and times.
    """
    notes = Notes(context.store.registers)
    noted = list(notes.ledger_ids())
    for ledger_id, task in context.store.underreplication.read_many(noted):
        if task is None:
            notes.forget(ledger_id)


def _name(ledger_id: LedgerId) -> str:
    return f"{_PARENT}/{ledger_id // _IN_A_FOLDER}/{ledger_id}"


def _encode(note: TaskNote) -> bytes:
    return json.dumps(asdict(note)).encode()


def _decode(found: Versioned[bytes] | None) -> TaskNote:
    """A note that cannot be read counts as an empty one: it only says what is to be tried later."""
    try:
        values = json.loads(found.value) if found is not None else {}
        known = {k: v for k, v in values.items() if k in _KNOWN}
        for name in ("waits_for", "open_ensemble"):
            known[name] = tuple(known.get(name, ()))
        known["refusals"] = tuple(LocalRefusal(**each) for each in known.get("refusals", ()))
        if known.get("marked") is not None:
            missing, at_ms = known["marked"]["missing"], known["marked"]["at_ms"]
            known["marked"] = Marked(tuple(missing), at_ms)
        return TaskNote(**known)
    except (ValueError, TypeError, AttributeError, KeyError):
        return TaskNote()
