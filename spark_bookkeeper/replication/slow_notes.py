"""What takes long in other processes: they note it in the metadata store, who waits reads it.

One register for all jobs, of a bounded size. It is written only by a process at which something
takes long, and nothing rests on it: a note that cannot be written, or read, costs the job nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.protocol.stored_json import decoded, number
from spark_bookkeeper.replication.under_way import MOST_NAMED, Slow, UnderWay
from spark_bookkeeper.runtime.bell import Bell

_NAME: Final = "jobs/slow"

BEAT_SECONDS: Final = 5.0
"""Between two looks at what is slow, in a process that works."""

SILENT_SECONDS: Final = 30
"""A note that was not repeated for so long is of a process that has ended."""

_SILENT_MS: Final = SILENT_SECONDS * 1000

MOST_NOTES: Final = 60
"""The longest are kept."""


@dataclass(frozen=True, slots=True)
class _Note:
    job: str
    task: str
    what: str
    seconds: float
    seen_ms: int


@contextmanager
def noting(context: ClientContext, job: str, under_way: UnderWay) -> Iterator[None]:
    """While the block runs, note what is slow in this process.

    Args:
        job: a token of the job, which ``slowest_of`` is asked for.
    """
    runtime, ended, task = context.runtime, Bell(context.runtime), context.runtime.token()
    has_noted = False

    def note(slow: Sequence[Slow]) -> None:
        nonlocal has_noted
        if not slow and not has_noted:
            return
        with suppress(BookKeeperError):
            now_ms = context.cluster_ms()
            own = [_Note(job, task, what, seconds, now_ms) for what, seconds in slow]

            def step(notes: tuple[_Note, ...]) -> tuple[_Note, ...]:
                others = [n for n in notes if n.task != task and now_ms - n.seen_ms < _SILENT_MS]
                longest = sorted([*others, *own], key=lambda each: each.seconds, reverse=True)
                return tuple(longest[:MOST_NOTES])

            _change(context.store.registers, step)
            has_noted = bool(slow)

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            note(under_way.slowest())

    beating = runtime.spawn("slow-items", beat)
    try:
        yield
    finally:
        ended.ring()
        beating.join()
        note(())


def slowest_of(context: ClientContext, job: str) -> Sequence[Slow]:
    """What takes longest in all processes of a job, the longest first."""
    try:
        now_ms = context.cluster_ms()
        notes = _decode(context.store.registers.read(_NAME))
    except BookKeeperError:
        return ()
    own = [note for note in notes if note.job == job and now_ms - note.seen_ms < _SILENT_MS]
    return [Slow(note.what, note.seconds) for note in own[:MOST_NAMED]]


def _change(registers: Registers, step: Callable[[tuple[_Note, ...]], tuple[_Note, ...]]) -> None:
    change_register(registers, _NAME, _decode, _encode, step)


def _encode(notes: Sequence[_Note]) -> bytes:
    told = [[n.job, n.task, n.what, n.seconds, n.seen_ms] for n in notes]
    return json.dumps(told, ensure_ascii=False).encode()


def _decode(found: Versioned[bytes] | None) -> tuple[_Note, ...]:
    """Notes that cannot be read are as good as none."""
    if found is None:
        return ()
    try:
        return decoded(found.value, _notes)
    except ValueError:
        return ()


def _notes(told: Any) -> tuple[_Note, ...]:
    return tuple(
        _Note(str(job), str(task), str(what), float(seconds), number(seen_ms))
        for job, task, what, seconds, seen_ms in told
    )
