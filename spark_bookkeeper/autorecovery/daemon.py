"""Run auditor and replication worker as background tasks, as long as their process lives.

Neither ends when it loses the election, its session, or the metadata store for a while: it tries
again. Nothing that they hold outlives them: election nodes and locks are ephemeral, and another
process continues their work from any state.

Source: Bookie Ledger Recovery, "AutoRecovery Internals"; BookKeeper ``replication/AuditorElector``,
``replication/AutoRecoveryMain``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from spark_bookkeeper.autorecovery.auditor import Auditor
from spark_bookkeeper.autorecovery.checks import show_nothing
from spark_bookkeeper.autorecovery.names import FOREIGN, is_ours
from spark_bookkeeper.autorecovery.publishing import DisabledError
from spark_bookkeeper.autorecovery.worker import ReplicationWorker
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.recent_jobs import Tally, add_note
from spark_bookkeeper.replication.runner import Runner
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import Task

_log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 5.0
"""The pause before a failed step is tried again."""

_LOOK_SECONDS: Final = 60.0
"""The longest pause between two steps, with or without notifications."""


class Autorecovery:
    """Runs both roles, from ``start`` to ``stop``; both methods are idempotent.

    Args:
        context: stays open; its session holds the election node and the locks.
        runner: carries out the work of both roles.
        name: see ``names.py``.
        local: the bookie next to which it runs.
    """

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        config: AutorecoveryConfig,
        name: str,
        local: BookieId | None = None,
    ) -> None:
        self._context = context
        self._runner = runner
        self._config = config
        self._name = name
        self._auditor: Auditor | None = None
        self._worker = ReplicationWorker(context, runner, config, name, local)
        self._audit_event = AutoResetEvent(context.runtime)
        self._check_event = AutoResetEvent(context.runtime)
        self._work_event = AutoResetEvent(context.runtime)
        self._tasks: list[Task] = []
        self._stops: list[Callable[[], None]] = []
        """Functions that end the watches on the bookies and on the session."""
        self._is_stopping = False
        self._foreign: str | None = None

    def __repr__(self) -> str:
        role = "auditor and worker" if self.is_auditor else "worker"
        return f"Autorecovery({self._name}, {role})"

    @property
    def is_auditor(self) -> bool:
        """Whether this process was the auditor at its last step."""
        return self._auditor is not None

    @property
    def fully_replicated(self) -> int:
        """The number of ledgers that its worker has fully replicated."""
        return self._worker.fully_replicated

    def start(self) -> None:
        """Begin both roles.

        Raises:
            MetadataUnavailableError, NoClusterError: the metadata store does not answer, or holds
                no cluster.
        """
        if self._tasks:
            return
        self._is_stopping = False
        store, runtime = self._context.store, self._context.runtime
        self._stops = [
            store.watch_registrations(self._ring),
            store.on_session_lost(self.session_lost),
        ]
        self._tasks = [
            runtime.spawn("auditor", lambda: self._run(self.audit_once, self._audit_event)),
            runtime.spawn("checks", lambda: self._run(self.check_once, self._check_event)),
            runtime.spawn("replication", lambda: self._run(self.work_once, self._work_event)),
        ]

    def stop(self) -> None:
        """End both roles once the ledgers in work are done, and leave the election."""
        self._is_stopping = True
        self._ring()
        for task in self._tasks:
            task.join()
        self._tasks = []
        for stop in self._stops:
            stop()
        self._stops = []
        self._auditor = None
        show_nothing(self._context.metrics)
        self._context.store.underreplication.stand_down()

    def audit_once(self) -> float:
        """Stand for election; do a step as auditor if elected; return seconds until the next."""
        tree = self._context.store.underreplication
        if not tree.stand(self._name, self._audit_event.set):
            if self._auditor is not None:
                self._auditor = None
                show_nothing(self._context.metrics)
            self._say_who(tree.auditor())
            return _LOOK_SECONDS
        if self._auditor is None:
            _log.info("%s is the auditor", self._name)
            self._foreign = None
            self._auditor = self._elected()
        could_check = self._auditor.can_check
        wait = self._auditor.step(self._audit_event.set)
        if self._auditor.can_check and not could_check:
            self._check_event.set()
        return wait

    def _elected(self) -> Auditor:
        auditor = Auditor(
            self._context,
            self._runner,
            self._config,
            lambda: self._is_stopping or self._auditor is not auditor,
        )
        return auditor

    def session_lost(self) -> None:
        """Its session with the metadata store has ended, and its vote with it."""
        if auditor := self._auditor:
            auditor.was_cut_off = True
        self._ring()

    def check_once(self) -> float:
        """Do the due checks of ledgers as the auditor; return the seconds until the next."""
        auditor = self._auditor
        return _LOOK_SECONDS if auditor is None else auditor.check(self._check_event.set)

    def work_once(self) -> float:
        """Do one round of the worker; return the most seconds until the next round."""
        tally, began = Tally(), self._context.runtime.now()
        try:
            for row in self._worker.round(
                self._work_event.set, is_stopping=lambda: self._is_stopping
            ):
                tally.add(row)
        except DisabledError:
            if self._context.store.underreplication.is_enabled(self._work_event.set):
                return 0.0  # it was enabled again meanwhile
            return _LOOK_SECONDS
        finally:
            if tally.outcomes:
                took = self._context.runtime.now() - began
                add_note(self._context, "autorecovery", self._name, took, tally)
        due = self._worker.next_due_at_ms
        if due is None:
            return _LOOK_SECONDS
        left = (due - self._context.cluster_ms()) / 1000
        return min(_LOOK_SECONDS, max(0.1, left))

    def _run(self, once: Callable[[], float], wake_up: AutoResetEvent) -> None:
        while not self._is_stopping:
            try:
                wait = once()
            except BookKeeperError as error:
                wait = _AGAIN_SECONDS
                _log.warning("%s tries again in %.0f s: %s", self._name, wait, error.message)
            except Exception:  # noqa: BLE001  (a mistake of ours must not end a role in silence)
                wait = _LOOK_SECONDS
                _log.exception("%s made a mistake, and tries again in %.0f s", self._name, wait)
            if not self._is_stopping:
                wake_up.wait(wait)

    def _ring(self) -> None:
        for wake_up in (self._audit_event, self._check_event, self._work_event):
            wake_up.set()

    def _say_who(self, auditor: str | None) -> None:
        """Log a warning, once for each foreign auditor."""
        if auditor is None or is_ours(auditor) or auditor == self._foreign:
            return
        self._foreign = auditor
        _log.warning("%s", FOREIGN.format(name=auditor))
