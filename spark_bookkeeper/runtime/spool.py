"""A list that may become long: items beyond a limit go to a temporary file.

Jobs keep values in it from one step to the next, or until their end, so that a million ledgers need
no more memory than a thousand.
"""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Final, Generic, TypeVar, overload

from typing_extensions import override

IN_MEMORY: Final = 8192
"""Number of items that are kept in memory, and of items that are read from the file at once."""

T = TypeVar("T")


class Spool(Sequence[T], Generic[T]):
    """Values in the order in which they were added; not safe to use from several threads.

    Args:
        items: the first values.
        in_memory: number of items in memory before a file is begun; ``None``: ``IN_MEMORY``.
    """

    def __init__(self, items: Iterable[T] = (), in_memory: int | None = None) -> None:
        self._in_memory = IN_MEMORY if in_memory is None else in_memory
        self._newest: list[T] = []
        self._file: IO[bytes] | None = None
        self._starts: list[int] = []
        """The positions in the file at which the blocks of items begin."""
        self._length = 0
        self.extend(items)

    @property
    def is_in_memory(self) -> bool:
        """Whether no file was needed."""
        return self._file is None

    def append(self, item: T) -> None:
        """Add one item at the end."""
        self._newest.append(item)
        self._length += 1
        if len(self._newest) >= self._in_memory:
            self._write()

    def extend(self, items: Iterable[T]) -> None:
        """Add items at the end."""
        for item in items:
            self.append(item)

    @override
    def __len__(self) -> int:
        return self._length

    @override
    def __iter__(self) -> Iterator[T]:
        for block in range(len(self._starts)):
            yield from self._read(block)
        yield from tuple(self._newest)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    @override
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 0:
                return list(self)[index]
            return list(islice(self, start, stop, step))
        wanted = range(len(self))[index]
        return next(islice(self, wanted, None))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it is a list

    def __reduce__(self) -> tuple[type[list[T]], tuple[list[T]]]:
        """Pickle the items as a list, since the file cannot be pickled."""
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"Spool({len(self)} items{'' if self.is_in_memory else ', most of them in a file'})"

    def _write(self) -> None:
        if self._file is None:
            # Already unlinked, on systems that allow it: a killed process leaves no file behind.
            self._file = tempfile.TemporaryFile(prefix="bookkeeper-spool-")  # noqa: SIM115  (it lives as long as this)
            weakref.finalize(self, self._file.close)
        self._file.seek(0, 2)
        self._starts.append(self._file.tell())
        pickle.dump(self._newest, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._newest = []

    def _read(self, block: int) -> list[T]:
        assert self._file is not None
        self._file.seek(self._starts[block])
        found: list[T] = pickle.load(self._file)
        return found
