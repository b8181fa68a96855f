"""Waiting until something becomes of nodes, without asking again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import EventType

from spark_bookkeeper.metadata.zookeeper.link import Link


class Watches:
    """What one session watches. All methods may be called from any thread.

    Those that wait raise ``MetadataUnavailableError`` when no answer came in time.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._looks: set[Callable[[], None]] = set()
        """What looks at nodes that are watched; again after each loss of the connection."""
        link.on_connected(self._look_again)

    def wait_gone(self, path: str, timeout_ms: int) -> bool:
        """Whether a node is gone, now or within some time, whatever else becomes of it or of the
        connection meanwhile.
        """
        gone = self._link.client.handler.event_object()

        def is_there() -> bool:
            request = self._link.client.exists_async(path)
            return self._link.wait(request, lambda stat: stat is not None)

        if not self._link.insist(f"watch {path}", is_there):
            return True
        stop = self.watch_gone(path, gone.set)
        try:
            gone.wait(timeout_ms / 1000)
        finally:
            stop()
        return not self._link.insist(f"watch {path}", is_there)

    def watch_gone(self, path: str, gone: Callable[[], None]) -> Callable[[], None]:
        """Call ``gone`` once, from any thread, when there is no such node; returns how to stop.

        A request is sent now, and one after each change of the node and each loss of the
        connection; nobody waits for their answers.
        """
        is_stopped = False

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True
            self._looks.discard(look)

        def look() -> None:
            if not is_stopped:
                self._link.client.exists_async(path, changed).rawlink(answered)

        def changed(event: Any) -> None:
            if event.type == EventType.DELETED:  # also when there is another under its name by now
                tell()
            elif event.type == EventType.CHANGED:
                look()  # after a loss of the connection ``look`` is called anyway

        def answered(request: Any) -> None:
            if request.successful() and request.get_nowait() is None:
                tell()

        def tell() -> None:
            if not is_stopped:
                stop()
                gone()

        self._looks.add(look)
        look()
        return stop

    def _look_again(self) -> None:
        for look in list(self._looks):
            look()

    def watch_children(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after children come or go; returns how to stop. Any thread calls."""
        seen: list[set[str]] = []
        stopped = False

        def look(names: list[str]) -> bool:
            if not stopped and (not seen or seen[-1] != set(names)):
                is_first = not seen
                seen[:] = [set(names)]
                if not is_first:
                    changed()
            return not stopped

        def stop() -> None:
            nonlocal stopped
            stopped = True

        self._link.insist(f"watch {path}", lambda: self._link.client.ChildrenWatch(path, look))
        return stop
