"""A storage that hangs: chosen operations give no answer and no error until they are released."""

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
    """Decides which operations hang. Several storages may share it.

    Args:
        runtime: the runtime of the waiting tasks, simulated or real.
        hangs: whether an operation on a path hangs.
        is_late: whether an operation takes effect after its release; otherwise it fails.
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
        """The number of calls that have hung."""
        self.stuck = 0
        """The number of calls that hang now."""
        self._is_late = is_late
        self._is_over = False
        self._changed = runtime.condition()

    def meet(self, operation: str, path: str) -> None:
        """Wait before an operation, if it hangs, until its release."""
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
        """Release all operations; no later one hangs."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    @classmethod
    def of(cls, runtime: Runtime, *operations: str) -> Hang:
        """Return a ``Hang`` for operations of these names."""
        return cls(runtime, lambda operation, path: operation in operations)


class HangingStorage(CountingStorage):
    """Passes every operation on, after it has hung."""

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
