"""A session with ZooKeeper: connected, asked, waited for, asked again, ended.

It translates kazoo's errors, and knows nothing of nodes. What is done to them, and what a lost
answer means there, is in ``nodes.py``.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
)
from kazoo.exceptions import ConnectionLoss as ConnectionLossError
from kazoo.exceptions import SessionExpiredError as KazooSessionExpiredError
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.zookeeper.options import client_options
from spark_bookkeeper.metrics import Metrics

T = TypeVar("T")

UNCERTAIN: Final = (
    ConnectionLossError,
    ConnectionClosedError,
    KazooSessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
)
"""Errors after which a request may have been carried out."""

ACCESS_REFUSED: Final = (NoAuthError, InvalidACLError)
"""Causes of a ``MetadataError`` that are the same the next time: the node's access rules."""

_GREETING_SECONDS: Final = 2.0
"""How long a server may take to answer the first request of a connection, before it is asked over
a new one; doubled each time. One that starts never answers who comes between its port and the
server behind it, and kazoo alone would wait there for the whole timeout of the session."""

_UNDECIDED: Final = "The change may or may not have been made: read, then decide"
_UNCHANGED: Final = "Nothing was changed"

_log = logging.getLogger("spark_bookkeeper.zookeeper")
_log.setLevel(logging.ERROR)  # kazoo tells of every attempt to connect; errors tell it once


class AbsentError(Exception):
    """There is no such node (or, at a create, no parent)."""


class PresentError(Exception):
    """There is such a node already, and it is not what was to be made."""


class ChangedError(Exception):
    """The node has another version; nothing was written."""


class OccupiedError(Exception):
    """The node has children, so it was not deleted."""


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


class Link:
    """One session with ZooKeeper. All methods may be called from any thread.

    Args:
        hosts: ``host:port`` of each server, separated by commas.
        session_timeout_ms: the servers end the session after hearing nothing for so long.
        patience_ms: how long an operation goes on when there is no answer; also how long the
            constructor waits for a first connection.
        options: see ``options.py``.
        metrics: where repeated requests and lost sessions are counted.

    Raises:
        InvalidArgumentError: an option is wrong.
        MetadataUnavailableError: no server answered.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        patience_ms: int,
        options: Mapping[str, str],
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        arguments = client_options(options)
        access = CREATOR_ALL_ACL if arguments.pop("acl", "open") == "creator" else OPEN_ACL_UNSAFE
        self.hosts = hosts
        self.patience = patience_ms / 1000
        self._lost: list[Callable[[], None]] = []
        self._connected: list[Callable[[], None]] = []
        self._is_closed = False
        self._owner = os.getpid()
        self.client: Any = KazooClient(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(),
            logger=_log,
            connection_retry={"max_tries": -1, "max_delay": 1.0},
            command_retry={"max_tries": -1, "max_delay": 1.0, "deadline": self.patience},
            default_acl=access,
            **arguments,
        )
        self.client.add_listener(self._state_changed)
        self.client.start_async().wait(self.patience)
        if not self.client.connected:
            # Where a server took the connection and says nothing, its end takes long. Nobody waits.
            self.client.handler.spawn(self.close)
            raise MetadataUnavailableError(
                f"no ZooKeeper answers at {hosts} (tried for {self.patience:g} s); nothing was "
                "changed. Check the host and port in the metadata URI, that ZooKeeper runs there "
                "(`echo srvr | nc HOST PORT`), and that no firewall is in between"
            )

    @property
    def session_id(self) -> int:
        """The number of the current session; another one after the old one was lost."""
        client_id = self.client.client_id
        return int(client_id[0]) if client_id else 0

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes; idempotent."""
        if self._owner != os.getpid():
            return  # a forked child has no say over its parent's session
        if not self._is_closed:
            self._is_closed = True
            self.client.stop()
            self.client.close()

    def on_session_lost(self, lost: Callable[[], None]) -> None:
        """Call ``lost`` in a thread of its own after each end of a session."""
        self._lost.append(lost)

    def on_connected(self, connected: Callable[[], None]) -> None:
        """Call ``connected`` in a thread of its own each time the connection is there again.

        In the same session or in a new one.
        """
        self._connected.append(connected)

    def wait(self, request: Any, convert: Callable[[Any], T]) -> T:
        """The answer to one request. A late one is uncertain: it may still be carried out.

        Raises:
            AbsentError, PresentError, ChangedError, OccupiedError: what the answer says.
        """
        try:
            return convert(request.get(timeout=self.patience * 0.4))
        except NoNodeError as error:
            raise AbsentError from error
        except NodeExistsError as error:
            raise PresentError from error
        except BadVersionError as error:
            raise ChangedError from error
        except NotEmptyError as error:
            raise OccupiedError from error

    def insist(
        self,
        what: str,
        attempt: Callable[[], T],
        *,
        may_have_changed: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat an attempt while its answers get lost, for a bounded time.

        Without the bound a request that the server drops for its size would be repeated for ever.

        Raises:
            InvalidArgumentError: a forked child of the process that began the session asks.
            MetadataUnavailableError: no answer came in time, or only to what was asked after it.
            MetadataError: ZooKeeper refused for another reason, for example its access rules, and
                nothing was changed.
        """
        if self._owner != os.getpid():
            raise InvalidArgumentError(
                f"cannot {what}: this session with ZooKeeper is that of the process which this one "
                "was forked from, and its threads stayed there. Connect in this process"
            )
        if self._is_closed:
            raise MetadataUnavailableError(
                f"cannot {what}: the connection to ZooKeeper was closed; connect again"
            )
        retry = KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=1.0,
            deadline=self.patience * 0.8,
            sleep_func=self.client.handler.sleep_func,
            interrupt=lambda: self._is_closed,
        )
        retry.retry_exceptions = UNCERTAIN
        attempts = 0

        def counted() -> T:
            nonlocal attempts
            attempts += 1
            if attempts > 1:
                self._metrics.zookeeper_retries.inc()
            return attempt()

        try:
            return retry(counted)  # type: ignore[no-any-return]  # what `attempt` returns
        except (RetryFailedError, *UNCERTAIN) as error:
            certain = _UNDECIDED if may_have_changed() else _UNCHANGED
            raise MetadataUnavailableError(
                f"ZooKeeper at {self.hosts} did not answer in {self.patience:g} s: {what}. "
                f"{certain}. Check that a majority of its servers runs"
            ) from error
        except KazooException as error:
            refused = f"ZooKeeper at {self.hosts} refused to {what}: {type(error).__name__} {error}"
            rules = "Check the access rules of the node and the credentials"
            if may_have_changed():
                raise MetadataUnavailableError(f"{refused}. {_UNDECIDED}. {rules}") from error
            raise MetadataError(f"{refused}. {_UNCHANGED}. {rules}") from error

    def _state_changed(self, state: str) -> None:
        if self._is_closed:
            return
        if state == KazooState.LOST:
            self._metrics.zookeeper_sessions_lost.inc()
        elif state == KazooState.SUSPENDED:
            self._metrics.zookeeper_connections_lost.inc()
        hear = {KazooState.LOST: self._lost, KazooState.CONNECTED: self._connected}
        for told in list(hear.get(state, ())):
            self.client.handler.spawn(told)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with less to do for each request, and no endless wait for a greeting."""

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

    def async_result(self) -> _Answer:
        return _Answer(self)

    def dispatch_callback(self, callback: Any) -> None:
        """Counting must not wait behind other callbacks, so that it is done before any answer."""
        if isinstance(callback.func, Changes):
            callback.func(*callback.args)
        else:
            super().dispatch_callback(callback)


class _Answer(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """Calls who is linked in the thread that read the answer, without a detour over another."""

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
