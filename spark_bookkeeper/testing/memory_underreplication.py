"""The under-replication tree in memory: the twin of the one in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import (
    Changed,
    Check,
    Task,
    decode_task,
    encode_task,
    merged,
)
from spark_bookkeeper.protocol.ids import LedgerId

T = TypeVar("T")


@dataclass
class MemoryTasks:
    """What the servers hold, shared by all sessions."""

    tasks: dict[LedgerId, Versioned[Task]] = field(default_factory=dict)
    locks: dict[LedgerId, tuple[str, int]] = field(default_factory=dict)
    """Holder and session of each."""
    is_disabled: bool = False
    disabled_at_ms: int | None = None
    """Nobody tells the time here, unless a test does."""
    delay: Versioned[int] | None = None
    checked: dict[Check, int] = field(default_factory=dict)
    votes: list[tuple[int, int, str]] = field(default_factory=list)
    """Number, session and name of each, in order."""
    watchers: dict[str, list[Changed]] = field(default_factory=dict)
    vote_watchers: dict[int, dict[int, Changed]] = field(default_factory=dict)
    """By vote and session."""

    def watch(self, what: str, changed: Changed | None) -> None:
        """Tell of the next change of one thing."""
        watching = self.watchers.setdefault(what, [])
        if changed is not None and changed not in watching:
            watching.append(changed)

    def tell(self, what: str) -> None:
        """Something changed; the lock is not held."""
        for changed in self.watchers.pop(what, []):
            changed()

    def end_session(self, session: int) -> list[Changed]:
        """Its ephemeral nodes go; who is to be told of it when the lock is free."""
        self.locks = {i: held for i, held in self.locks.items() if held[1] != session}
        gone = [number for number, owner, _ in self.votes if owner == session]
        self.votes = [vote for vote in self.votes if vote[1] != session]
        told = [c for n in gone for c in self.vote_watchers.pop(n, {}).values()]
        return [*told, *self.watchers.pop("locks", [])]


class Caller(Protocol):
    """How a session carries out an operation; ``MemoryStore._call``."""

    def __call__(self, operation: str, subject: str, effect: Callable[[], T]) -> T: ...


class MemoryUnderreplication:
    """Of one session; implements ``Underreplication``.

    Args:
        state: what the servers hold.
        call: carries out one operation, faults included.
        session: the number of the session now.
        number: gives a number never given before.
    """

    def __init__(
        self,
        state: MemoryTasks,
        call: Caller,
        session: Callable[[], int],
        number: Callable[[], int],
    ) -> None:
        self._state = state
        self._call = call
        self._session = session
        self._number = number

    def mark(self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int) -> bool:
        wanted = tuple(dict.fromkeys(missing))

        def effect() -> bool:
            there = self._state.tasks.get(ledger_id)
            new = Task(ledger_id, wanted, now_ms)
            if there is not None:
                new = merged(there.value, wanted, now_ms)
                if new == there.value:
                    return False
            stored = decode_task(encode_task(new), ledger_id, "memory")
            version = 0 if there is None else there.version + 1
            self._state.tasks[ledger_id] = Versioned(stored, version)
            return True

        is_written = self._call("mark", str(ledger_id), effect)
        self._state.tell("tasks")
        return is_written

    def read(self, ledger_id: LedgerId) -> Versioned[Task] | None:
        return self._call("read_task", str(ledger_id), lambda: self._state.tasks.get(ledger_id))

    def read_many(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[Task] | MetadataFormatError | None]]:
        for ledger_id in ledger_ids:
            yield ledger_id, self.read(ledger_id)

    def ledger_ids(self, changed: Changed | None = None) -> Iterator[LedgerId]:
        def effect() -> list[LedgerId]:
            self._state.watch("tasks", changed)
            return sorted(self._state.tasks)

        return iter(self._call("task_ids", "", effect))

    def remove(self, task: Versioned[Task]) -> bool:
        ledger_id = task.value.ledger_id

        def effect() -> bool:
            there = self._state.tasks.get(ledger_id)
            if there is not None and there.version != task.version:
                return False
            self._state.tasks.pop(ledger_id, None)
            return True

        is_gone = self._call("remove_task", str(ledger_id), effect)
        self._state.tell("tasks")
        return is_gone

    def lock(self, ledger_id: LedgerId, holder: str) -> bool:
        def effect() -> bool:
            if ledger_id in self._state.locks:
                return False
            self._state.locks[ledger_id] = (holder, self._session())
            return True

        return self._call("lock", str(ledger_id), effect)

    def unlock(self, ledger_id: LedgerId) -> None:
        def effect() -> None:
            _, session = self._state.locks.get(ledger_id, ("", -1))
            if session == self._session():
                del self._state.locks[ledger_id]

        self._call("unlock", str(ledger_id), effect)
        self._state.tell("locks")

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        def effect() -> Mapping[LedgerId, str]:
            self._state.watch("locks", changed)
            return {i: self._state.locks[i][0] for i in sorted(self._state.locks)}

        return self._call("locks", "", effect)

    def is_enabled(self, changed: Changed | None = None) -> bool:
        def effect() -> bool:
            self._state.watch("disable", changed)
            return not self._state.is_disabled

        return self._call("is_enabled", "", effect)

    def disabled_at_ms(self) -> int | None:
        def effect() -> int | None:
            return self._state.disabled_at_ms if self._state.is_disabled else None

        return self._call("disabled_at", "", effect)

    def disable(self) -> bool:
        return self._switch("disable", is_disabled=True)

    def enable(self) -> bool:
        return self._switch("enable", is_disabled=False)

    def _switch(self, operation: str, *, is_disabled: bool) -> bool:
        def effect() -> bool:
            before, self._state.is_disabled = self._state.is_disabled, is_disabled
            return before != is_disabled

        is_changed = self._call(operation, "", effect)
        self._state.tell("disable")
        return is_changed

    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        def effect() -> Versioned[int] | None:
            self._state.watch("delay", changed)
            return self._state.delay

        return self._call("read_delay", "", effect)

    def set_delay_seconds(self, seconds: int) -> None:
        def effect() -> None:
            before = self._state.delay
            self._state.delay = Versioned(seconds, 0 if before is None else before.version + 1)

        self._call("set_delay", "", effect)
        self._state.tell("delay")

    def checked_at_ms(self, check: Check) -> int | None:
        return self._call("read_checked", check.value, lambda: self._state.checked.get(check))

    def set_checked_at_ms(self, check: Check, now_ms: int | None) -> None:
        def effect() -> None:
            if now_ms is None:
                self._state.checked.pop(check, None)
            else:
                self._state.checked[check] = now_ms

        self._call("set_checked", check.value, effect)

    def stand(self, name: str, changed: Changed) -> bool:
        def effect() -> bool:
            session, votes = self._session(), self._state.votes
            if not any(owner == session for _, owner, _ in votes):
                votes.append((self._number(), session, name))
            place = next(i for i, (_, owner, _) in enumerate(votes) if owner == session)
            for watching in self._state.vote_watchers.values():
                watching.pop(session, None)
            watched = votes[max(0, place - 1)][0]
            self._state.vote_watchers.setdefault(watched, {})[session] = changed
            return place == 0

        return self._call("stand", name, effect)

    def stand_down(self) -> None:
        def effect() -> list[Changed]:
            session = self._session()
            gone = [number for number, owner, _ in self._state.votes if owner == session]
            self._state.votes = [vote for vote in self._state.votes if vote[1] != session]
            for watching in self._state.vote_watchers.values():
                watching.pop(session, None)
            return [c for n in gone for c in self._state.vote_watchers.pop(n, {}).values()]

        for changed in self._call("stand_down", "", effect):
            changed()

    def auditor(self) -> str | None:
        return self._call(
            "auditor", "", lambda: self._state.votes[0][2] if self._state.votes else None
        )

    def candidates(self) -> Sequence[str]:
        return self._call("candidates", "", lambda: [name for _, _, name in self._state.votes])
