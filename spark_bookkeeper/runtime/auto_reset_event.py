"""An event that a wait clears."""

from __future__ import annotations

from spark_bookkeeper.runtime.runtime import Runtime


class AutoResetEvent:
    """Stays set until one task has waited for it, so that no call of ``set`` is lost."""

    def __init__(self, runtime: Runtime) -> None:
        self._changed = runtime.condition()
        self._is_set = False

    def set(self) -> None:
        """Wake the task that waits, or that will wait next."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Return once the event is set, or after ``timeout`` seconds; clear it.

        Returns:
            Whether it was set.
        """
        with self._changed:
            if not self._is_set:
                self._changed.wait(timeout)
            was_set, self._is_set = self._is_set, False
            return was_set
