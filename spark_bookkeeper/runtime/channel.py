"""A bounded queue between one producer and one consumer, on the runtime's own threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from spark_bookkeeper.runtime.runtime import Runtime

T = TypeVar("T")


class Channel(Generic[T]):
    """Items in order; ``put`` waits while the channel holds too many bytes."""

    def __init__(self, runtime: Runtime, limit_bytes: int) -> None:
        self._changed = runtime.condition()
        self._items: deque[tuple[T, int]] = deque()
        self._limit = limit_bytes
        self._size = 0
        self._is_closed = False
        self.is_abandoned = False
        """Whether one side called ``abandon``: no item is delivered or kept any more."""

    def put(self, item: T, size_bytes: int) -> None:
        """Add an item; drop it if the channel was abandoned."""
        with self._changed:
            while self._size and self._size + size_bytes > self._limit and not self.is_abandoned:
                self._changed.wait()
            if not self.is_abandoned:
                self._items.append((item, size_bytes))
                self._size += size_bytes
                self._changed.notify_all()

    def close(self) -> None:
        """Declare that no more items will come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drop all waiting items and all later ones."""
        with self._changed:
            self.is_abandoned = True
            self._items.clear()
            self._size = 0
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Yield items until the channel is closed and empty, or abandoned."""
        while True:
            with self._changed:
                while not self._items and not self._is_closed and not self.is_abandoned:
                    self._changed.wait()
                if not self._items:
                    return
                item, size = self._items.popleft()
                self._size -= size
                self._changed.notify_all()
            yield item
