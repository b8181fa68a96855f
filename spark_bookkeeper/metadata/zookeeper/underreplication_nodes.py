"""The under-replication tree in ZooKeeper; ``underreplication.py`` has the contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from spark_bookkeeper.errors import MetadataFormatError, MetadataUnavailableError
from spark_bookkeeper.metadata.compare_and_swap import CONFLICTS_MAX
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.underreplication import (
    LAYOUT,
    Changed,
    Check,
    Holder,
    Task,
    check_layout,
    decode_delay,
    decode_task,
    decode_time,
    encode_delay,
    encode_task,
    encode_time,
    merged,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.leader_election import AuditorVotes
from spark_bookkeeper.metadata.zookeeper.link import (
    AbsentError,
    ChangedError,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.zookeeper.nodes import Node, Nodes, Watch
from spark_bookkeeper.metadata.zookeeper.operations import Create, Delete
from spark_bookkeeper.metadata.zookeeper.task_locks import TaskLocks
from spark_bookkeeper.protocol.ids import LedgerId

_GROUP: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)


class ZooKeeperUnderreplication:
    """The tree of the cluster at a root; implements ``Underreplication``.

    Args:
        require_cluster: raises ``NoClusterError`` if no cluster exists at that root.
    """

    def __init__(self, zk: Nodes, root: str, require_cluster: Callable[[], None]) -> None:
        self._zk = zk
        self._place = root
        self._require_cluster = require_cluster
        self._locks = TaskLocks(zk, lambda: self._root)
        self._votes = AuditorVotes(zk, lambda: self._root)
        self._has_tree = False
        zk.on_connected(self._locks.discard)
        zk.on_connected(self._votes.discard)

    # Tasks

    def mark(
        self, ledger_id: LedgerId, missing: Iterable[str], now_ms: int, *, anew: bool = False
    ) -> bool:
        self._make_tree()
        path = paths.task(self._root, ledger_id)
        leaf, *_ = paths.task_parents(self._root, ledger_id)
        has_leaf = False
        wanted = list(dict.fromkeys(missing))
        for _ in range(CONFLICTS_MAX):
            new = Task(ledger_id, tuple(wanted), now_ms)
            data = encode_task(new)
            try:
                if has_leaf:
                    self._zk.create(path, data)
                else:  # all or nothing: a leaf alone would be listed as a task for ever
                    self._zk.create_below_parents(path, data, before=[Create(leaf)])
                return True
            except PresentError:
                has_leaf = True  # with its task, unless a client died in between
            except AbsentError:
                has_leaf = False
                continue
            there = self._zk.get_settled(path)
            if there is None:
                continue
            # A task that cannot be decoded names no missing bookie, and is replaced.
            with suppress(MetadataFormatError):
                before = _task(there, ledger_id, path).value
                new = merged(before, wanted, now_ms)
                if new == before and not anew:
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
            self._make_tree()  # an absent node cannot be watched
        elif not self._is_made():
            return  # a mere read must not change anything, and may lack the right to
        watch = _watch(changed)
        # A node of the fourth level holds one ledger's task, so its parent's list shows it.
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

        def is_another() -> bool:  # a request can compare only versions
            there = self._zk.get_settled(path)
            return there is not None and there.created != task.created

        try:
            # All or nothing: a leaf without its task would be listed as a task for ever.
            self._zk.delete(leaf, also=[Delete(path, task.version)], unless=is_another)
        except AbsentError:
            return True
        except ChangedError:
            if self._zk.get_settled(path) is not None:
                return False
            above.insert(0, leaf)  # left by a client that deleted the task and died
        except OccupiedError:  # by foreign nodes
            try:
                self._zk.delete(path, task.version, unless=is_another)
            except AbsentError:
                return True
            except ChangedError:
                return False
        self._delete_empty(above)
        return True

    def sweep(self, ledger_id: LedgerId) -> None:
        self._delete_empty(paths.task_parents(self._root, ledger_id))

    def _delete_empty(self, parents: Iterable[str]) -> None:
        with suppress(AbsentError, OccupiedError):  # a parent still leads to other tasks
            for parent in parents:
                self._zk.delete(parent)

    # Locks

    def lock(self, ledger_id: LedgerId, holder: Holder) -> bool:
        self._make_tree()
        return self._locks.take(ledger_id, holder)

    def unlock(self, holder: Holder) -> None:
        self._locks.release(holder)

    def locks(self, changed: Changed | None = None) -> Mapping[LedgerId, str]:
        return self._locks.held(_watch(changed))

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
        return self._read_setting("lostBookieRecoveryDelay", decode_delay, changed)

    def set_delay_seconds(self, seconds: int) -> None:
        self._make_tree()
        path, data = self._setting("lostBookieRecoveryDelay"), encode_delay(seconds)
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

    def checked_at_ms(self, check: Check, changed: Changed | None = None) -> Versioned[int] | None:
        return self._read_setting(check.value, decode_time, changed)

    def set_checked_at_ms(
        self, check: Check, now_ms: int, before: Versioned[int] | None
    ) -> Versioned[int] | None:
        self._make_tree()
        path, data = self._setting(check.value), encode_time(now_ms)
        try:
            if before is not None:
                return Versioned(now_ms, self._zk.set(path, data, before.version))
            self._zk.create(path, data)
        except (PresentError, ChangedError, AbsentError):
            return None
        return Versioned(now_ms, 0)

    def forget_checked(self, check: Check) -> None:
        with suppress(AbsentError):
            self._zk.delete(self._setting(check.value))

    def _read_setting(
        self, name: str, decode: Callable[[bytes, str], int], changed: Changed | None
    ) -> Versioned[int] | None:
        path = self._setting(name)
        if changed is not None and not self._zk.exists(path, _watch(changed)):
            return None
        try:
            node = self._zk.get(path, _watch(changed))
        except AbsentError:
            return None
        return Versioned(decode(node.data, path), node.version)

    def _setting(self, name: str) -> str:
        return f"{paths.underreplication(self._root)}/{name}"

    # The auditor

    def stand(self, name: str, changed: Changed) -> bool:
        self._make_tree()
        return self._votes.stand(name, changed)

    def stand_down(self) -> None:
        self._votes.stand_down()

    def auditor(self) -> str | None:
        return next(iter(self.candidates()), None)

    def candidates(self) -> Sequence[str]:
        return self._votes.names()

    # The tree

    @property
    def _root(self) -> str:
        self._require_cluster()
        return self._place

    def _is_made(self) -> bool:
        """Return whether the tree exists; raise if its layout is not the known one."""
        if self._has_tree:
            return True
        path = f"{paths.underreplication(self._root)}/LAYOUT"
        node = self._zk.get_settled(path)
        if node is None:
            return False
        check_layout(node.data, path)
        return True

    def _make_tree(self) -> None:
        """Create the tree at its first use, as BookKeeper does."""
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
    task = decode_task(node.data, ledger_id, path)
    return Versioned(task, node.version, created=node.created)


def _watch(changed: Changed | None) -> Watch | None:
    if changed is None:
        return None
    return _Told(changed)


class _Told:
    """A watch, equal to others of its callback, so two on one node call it once."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed

    def __call__(self, event: object) -> None:
        self._changed()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Told) and other._changed == self._changed

    def __hash__(self) -> int:
        return hash(self._changed)
