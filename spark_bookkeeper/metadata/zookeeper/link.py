"""One session with ZooKeeper: connects, waits for answers, repeats requests, ends.

It translates kazoo's errors and knows nothing of nodes. ``nodes.py`` has the operations on nodes,
and the meaning of a lost answer to each.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from kazoo.client import KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
)
from kazoo.exceptions import ConnectionLoss as ConnectionLossError
from kazoo.exceptions import SessionExpiredError as KazooSessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.zookeeper.client import Client, Handler, SaslRequiredError
from spark_bookkeeper.metadata.zookeeper.options import client_options
from spark_bookkeeper.metadata.zookeeper.unreached import headline, why_unreached
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

_UNDECIDED: Final = "The change may or may not have been made: read, then decide"
_UNCHANGED: Final = "Nothing was changed"

_log = logging.getLogger("spark_bookkeeper.zookeeper")
_log.setLevel(logging.ERROR)  # kazoo logs every attempt to connect; our errors report it once


class AbsentError(Exception):
    """The node does not exist (or, at a create, its parent does not)."""


class PresentError(Exception):
    """A node of that name exists already, and it is not the one to be made."""


class ChangedError(Exception):
    """The node has another version; nothing was written."""


class OccupiedError(Exception):
    """The node has children, so it was not deleted."""


class Link:
    """One session with ZooKeeper. All methods may be called from any thread.

    Args:
        hosts: ``host:port`` of each server, separated by commas.
        session_timeout_ms: the servers end the session after this time without a message.
        patience_ms: how long operations and the constructor retry without an answer.
        options: see ``options.py``.
        metrics: counts repeated requests and lost sessions.

    Raises:
        InvalidArgumentError: an option is wrong.
        MetadataUnavailableError: no server gave a session.
        MetadataError: every server refused for good.
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
        self._lost: dict[object, Callable[[], None]] = {}
        self._connected: list[Callable[[], None]] = []
        self._times_connected = 0
        self._is_listening = False
        """Whether a request is under way only to notice the next answer."""
        self._is_closed = False
        self._owner = os.getpid()
        self.client: Any = Client(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=Handler(),
            logger=_log,
            connection_retry={"max_tries": -1, "max_delay": 1.0},
            command_retry={"max_tries": -1, "max_delay": 1.0, "deadline": self.patience},
            default_acl=access,
            **arguments,
        )
        self.client.add_listener(self._state_changed)
        self.client.start_async()
        self.client.decided.wait(self.patience)
        if not self.client.connected:
            # Closing takes long if a server accepted and does not answer, so do not wait for it.
            troubles = dict(self.client.troubles)
            self.client.handler.spawn(self.close)
            kind = MetadataError if self.client.is_refused else MetadataUnavailableError
            raise kind(
                f"{headline(troubles)} at {hosts} (tried for at most {self.patience:g} s); nothing "
                f"was changed. {why_unreached(troubles)}"
            )

    @property
    def session_id(self) -> int:
        """The number of the current session; it changes after a session was lost."""
        client_id = self.client.client_id
        return int(client_id[0]) if client_id else 0

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes; idempotent."""
        if self._owner != os.getpid():
            return  # a forked child must not end its parent's session
        if not self._is_closed:
            self._is_closed = True
            self.client.stop()
            self.client.close()

    def on_session_lost(self, lost: Callable[[], None]) -> Callable[[], None]:
        """Call ``lost`` in its own thread after each end of a session; return how to stop."""
        key = object()
        self._lost[key] = lost

        def stop() -> None:
            self._lost.pop(key, None)

        return stop

    def on_connected(self, connected: Callable[[], None]) -> None:
        """Call ``connected`` in its own thread each time the connection is back.

        The session may be the same or a new one. It is also called when answers come again on a
        connection that was never lost, but so slow that an operation gave up.
        """
        self._connected.append(connected)

    def once_connected(self, attempt: Callable[[], bool]) -> None:
        """Try work that ``on_connected`` tries as well.

        The attempt is repeated if it failed and the connection came back meanwhile, because the
        ``on_connected`` call may have left the work to this one.
        """
        before = -1
        while before != self._times_connected:
            before = self._times_connected
            if attempt():
                return

    def surely(self, note: Callable[[], None], work: Callable[[], None]) -> None:
        """Note the work to be done and do it, although Ctrl-C may come at any moment.

        Args:
            note: may run twice without harm.
            work: runs in its own thread, where no Ctrl-C comes; the call waits for it.
        """
        try:
            note()
            self._in_a_thread(work).get()
        except BaseException:  # inside a lock Python turns Ctrl-C into another error
            note()
            self._in_a_thread(work)
            raise

    def _in_a_thread(self, work: Callable[[], None]) -> Any:
        ended = self.client.handler.async_result()

        def run() -> None:
            try:
                work()
                ended.set()
            except Exception as error:  # noqa: BLE001  (handed to whoever waits)
                ended.set_exception(error)

        try:
            self.client.handler.spawn(run)
        except RuntimeError:  # no thread can be started: the interpreter ends
            run()
        return ended

    def wait(self, request: Any, convert: Callable[[Any], T]) -> T:
        """Return the answer to one request. Without one in time, a request that was sent may still
        be carried out; one that was not sent by then, or by Ctrl-C, is never sent.

        Raises:
            AbsentError, PresentError, ChangedError, OccupiedError: the answer's error.
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
        except KazooException:
            raise
        except BaseException:  # no caller waits for it any more
            request.give_up()
            raise

    def insist(
        self,
        what: str,
        attempt: Callable[[], T],
        *,
        may_have_changed: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat an attempt while its answers get lost, for a bounded time.

        Without the bound a request that the server drops for its size would repeat for ever.

        Raises:
            InvalidArgumentError: the caller is in a forked child of the session's process.
            MetadataUnavailableError: no answer came in time, or only to a later request.
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
            self._listen()
            certain = _UNDECIDED if may_have_changed() else _UNCHANGED
            advice = "Check that a majority of its servers runs"
            if not self.client.connected and (troubles := dict(self.client.troubles)):
                advice = why_unreached(troubles)
            raise MetadataUnavailableError(
                f"ZooKeeper at {self.hosts} did not answer in {self.patience:g} s: {what}. "
                f"{certain}. {advice}"
            ) from error
        except KazooException as error:
            refused = f"ZooKeeper at {self.hosts} refused to {what}: {type(error).__name__} {error}"
            rules = "Check the access rules of the node and the credentials"
            if isinstance(error, SaslRequiredError):
                rules = "It serves only who proves itself by SASL: give sasl_mechanism"
            if may_have_changed():
                raise MetadataUnavailableError(f"{refused}. {_UNDECIDED}. {rules}") from error
            raise MetadataError(f"{refused}. {_UNCHANGED}. {rules}") from error

    def _listen(self) -> None:
        """Watch for the next answer: a connection that was only slow reports no return."""
        if self._is_listening or self._is_closed:
            return
        self._is_listening = True
        before = self._times_connected

        def heard(request: Any) -> None:
            self._is_listening = False
            if request.successful() and before == self._times_connected:
                self._is_connected()

        self.client.exists_async("/").rawlink(heard)

    def _state_changed(self, state: str) -> None:
        if self._is_closed:
            return
        if state == KazooState.LOST:
            self._metrics.zookeeper_sessions_lost.inc()
            for told in list(self._lost.values()):
                self.client.handler.spawn(told)
        elif state == KazooState.SUSPENDED:
            self._metrics.zookeeper_connections_lost.inc()
        else:
            self._is_connected()

    def _is_connected(self) -> None:
        self._times_connected += 1  # before any callback runs
        for told in list(self._connected):
            self.client.handler.spawn(told)
