"""kazoo's client, with what this library needs of it beyond its own.

What kazoo is asked for while there is no connection it sends on the next one, also when nobody
waits for it any more: a lock or a ledger would come, or go, behind everybody's back. So here a
request can be given up (``Awaited.give_up``).
"""

# ruff: noqa: SLF001  (kazoo has no other way in)

from __future__ import annotations

import select
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, SupportsIndex

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, AuthFailedError, ConnectionClosedError, SessionExpiredError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import SASL
from kazoo.protocol.states import KazooState, KeeperState

from spark_bookkeeper.metadata.zookeeper.unreached import met

_GREETING_SECONDS: Final = 2.0
"""How long a server may take to answer the first request of a connection, before it is asked over
a new one; doubled each time. One that starts never answers who comes between its port and the
server behind it, and kazoo alone would wait there for the whole timeout of the session."""


class SaslRequiredError(AuthFailedError):  # type: ignore[misc]  # kazoo has no types
    """The server serves only who proved itself by SASL. kazoo does not know this answer."""

    code = -124


EXCEPTIONS[SaslRequiredError.code] = SaslRequiredError


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's, whose requests can be given up before they are sent. Made with a ``Handler``."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.troubles: dict[str, BaseException] = {}
        """What the last attempt to connect to a server met, by ``host:port``."""
        self.is_refused = False
        self.decided = self.handler.event_object()
        """Set at the first session, or when it ``is_refused``: by every server, for good."""
        connection = self._connection
        self._connect_round, connection._connect_loop = connection._connect_loop, self._one_round
        self._connect_once, connection._connect = connection._connect, self._connect
        self._is_kerberos = (connection.sasl_options or {}).get("mechanism") == "GSSAPI"
        if connection.sasl_options:
            self._submit_any, connection._submit = connection._submit, self._submit

    def _one_round(self, retry: Any) -> Any:
        self._refusals: dict[str, bool] = {}  # by server, whose name may stand for several
        try:
            return self._connect_round(retry)
        finally:
            if len(self._refusals) == len(set(self.hosts)) and all(self._refusals.values()):
                self.is_refused = True
                self.decided.set()

    def _connect(self, host: str, address: str, port: int) -> Any:
        server = f"{host}:{port}"
        self.troubles.setdefault(server, TimeoutError())  # as long as no attempt has come back
        self._is_greeted = False
        try:
            connected = self._connect_once(host, address, port)
        except SessionExpiredError:
            raise
        except Exception as error:
            cause = self.troubles[server] = error.__cause__ or error  # kazoo hides what SASL met
            # With Kerberos a clock or ticket may come later, as after a power cut.
            is_refused = met(cause).is_for_good and not self._is_kerberos
            self._refusals[server] = is_refused and self._refusals.get(server, True)
            # After these kazoo tries again; after a refusal it never would, whatever is mended.
            if self._is_greeted and self.state == KazooState.SUSPENDED:
                # The greeting prolonged the session, and its locks, with which nothing is done.
                raise SessionExpiredError("given up") from error
            raise ConnectionDropped("not connected") from error
        del self.troubles[server]
        self._refusals[server] = False
        super()._session_callback(KeeperState.CONNECTED)
        self.decided.set()
        return connected

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.CONNECTED:  # kazoo says so before it has proved who this is
            self._is_greeted = True
        else:
            super()._session_callback(state)

    def _submit(self, request: Any, timeout: float, number: int | None = None) -> None:
        if isinstance(request, SASL) and number == 10:  # three do; kazoo goes on for ever
            raise RuntimeError("the server does not complete SASL, or does not know it")
        self._submit_any(request, timeout, number)

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
