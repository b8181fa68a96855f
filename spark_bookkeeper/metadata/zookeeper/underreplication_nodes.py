"""The under-replication tree in ZooKeeper; what is promised stands in ``underreplication.py``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from spark_bookkeeper.errors import MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata.compare_and_swap import CONFLICTS_MAX
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import (
    LAYOUT,
    Changed,
    Check,
    Task,
    check_layout,
    decode_delay,
    decode_lock,
    decode_task,
    decode_time,
    decode_vote,
    encode_delay,
    encode_lock,
    encode_task,
    encode_time,
    encode_vote,
    merged,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import (
    AbsentError,
    ChangedError,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes, Watch
from spark_bookkeeper.metadata.zookeeper.operations import Delete
from spark_bookkeeper.protocol.ids import LedgerId

_GROUP: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)
_NAME: Final = re.compile(r"urL(\d{10,19})", re.ASCII)
_VOTE: Final = re.compile(r"V_(\d+)", re.ASCII)


class _Vote(NamedTuple):
    number: int
    path: str
    node: Node


class ZooKeeperUnderreplication:
    """Of the cluster at a root; implements ``Underreplication``.

    Args:
        require_cluster: raises ``NoClusterError`` when there is none at that root.
    """

    def __init__(self, zk: Nodes, root: str, require_cluster: Callable[[], None]) -> None:
        self._zk = zk
        self._place = root
        self._require_cluster = require_cluster
        self._lock = threading.Lock()
        self._held: dict[LedgerId, int] = {}
        """Locks of this client, with the session that each goes with."""
        self._doubtful: set[LedgerId] = set()
        """Those of them of which nobody knows whether they were taken: the answer was lost."""
        self._stop_watching: Callable[[], None] | None = None
        self._has_tree = False

    # Tasks

    def mark(self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int) -> bool:
        self._make_tree()
        path = paths.task(self._root, ledger_id)
        wanted = list(dict.fromkeys(missing))
        for _ in range(CONFLICTS_MAX):
            try:
                new = Task(ledger_id, tuple(wanted), now_ms)
                self._zk.create_below_parents(path, encode_task(new))
                return True
            except PresentError:
                pass
            there = self.read(ledger_id)
            if there is None:
                continue
            new = merged(there.value, wanted, now_ms)
            if new == there.value:
                return False
            try:
                self._zk.set(path, encode_task(new), there.version)
                return True
            except (ChangedError, AbsentError):
                continue
        raise MetadataUnavailableError(
            f"{path} kept changing, so it may not say that {', '.join(wanted)} is missing. Nothing "
            "is lost by it: the next audit says it again"
        )

    def read(self, ledger_id: LedgerId) -> Versioned[Task] | None:
        path = paths.task(self._root, ledger_id)
        node = self._zk.get_settled(path)
        return None if node is None else _task(node, ledger_id, path)

    def read_many(
        self, ledger_ids: Iterable[LedgerId]
    ) -> Iterator[tuple[LedgerId, Versioned[Task] | MetadataFormatError | None]]:
        asked = (paths.task(self._root, ledger_id) for ledger_id in ledger_ids)
        for path, node in self._zk.get_many(asked):
            ledger_id = LedgerId(int(path.rpartition("urL")[2]))
            if node is None:
                yield ledger_id, None
                continue
            try:
                yield ledger_id, _task(node, ledger_id, path)
            except MetadataFormatError as error:
                yield ledger_id, error

    def ledger_ids(self, changed: Changed | None = None) -> Iterator[LedgerId]:
        if changed is not None:
            self._make_tree()  # what is not there cannot be watched
        elif not self._is_made():
            return  # who only looks changes nothing, and may not be allowed to
        watch = _watch(changed)
        # A node of the fourth level holds the task of one ledger, so it is seen from above.
        level: Iterator[str] = iter([paths.tasks(self._root)])
        for _ in range(4):
            level = self._groups_below(level, watch)
        start = len(paths.tasks(self._root)) + 1
        for path in level:
            number = int(path[start:].replace("/", ""), 16)
            if number < 1 << 63:
                yield LedgerId(number)

    def _groups_below(self, parents: Iterator[str], watch: Watch | None) -> Iterator[str]:
        for parent, names in self._zk.children_of_many(parents, watch):
            for name in sorted(names or []):
                if _GROUP.fullmatch(name):
                    yield f"{parent}/{name}"

    def remove(self, task: Versioned[Task]) -> bool:
        ledger_id = task.value.ledger_id
        path = paths.task(self._root, ledger_id)
        leaf, *above = paths.task_parents(self._root, ledger_id)
        try:
            # All or nothing: a leaf that was left without its task would be taken for one for ever.
            self._zk.delete(leaf, also=[Delete(path, task.version)])
        except AbsentError:
            return True
        except ChangedError:
            if self._zk.get_settled(path) is not None:
                return False
            above.insert(0, leaf)  # left by whoever deleted the task and died
        except OccupiedError:  # by what is not ours
            try:
                self._zk.delete(path, task.version)
            except AbsentError:
                return True
            except ChangedError:
                return False
        with suppress(AbsentError, OccupiedError):  # a parent still leads to other tasks
            for parent in above:
                self._zk.delete(parent)
        return True

    # Locks

    def lock(self, ledger_id: LedgerId, holder: str) -> bool:
        self._make_tree()
        path = paths.lock(self._root, ledger_id)
        session = self._zk.session_id
        with self._lock:
            if self._held.get(ledger_id) == session and ledger_id not in self._doubtful:
                return False  # by another thread of this client
            self._held[ledger_id] = session
            self._doubtful.discard(ledger_id)
        try:
            try:
                self._zk.create(path, encode_lock(holder), ephemeral=True)
                is_taken = True
            except PresentError:
                there = self._zk.get_settled(path)
                # What was taken before by a call whose answer was lost is ours.
                is_taken = there is not None and there.owner in (session, self._zk.session_id)
        except BaseException:  # it may have been taken: whoever releases it looks first
            with self._lock:
                self._doubtful.add(ledger_id)
            raise
        with self._lock:
            if not is_taken:
                self._held.pop(ledger_id, None)
            elif (now := self._zk.session_id) != session:
                # The session ended meanwhile: whoever releases it looks first whose it is.
                self._held[ledger_id] = now
                self._doubtful.add(ledger_id)
        return is_taken

    def unlock(self, ledger_id: LedgerId) -> None:
        with self._lock:
            session = self._held.pop(ledger_id, None)
            is_doubtful = ledger_id in self._doubtful
            self._doubtful.discard(ledger_id)
        if session is None or session != self._zk.session_id:
            return  # it went with its session, and may be another's by now
        path = paths.lock(self._root, ledger_id)
        try:
            with suppress(AbsentError):
                if is_doubtful:
                    there = self._zk.get_settled(path)
                    if there is None or there.owner != session:
                        return  # it was never taken, and may be another's
                self._zk.delete(path)
        except BaseException:  # it may be there still, and then only this session can release it
            with self._lock:
                self._held.setdefault(ledger_id, session)
                if is_doubtful:
                    self._doubtful.add(ledger_id)
            raise

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        try:
            names = self._zk.children(paths.locks(self._root), _watch(changed))
        except AbsentError:
            return {}
        found = [LedgerId(int(m[1])) for name in sorted(names) if (m := _NAME.fullmatch(name))]
        asked = [paths.lock(self._root, ledger_id) for ledger_id in found]
        nodes = self._zk.get_many(asked)
        return {
            i: decode_lock(node.data)
            for i, (_, node) in zip(found, nodes, strict=True)
            if node is not None
        }

    # Settings

    def is_enabled(self, changed: Changed | None = None) -> bool:
        return not self._zk.exists(self._setting("disable"), _watch(changed))

    def disabled_at_ms(self) -> int | None:
        try:
            return self._zk.get(self._setting("disable")).written_ms
        except AbsentError:
            return None

    def disable(self) -> bool:
        self._make_tree()
        try:
            self._zk.create(self._setting("disable"), b"")
        except PresentError:
            return False
        return True

    def enable(self) -> bool:
        try:
            self._zk.delete(self._setting("disable"))
        except AbsentError:
            return False
        return True

    def delay_seconds(self, changed: Changed | None = None) -> Versioned[int] | None:
        path = self._setting("lostBookieRecoveryDelay")
        if changed is not None and not self._zk.exists(path, _watch(changed)):
            return None
        try:
            node = self._zk.get(path, _watch(changed))
        except AbsentError:
            return None
        return Versioned(decode_delay(node.data, path), node.version)

    def set_delay_seconds(self, seconds: int) -> None:
        self._put("lostBookieRecoveryDelay", encode_delay(seconds))

    def checked_at_ms(self, check: Check) -> int | None:
        path = self._setting(check.value)
        try:
            return decode_time(self._zk.get(path).data, path)
        except AbsentError:
            return None

    def set_checked_at_ms(self, check: Check, now_ms: int | None) -> None:
        if now_ms is not None:
            return self._put(check.value, encode_time(now_ms))
        with suppress(AbsentError):
            self._zk.delete(self._setting(check.value))
        return None

    def _put(self, name: str, data: bytes) -> None:
        self._make_tree()
        path = self._setting(name)
        for _ in range(CONFLICTS_MAX):
            try:
                there = self._zk.get_settled(path)
                if there is None:
                    self._zk.create(path, data)
                else:
                    self._zk.set(path, data, there.version)
                return
            except (PresentError, ChangedError, AbsentError):
                continue
        raise MetadataUnavailableError(f"{path} kept changing; nothing was written. Try again")

    def _setting(self, name: str) -> str:
        return f"{paths.underreplication(self._root)}/{name}"

    # The auditor

    def stand(self, name: str, changed: Changed) -> bool:
        self._make_tree()
        parent = paths.auditor_election(self._root)
        self._zk.ensure(parent)
        session = self._zk.session_id
        votes = self._votes()
        if not any(vote.node.owner == session for vote in votes):
            self._zk.create_sequential(parent, "V_", encode_vote(name))
            votes = self._votes()
        place = next((i for i, vote in enumerate(votes) if vote.node.owner == session), None)
        if place is None:  # it went again: the session has just ended
            changed()
            return False
        if self._stop_watching is not None:
            self._stop_watching()
        # The auditor watches its own vote, and everybody else the one before.
        self._stop_watching = self._zk.watches.watch_gone(votes[max(0, place - 1)].path, changed)
        if place:
            return False
        with suppress(AbsentError, ChangedError):  # it is there for people who look
            self._zk.set(parent, encode_vote(name), -1)
        return True

    def stand_down(self) -> None:
        stop, self._stop_watching = self._stop_watching, None
        if stop is not None:
            stop()
        session = self._zk.session_id
        for vote in self._votes():
            if vote.node.owner == session:
                with suppress(AbsentError):
                    self._zk.delete(vote.path)

    def auditor(self) -> str | None:
        return next(iter(self.candidates()), None)

    def candidates(self) -> Sequence[str]:
        return [decode_vote(vote.node.data) for vote in self._votes()]

    def _votes(self) -> Sequence[_Vote]:
        parent = paths.auditor_election(self._root)
        try:
            names = self._zk.children(parent)
        except AbsentError:
            return []
        numbers = {f"{parent}/{n}": int(m[1]) for n in names if (m := _VOTE.fullmatch(n))}
        return sorted(
            _Vote(numbers[path], path, node)
            for path, node in self._zk.get_many(numbers)
            if node is not None
        )

    # The tree

    @property
    def _root(self) -> str:
        self._require_cluster()
        return self._place

    def _is_made(self) -> bool:
        """Whether there is a tree, and in the form that is known here."""
        if self._has_tree:
            return True
        path = f"{paths.underreplication(self._root)}/LAYOUT"
        node = self._zk.get_settled(path)
        if node is None:
            return False
        check_layout(node.data, path)
        return True

    def _make_tree(self) -> None:
        """As BookKeeper makes it, when it is needed first."""
        if self._has_tree:
            return
        if not self._is_made():
            with suppress(PresentError):
                path = f"{paths.underreplication(self._root)}/LAYOUT"
                self._zk.create_below_parents(path, LAYOUT)
            self._is_made()
        for parent in (paths.tasks(self._root), paths.locks(self._root)):
            self._zk.ensure(parent)
        self._has_tree = True


def _task(node: Node, ledger_id: LedgerId, path: str) -> Versioned[Task]:
    return Versioned(decode_task(node.data, ledger_id, path), node.version)


def _watch(changed: Changed | None) -> Watch | None:
    if changed is None:
        return None
    return _Told(changed)


class _Told:
    """Two of one callback are equal, so that a node that is watched twice tells once."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed

    def __call__(self, event: object) -> None:
        self._changed()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Told) and other._changed == self._changed

    def __hash__(self) -> int:
        return hash(self._changed)
