"""kazoo's client, with what this library needs of it beyond its own.

What kazoo is asked for while there is no connection it sends on the next one, also when nobody
waits for it any more: a lock or a ledger would come, or go, behind everybody's back. So here a
request can be given up (``Awaited.give_up``).
"""

from __future__ import annotations

import select
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, SupportsIndex

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionClosedError, ZookeeperError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

_GREETING_SECONDS: Final = 2.0
"""How long a server may take to answer the first request of a connection, before it is asked over
a new one; doubled each time. One that starts never answers who comes between its port and the
server behind it, and kazoo alone would wait there for the whole timeout of the session."""


class SaslRequiredError(ZookeeperError):  # type: ignore[misc]  # kazoo has no types
    """The server serves only who proved itself by SASL. kazoo does not know this answer."""

    code = -124


EXCEPTIONS[SaslRequiredError.code] = SaslRequiredError


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's, whose requests can be given up before they are sent. Made with a ``Handler``."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.troubles: dict[str, BaseException] = {}
        """What the last attempt to connect to a server met, by ``host:port``."""
        connection = self._connection
        self._connect_once = connection._connect  # noqa: SLF001  (kazoo only logs what it raises)
        connection._connect = self._connect  # noqa: SLF001

    def _connect(self, host: str, address: str, port: int) -> Any:
        server = f"{host}:{port}"
        self.troubles.setdefault(server, TimeoutError())  # as long as no attempt has come back
        try:
            connected = self._connect_once(host, address, port)
        except Exception as error:
            self.troubles[server] = error
            raise
        del self.troubles[server]
        return connected

    def _reset(self) -> None:
        super()._reset()
        self._queue = self.handler.unsent = _Unsent()


class _Unsent(deque[Any]):
    """What waits to be sent: pairs of a request and its answer.

    kazoo's connection looks at the first one, sends it, and takes it away. So what it has looked at
    is not given up any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._being_sent: object = None

    def __getitem__(self, index: SupportsIndex) -> Any:  # type: ignore[override]  # as kazoo asks
        with self._lock:
            self._being_sent = super().__getitem__(index)
            return self._being_sent

    def append(self, pair: Any) -> None:
        with self._lock:
            super().append(pair)

    def popleft(self) -> Any:
        with self._lock:
            self._being_sent = None
            return super().popleft()

    def give_up(self, answer: Awaited) -> bool:
        """Take a request away; whether it was not sent, and will not be."""
        with self._lock:
            for pair in self:
                if pair[1] is answer and pair is not self._being_sent:
                    self.remove(pair)
                    return True
        return False


class Changes:
    """Counts what a session is told of the nodes that it watches, and every loss of connection.

    ZooKeeper tells a session of a change before it answers anything from after the change, and
    the count goes up before that answer is handed out. So when the count is what it was at a
    read, the read is as good as one made together with the last request that was answered.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: object) -> None:
        self.count += 1  # only the thread that reads the answers calls


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with less to do for each request, and no endless wait for a greeting."""

    unsent: _Unsent

    def __init__(self) -> None:
        super().__init__()
        self._greeted_by: Any = None
        self._greeting_seconds = _GREETING_SECONDS

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connection that nothing was heard on."""
        self._greeted_by = super().create_connection(*args, **kwargs)
        return self._greeted_by

    def select(
        self,
        readable: Sequence[Any],
        writable: Sequence[Any],
        exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As kazoo's own, which makes and closes an epoll descriptor for each of many looks."""
        awaits_greeting = self._greeted_by is not None and self._greeted_by in readable
        if awaits_greeting and timeout is not None:
            timeout = min(timeout, self._greeting_seconds)
        poll = select.poll()
        for each in readable:
            poll.register(each, select.POLLIN)
        for each in writable:
            poll.register(each, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        if awaits_greeting and ready:
            self._greeted_by, self._greeting_seconds = None, _GREETING_SECONDS
        elif awaits_greeting:
            self._greeting_seconds *= 2  # or the server is busy
        return (
            [each for each in readable if each.fileno() in ready],
            [each for each in writable if each.fileno() in ready],
            [],
        )

    def async_result(self) -> Awaited:
        return Awaited(self)

    def dispatch_callback(self, callback: Any) -> None:
        """Counting must not wait behind other callbacks, so that it is done before any answer."""
        if isinstance(callback.func, Changes):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)


class Awaited(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Calls who is linked in the thread that read the answer, without a detour over another."""

    def give_up(self) -> bool:
        """Nobody waits for it any more; whether its request was not sent, and will not be."""
        return bool(self._handler.unsent.give_up(self))

    def set_exception(self, exception: Exception) -> None:
        """Kazoo takes Ctrl-C while it asks for a closed connection; it is raised as what it is."""
        interrupt = sys.exc_info()[1]
        if isinstance(exception, ConnectionClosedError) and isinstance(
            interrupt, KeyboardInterrupt
        ):
            raise interrupt
        super().set_exception(exception)

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)
