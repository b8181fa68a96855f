"""Watches of nodes, which replace polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import EventType

from spark_bookkeeper.metadata.zookeeper.link import Link


class Watches:
    """The watches of one session. All methods may be called from any thread.

    Methods that wait raise ``MetadataUnavailableError`` when no answer came in time.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._looks: set[Callable[[], None]] = set()
        """Functions that read watched nodes; called again after each loss of the connection."""
        link.on_connected(self._look_again)

    def wait_gone(self, path: str, timeout_ms: int) -> bool:
        """Return whether a node is deleted, now or within the time-out. Other changes of the node
        and losses of the connection do not end the wait.
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
        """Call ``gone`` once, from any thread, when no such node exists; return how to stop.

        Send a request now, and one after each change of the node and each loss of the connection,
        without waiting for the answers.
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
            if event.type == EventType.DELETED:  # even if a new node has its name by now
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
        """Call ``changed`` from any thread after children come or go; return how to stop."""
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
