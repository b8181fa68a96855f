"""kazoo's client, extended by what this library needs.

kazoo sends requests that were made without a connection on the next one, even if no caller waits
for them any more. Then a lock or a ledger would appear or disappear unexpectedly. So here a request
can be given up (``Awaited.give_up``).
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
"""How long a server may take to answer the first request of a connection, before a new connection
is tried; doubled each time. A starting server never answers a client that connects after its port
opens and before the server behind it runs; kazoo alone would wait for the whole session timeout."""


class SaslRequiredError(AuthFailedError):  # type: ignore[misc]  # kazoo has no types
    """The server requires proof of identity by SASL. kazoo does not know this answer."""

    code = -124


EXCEPTIONS[SaslRequiredError.code] = SaslRequiredError


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's client, whose requests can be given up before they are sent. Needs a ``Handler``."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.troubles: dict[str, BaseException] = {}
        """The error of the last attempt to connect to each server, by ``host:port``."""
        self.is_refused = False
        self.decided = self.handler.event_object()
        """Set at the first session, or once ``is_refused``: every server refused for good."""
        connection = self._connection
        self._connect_round, connection._connect_loop = connection._connect_loop, self._one_round
        self._connect_once, connection._connect = connection._connect, self._connect
        self._is_kerberos = (connection.sasl_options or {}).get("mechanism") == "GSSAPI"
        if connection.sasl_options:
            self._submit_any, connection._submit = connection._submit, self._submit

    def _one_round(self, retry: Any) -> Any:
        self._refusals: dict[str, bool] = {}  # by server; one name may have several addresses
        try:
            return self._connect_round(retry)
        finally:
            if len(self._refusals) == len(set(self.hosts)) and all(self._refusals.values()):
                self.is_refused = True
                self.decided.set()

    def _connect(self, host: str, address: str, port: int) -> Any:
        server = f"{host}:{port}"
        self.troubles.setdefault(server, TimeoutError())  # until an attempt has ended
        self._is_greeted = False
        try:
            connected = self._connect_once(host, address, port)
        except SessionExpiredError:
            raise
        except Exception as error:
            cause = self.troubles[server] = error.__cause__ or error  # kazoo hides SASL's error
            # With Kerberos a clock or ticket may come later, as after a power cut.
            is_refused = met(cause).is_for_good and not self._is_kerberos
            self._refusals[server] = is_refused and self._refusals.get(server, True)
            # kazoo tries again after these errors, but never after a refusal, even a repaired one.
            if self._is_greeted and self.state == KazooState.SUSPENDED:
                # The greeting prolonged the session with its locks, but nothing can be done in it.
                raise SessionExpiredError("given up") from error
            raise ConnectionDropped("not connected") from error
        del self.troubles[server]
        self._refusals[server] = False
        super()._session_callback(KeeperState.CONNECTED)
        self.decided.set()
        return connected

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.CONNECTED:  # kazoo reports it before it has proved its identity
            self._is_greeted = True
        else:
            super()._session_callback(state)

    def _submit(self, request: Any, timeout: float, number: int | None = None) -> None:
        if isinstance(request, SASL) and number == 10:  # three suffice; kazoo never stops
            raise RuntimeError("the server does not complete SASL, or does not know it")
        self._submit_any(request, timeout, number)

    def _reset(self) -> None:
        super()._reset()
        self._queue = self.handler.unsent = _Unsent()


class _Unsent(deque[Any]):
    """The queue of unsent requests: pairs of a request and its answer.

    kazoo's connection reads the first pair, sends it, and removes it. So a pair that it has read
    cannot be given up any more.
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
        """Remove a request; return whether it was not sent and never will be."""
        with self._lock:
            for pair in self:
                if pair[1] is answer and pair is not self._being_sent:
                    self.remove(pair)
                    return True
        return False


class Changes:
    """Counts the events of the nodes that a session watches, and every loss of connection.

    ZooKeeper reports a change to a session before it answers anything later, and the count rises
    before that answer is returned. So while the count is the same as at a read, the value read is
    as current as the last answer.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: object) -> None:
        self.count += 1  # only the thread that reads the answers calls


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with less work for each request, and no endless wait for a greeting."""

    unsent: _Unsent

    def __init__(self) -> None:
        super().__init__()
        self._greeted_by: Any = None
        self._greeting_seconds = _GREETING_SECONDS

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection on which nothing was received yet."""
        self._greeted_by = super().create_connection(*args, **kwargs)
        return self._greeted_by

    def select(
        self,
        readable: Sequence[Any],
        writable: Sequence[Any],
        exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like kazoo's own, which often makes and closes an epoll descriptor instead."""
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
        """Count at once: behind other callbacks the count would rise after the answer."""
        if isinstance(callback.func, Changes):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)


class Awaited(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Runs callbacks in the thread that read the answer, without a switch to another thread."""

    def give_up(self) -> bool:
        """Stop waiting; return whether the request was not sent and never will be."""
        return bool(self._handler.unsent.give_up(self))

    def set_exception(self, exception: Exception) -> None:
        """Raise Ctrl-C, which kazoo replaces by an error while it uses a closed connection."""
        interrupt = sys.exc_info()[1]
        if isinstance(exception, ConnectionClosedError) and isinstance(
            interrupt, KeyboardInterrupt
        ):
            raise interrupt
        super().set_exception(exception)

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)
