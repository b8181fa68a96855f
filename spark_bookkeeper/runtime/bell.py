"""A bell that one task waits for and others ring."""

from __future__ import annotations

from spark_bookkeeper.runtime.runtime import Runtime


class Bell:
    """Remembers that it was rung until it is heard, so that no ring is lost."""

    def __init__(self, runtime: Runtime) -> None:
        self._changed = runtime.condition()
        self._is_rung = False

    def ring(self) -> None:
        """Wake who waits, or who will wait next."""
        with self._changed:
            self._is_rung = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Return once the bell was rung, or after so many seconds; it is silent again then.

        Returns:
            Whether it was rung.
        """
        with self._changed:
            if not self._is_rung:
                self._changed.wait(timeout)
            was_rung, self._is_rung = self._is_rung, False
            return was_rung
