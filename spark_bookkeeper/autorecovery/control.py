"""The operator's commands and settings for autorecovery in a cluster: ``bk.autorecovery``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from spark_bookkeeper.autorecovery.checks import CheckResult, read_results
from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.delay import read_delay
from spark_bookkeeper.autorecovery.limit import read_limit, write_limit
from spark_bookkeeper.autorecovery.names import DISABLED, FOREIGN, NONE_RUNS, is_ours, process_name
from spark_bookkeeper.autorecovery.publishing import check_enabled
from spark_bookkeeper.autorecovery.worker import runner_of_worker
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.underreplication import Check, Underreplication
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.replication.runner import Runner


@dataclass(frozen=True)
class AutorecoveryStatus:
    """The state of the cluster's autorecovery at the time of the call."""

    is_enabled: bool
    auditor: str | None
    """The name of the auditor; ``None`` when no autorecovery runs anywhere."""
    underreplicated: int
    """The number of ledgers with a task."""
    locked: int
    """The number of those ledgers that a worker has locked."""
    lost_bookie_recovery_delay: int
    """The delay in seconds."""
    bytes_per_second: int | None
    """The limit on the copying of each worker; ``None`` is no limit."""
    warning: str | None
    """The problem and its remedy; ``None`` if there is no problem."""
    disabled_at: datetime | None = None
    """The time at which it was disabled, by ZooKeeper's clock."""

    def to_dict(self) -> dict[str, Any]:
        """Return the values as one object, for programs."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return fields_table({k: str(v) for k, v in asdict(self).items()})


class AutorecoveryControl:
    """Controls the cluster's autorecovery. Every call reads the cluster; nothing is cached.

    Args:
        runner: makes the runner that carries out a job, from the job's name.
    """

    def __init__(self, context: ClientContext, runner: Callable[[str], Runner]) -> None:
        self._context = context
        self._runner = runner

    def __repr__(self) -> str:
        return "AutorecoveryControl()"

    def status(self) -> AutorecoveryStatus:
        """Return the state of autorecovery. Its ``warning`` is set if no process does the work, or
        if BookKeeper's own auditor is elected.
        """
        tree = self._tree
        locks, tasks, locked = tree.locks(), 0, 0
        for ledger_id in tree.ledger_ids():
            tasks += 1
            locked += ledger_id in locks  # a worker may keep a finished task's lock a while
        is_enabled, auditor, delay = tree.is_enabled(), tree.auditor(), read_delay(tree)
        return AutorecoveryStatus(
            is_enabled=is_enabled,
            auditor=auditor,
            underreplicated=tasks,
            locked=locked,
            lost_bookie_recovery_delay=0 if delay.seconds is None else delay.seconds.value,
            bytes_per_second=self.bytes_per_second,
            warning=_warning(auditor, is_enabled=is_enabled) or delay.warning,
            disabled_at=self._disabled_at(),
        )

    def warning(self) -> str | None:
        """Return why no process does the work, or an unfit one, with the remedy; else ``None``.

        This takes two requests, however many tasks exist.
        """
        return _warning(self._tree.auditor(), is_enabled=self._tree.is_enabled())

    def _disabled_at(self) -> datetime | None:
        at_ms = self._tree.disabled_at_ms()
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, timezone.utc)

    def enable(self) -> bool:
        """Resume autorecovery in the whole cluster; return ``False`` if it was enabled already."""
        return self._tree.enable()

    def disable(self) -> bool:
        """Stop autorecovery in the whole cluster until ``enable``; ``False`` if stopped already.

        Running work is finished, ledger by ledger. Apache BookKeeper's auditor and workers obey as
        well.
        """
        return self._tree.disable()

    @property
    def lost_bookie_recovery_delay(self) -> int:
        """The seconds that one bookie may be away before its ledgers are published; 0 is at once. A
        setting that cannot be read counts as 0.
        """
        found = read_delay(self._tree).seconds
        return 0 if found is None else found.value

    @lost_bookie_recovery_delay.setter
    def lost_bookie_recovery_delay(self, seconds: int) -> None:
        if not 0 <= whole_number("lost_bookie_recovery_delay", seconds) < 1 << 31:
            raise InvalidArgumentError(
                f"lost_bookie_recovery_delay={seconds} is not between 0 and {(1 << 31) - 1} seconds"
            )
        self._tree.set_delay_seconds(seconds)

    @property
    def bytes_per_second(self) -> int | None:
        """The limit on each worker's copying; a running worker obeys a new limit within seconds."""
        return read_limit(self._context.store.registers)

    @bytes_per_second.setter
    def bytes_per_second(self, limit: int | None) -> None:
        if limit is not None:
            whole_number("bytes_per_second", limit, 1)
        write_limit(self._context.store.registers, limit)

    def who_is_auditor(self) -> str | None:
        """Return the name of the auditor; ``None`` when there is none."""
        return self._tree.auditor()

    def trigger_audit(self) -> None:
        """Make the auditor look for lost bookies now, whatever the delay.

        This works as in BookKeeper's tools: it writes the delay again unchanged. The auditor
        watches the delay, and starts.

        Raises:
            InvalidArgumentError: autorecovery is disabled, or no auditor exists. Nothing was done.
        """
        self._check_auditor(
            "`spark-bookkeeper autorecovery audit`, or bk.audit(), does one audit by itself"
        )
        self._tree.set_delay_seconds(self.lost_bookie_recovery_delay)

    def checks(self) -> tuple[CheckResult, ...]:
        """Return the newest result of each of the auditor's checks of all ledgers."""
        return read_results(self._context.store.registers)

    def trigger_checks(self) -> None:
        """Make the auditor run its checks of all ledgers now, those whose interval is not 0.

        This works as BookKeeper's ``forceauditchecks``: it deletes the times of the last checks.
        The auditor watches them, and begins at once, or when no bookie is away any more.

        Raises:
            InvalidArgumentError: autorecovery is disabled, or no auditor exists. Nothing was done.
        """
        self._check_auditor(
            "`spark-bookkeeper ledger check`, or bk.check_ledgers(), checks all ledgers by itself"
        )
        for check in Check:
            self._tree.forget_checked(check)

    def _check_auditor(self, instead: str) -> None:
        check_enabled(self._context)
        if self._tree.auditor() is None:
            raise InvalidArgumentError(
                "there is no auditor to ask; nothing was done. `spark-bookkeeper autorecovery "
                f"start` runs one; {instead}"
            )

    def start(
        self, *, bookie_id: str | None = None, config: AutorecoveryConfig | None = None
    ) -> Autorecovery:
        """Run auditor and replication worker in the background, until ``Autorecovery.stop``.

        Args:
            bookie_id: run next to this bookie, and copy to no other.

        Raises:
            NoClusterError, MetadataUnavailableError.
        """
        local = None if bookie_id is None else parse_bookie_id(bookie_id)
        config = config or AutorecoveryConfig()
        runner = runner_of_worker(self._context, self._runner("autorecovery"), config)
        started = Autorecovery(self._context, runner, config, process_name(local), local)
        started.start()
        return started

    @property
    def _tree(self) -> Underreplication:
        return self._context.store.underreplication


def _warning(auditor: str | None, *, is_enabled: bool) -> str | None:
    """Return the warning; a foreign auditor comes first, because ``enable`` sets it to work."""
    if auditor is not None and not is_ours(auditor):
        return FOREIGN.format(name=auditor)
    if not is_enabled:
        return DISABLED
    return NONE_RUNS if auditor is None else None
