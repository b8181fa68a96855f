"""Registers in memory: the counterpart of those in ZooKeeper, for ``memory_store.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.store import Unchanged, Versioned

T = TypeVar("T")


class OperationRunner(Protocol):
    """Runs one operation: its name, the name of the register, and the effect."""

    def __call__(self, operation: str, subject: str, effect: Callable[[], T], /) -> T: ...


class MemoryRegisters:
    """The registers of one session; implements ``Registers``.

    Args:
        values: the registers of all sessions, by name.
        call: runs one operation in the session, see ``MemoryStore``.
    """

    def __init__(self, values: dict[str, Versioned[bytes]], call: OperationRunner) -> None:
        self._values = values
        self._call = call

    def read(self, name: str) -> Versioned[bytes] | None:
        return self._call("read_register", name, lambda: self._values.get(name))

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, Versioned[bytes] | None]]:
        for name in names:
            yield name, self.read(name)

    def create(self, name: str, data: bytes) -> Versioned[bytes]:
        def effect() -> Versioned[bytes]:
            there = self._values.setdefault(name, Versioned(data, 0))
            if there.value != data:
                raise refusals.register_conflict(name, None, there)
            return there

        return self._call("create_register", name, effect)

    def write(self, name: str, data: bytes, version: int) -> Versioned[bytes]:
        def effect() -> Versioned[bytes]:
            there = self._values.get(name)
            if there is None or there.version != version:
                raise refusals.register_conflict(name, version, there)
            self._values[name] = written = Versioned(data, version + 1)
            return written

        return self._call("write_register", name, effect)

    def delete(self, name: str, version: int | None = None) -> None:
        def effect() -> None:
            there = self._values.get(name)
            if version is not None and there is not None and there.version != version:
                raise refusals.register_conflict(name, version, there)
            self._values.pop(name, None)

        self._call("delete_register", name, effect)

    def watch(self, name: str) -> Unchanged:
        seen = self._call("watch_register", name, lambda: self._values.get(name))
        return lambda: self._values.get(name) is seen

    def names(self, parent: str) -> Sequence[str]:
        def effect() -> Sequence[str]:
            below = (name for name in self._values if name.startswith(f"{parent}/"))
            return sorted({name[len(parent) + 1 :].split("/")[0] for name in below})

        return self._call("register_names", parent, effect)
