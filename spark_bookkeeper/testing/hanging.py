"""Storage that hangs: chosen operations give no answer and no error, until they are let go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.storage.storage import FileSink, Storage
from spark_bookkeeper.testing.counting import CountingStorage

OPERATIONS: Final = (
    "put_if_absent",
    "create",
    "write",
    "finish",
    "read",
    "read_range",
    "size",
    "list",
    "make_directory",
    "sync",
    "delete",
    "delete_directory",
    "space",
    "inodes",
)
"""Every operation of a storage, and of a file that is written in pieces."""


class Hang:
    """Which operations hang now. May be shared by many storages.

    Args:
        runtime: whose tasks wait; of a simulation or a real one.
        hangs: whether an operation on a path hangs.
        is_late: whether the operation takes its effect when it is let go; else it never does.
    """

    def __init__(
        self,
        runtime: Runtime,
        hangs: Callable[[str, str], bool] = lambda operation, path: True,
        *,
        is_late: bool = True,
    ) -> None:
        self.hangs = hangs
        self.count = 0
        """Calls that hung so far."""
        self.stuck = 0
        """Calls that hang now."""
        self._is_late = is_late
        self._is_over = False
        self._changed = runtime.condition()

    def meet(self, operation: str, path: str) -> None:
        """Called before an operation; returns when it is let go."""
        if not self._holds() or not self.hangs(operation, path):
            return
        with self._changed:
            self.count += 1
            self.stuck += 1
            while self._holds():
                self._changed.wait()
            self.stuck -= 1
        if not self._is_late:
            raise BookieUnavailableError(
                f"{operation} {path} never got there", bookie_id="?", path=path
            )

    def _holds(self) -> bool:
        return not self._is_over

    def release(self) -> None:
        """Nothing hangs any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @classmethod
    def of(cls, runtime: Runtime, *operations: str) -> Hang:
        """Operations of these names."""
        return cls(runtime, lambda operation, path: operation in operations)


class HangingStorage(CountingStorage):
    """Passes everything on, unless it hangs."""

    def __init__(self, storage: Storage, hang: Hang) -> None:
        super().__init__(storage)
        self._hang = hang

    @override
    def create(self, path: str) -> FileSink:
        return _HangingSink(super().create(path), lambda what: self._hang.meet(what, path))

    @override
    def _note(self, operation: str, path: str) -> None:
        super()._note(operation, path)
        self._hang.meet(operation, path)


class _HangingSink(FileSink):
    def __init__(self, sink: FileSink, meet: Callable[[str], None]) -> None:
        self._sink = sink
        self._meet = meet

    @override
    def write(self, data: Buffer) -> None:
        self._meet("write")
        self._sink.write(data)

    @override
    def finish(self) -> None:
        self._meet("finish")
        self._sink.finish()

    @override
    def abandon(self) -> None:
        self._sink.abandon()
