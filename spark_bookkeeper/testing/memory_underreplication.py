"""The under-replication tree in memory: the counterpart of the one in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from spark_bookkeeper.errors import MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import (
    Changed,
    Check,
    Holder,
    Task,
    decode_task,
    encode_task,
    merged,
)
from spark_bookkeeper.protocol.ids import LedgerId

T = TypeVar("T")


@dataclass
class MemoryTasks:
    """The content of the servers, shared by all sessions."""

    tasks: dict[LedgerId, Versioned[Task]] = field(default_factory=dict)
    locks: dict[LedgerId, tuple[Holder, int]] = field(default_factory=dict)
    """The holder and the session of each."""
    is_disabled: bool = False
    disabled_at_ms: int | None = None
    """``None`` here, because there is no clock, unless a test sets it."""
    delay: Versioned[int] | None = None
    checked: dict[Check, Versioned[int]] = field(default_factory=dict)
    votes: list[tuple[int, int, str]] = field(default_factory=list)
    """Number, session and name of each, in order."""
    watchers: dict[str, list[Changed]] = field(default_factory=dict)
    vote_watchers: dict[int, dict[int, Changed]] = field(default_factory=dict)
    """Callbacks by vote and session."""

    def watch(self, what: str, changed: Changed | None) -> None:
        """Register a callback for the next change of one thing."""
        watching = self.watchers.setdefault(what, [])
        if changed is not None and changed not in watching:
            watching.append(changed)

    def tell(self, what: str) -> None:
        """Call the callbacks for one thing after its change; the lock must not be held."""
        for changed in self.watchers.pop(what, []):
            changed()

    def end_session(self, session: int) -> list[Changed]:
        """Remove a session's ephemeral nodes; return the callbacks to call without the lock."""
        self.locks = {i: held for i, held in self.locks.items() if held[1] != session}
        gone = [number for number, owner, _ in self.votes if owner == session]
        self.votes = [vote for vote in self.votes if vote[1] != session]
        told = [c for n in gone for c in self.vote_watchers.pop(n, {}).values()]
        return [*told, *self.watchers.pop("locks", [])]


class Caller(Protocol):
    """The way in which a session runs an operation; ``MemoryStore._call``."""

    def __call__(self, operation: str, subject: str, effect: Callable[[], T]) -> T: ...


class MemoryUnderreplication:
    """The tree as one session uses it; implements ``Underreplication``.

    Args:
        state: the content of the servers.
        call: runs one operation, faults included.
        session: returns the number of the current session.
        number: returns a number that is never returned again.
    """

    def __init__(
        self,
        state: MemoryTasks,
        call: Caller,
        session: Callable[[], int],
        number: Callable[[], int],
    ) -> None:
        self._state = state
        self._ask_now = call
        self._session = session
        self._number = number
        self._leaving: dict[LedgerId, tuple[Holder, int]] = {}
        """Locks to be released."""
        self._is_standing_down = False

    def _ask(self, operation: str, subject: str, effect: Callable[[], T]) -> T:
        """Run an operation, after earlier operations that had no answer."""
        self._give_back()
        if self._is_standing_down:
            self._leave()
        return self._ask_now(operation, subject, effect)

    def mark(
        self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int, *, anew: bool = False
    ) -> bool:
        wanted = tuple(dict.fromkeys(missing))

        def effect() -> bool:
            there = self._state.tasks.get(ledger_id)
            new = Task(ledger_id, wanted, now_ms)
            if there is not None:
                new = merged(there.value, wanted, now_ms)
                if new == there.value and not anew:
                    return False
            stored = decode_task(encode_task(new), ledger_id, "memory")
            version = 0 if there is None else there.version + 1
            created = self._number() if there is None else there.created
            self._state.tasks[ledger_id] = Versioned(stored, version, created=created)
            return True

        is_written = self._ask("mark", str(ledger_id), effect)
        self._state.tell("tasks")
        return is_written

    def read(self, ledger_id: LedgerId) -> Versioned[Task] | None:
        return self._ask("read_task", str(ledger_id), lambda: self._state.tasks.get(ledger_id))

    def read_many(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[Task] | MetadataFormatError | None]]:
        for ledger_id in ledger_ids:
            try:
                yield ledger_id, self.read(ledger_id)
            except MetadataFormatError as error:
                yield ledger_id, error

    def ledger_ids(self, changed: Changed | None = None) -> Iterator[LedgerId]:
        def effect() -> list[LedgerId]:
            self._state.watch("tasks", changed)
            return sorted(self._state.tasks)

        return iter(self._ask("task_ids", "", effect))

    def remove(self, task: Versioned[Task]) -> bool:
        ledger_id = task.value.ledger_id

        def effect() -> bool:
            there = self._state.tasks.get(ledger_id)
            if there is not None:
                known = task.version, task.created
                if known != (there.version, there.created):
                    return False
            self._state.tasks.pop(ledger_id, None)
            return True

        is_gone = self._ask("remove_task", str(ledger_id), effect)
        self._state.tell("tasks")
        return is_gone

    def sweep(self, ledger_id: LedgerId) -> None:
        """Do nothing: a removed task leaves nothing here."""

    def lock(self, ledger_id: LedgerId, holder: Holder) -> bool:
        def effect() -> bool:
            if ledger_id in self._state.locks:
                return False
            self._state.locks[ledger_id] = (holder, self._session())
            return True

        return self._ask("lock", str(ledger_id), effect)

    def unlock(self, holder: Holder) -> None:
        mine = (holder, self._session())
        self._leaving |= {i: held for i, held in list(self._state.locks.items()) if held == mine}
        self._give_back()

    def _give_back(self) -> None:
        """Release the locks; repeat a release without an answer before the next operation."""
        while self._leaving:
            ledger_id, held = self._leaving.popitem()

            def effect(ledger_id: LedgerId = ledger_id, held: tuple[Holder, int] = held) -> None:
                if self._state.locks.get(ledger_id) == held:
                    del self._state.locks[ledger_id]

            try:
                self._ask_now("unlock", str(ledger_id), effect)
            except MetadataUnavailableError:
                self._leaving[ledger_id] = held
                return
            self._state.tell("locks")

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        def effect() -> Mapping[LedgerId, str]:
            self._state.watch("locks", changed)
            return {i: self._state.locks[i][0].name for i in sorted(self._state.locks)}

        return self._ask("locks", "", effect)

    def is_enabled(self, changed: Changed | None = None) -> bool:
        def effect() -> bool:
            self._state.watch("disable", changed)
            return not self._state.is_disabled

        return self._ask("is_enabled", "", effect)

    def disabled_at_ms(self) -> int | None:
        def effect() -> int | None:
            return self._state.disabled_at_ms if self._state.is_disabled else None

        return self._ask("disabled_at", "", effect)

    def disable(self) -> bool:
        return self._switch("disable", is_disabled=True)

    def enable(self) -> bool:
        return self._switch("enable", is_disabled=False)

    def _switch(self, operation: str, *, is_disabled: bool) -> bool:
        def effect() -> bool:
            before, self._state.is_disabled = self._state.is_disabled, is_disabled
            return before != is_disabled

        is_changed = self._ask(operation, "", effect)
        self._state.tell("disable")
        return is_changed

    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        def effect() -> Versioned[int] | None:
            self._state.watch("delay", changed)
            return self._state.delay

        return self._ask("read_delay", "", effect)

    def set_delay_seconds(self, seconds: int) -> None:
        def effect() -> None:
            before = self._state.delay
            self._state.delay = Versioned(seconds, 0 if before is None else before.version + 1)

        self._ask("set_delay", "", effect)
        self._state.tell("delay")

    def checked_at_ms(self, check: Check, changed: Changed | None = None) -> Versioned[int] | None:
        def effect() -> Versioned[int] | None:
            self._state.watch(check.value, changed)
            return self._state.checked.get(check)

        return self._ask("read_checked", check.value, effect)

    def set_checked_at_ms(
        self, check: Check, now_ms: int, before: Versioned[int] | None
    ) -> Versioned[int] | None:
        def effect() -> Versioned[int] | None:
            there = self._state.checked.get(check)
            if (there and there.version) != (before and before.version):
                return None
            new = Versioned(now_ms, 0 if there is None else there.version + 1)
            self._state.checked[check] = new
            return new

        done = self._ask("set_checked", check.value, effect)
        self._state.tell(check.value)
        return done

    def forget_checked(self, check: Check) -> None:
        self._ask("forget_checked", check.value, lambda: self._state.checked.pop(check, None))
        self._state.tell(check.value)

    def stand(self, name: str, changed: Changed) -> bool:
        self._is_standing_down = False

        def effect() -> bool:
            session, votes = self._session(), self._state.votes
            if not any(owner == session for _, owner, _ in votes):
                votes.append((self._number(), session, name))
            place = next(i for i, (_, owner, _) in enumerate(votes) if owner == session)
            for watching in self._state.vote_watchers.values():
                watching.pop(session, None)
            for number, _, _ in votes[max(0, place - 1) : place + 1]:
                self._state.vote_watchers.setdefault(number, {})[session] = changed
            return place == 0

        return self._ask("stand", name, effect)

    def stand_down(self) -> None:
        self._is_standing_down = True
        self._leave()

    def _leave(self) -> None:
        def effect() -> list[Changed]:
            session = self._session()
            gone = [number for number, owner, _ in self._state.votes if owner == session]
            self._state.votes = [vote for vote in self._state.votes if vote[1] != session]
            for watching in self._state.vote_watchers.values():
                watching.pop(session, None)
            return [c for n in gone for c in self._state.vote_watchers.pop(n, {}).values()]

        try:
            told = self._ask_now("stand_down", "", effect)
        except MetadataUnavailableError:
            return
        self._is_standing_down = False
        for changed in told:
            changed()

    def auditor(self) -> str | None:
        return self._ask(
            "auditor", "", lambda: self._state.votes[0][2] if self._state.votes else None
        )

    def candidates(self) -> Sequence[str]:
        return self._ask("candidates", "", lambda: [name for _, _, name in self._state.votes])
