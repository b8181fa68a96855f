"""What an operator asks of autorecovery, and sets for the whole cluster: ``bk.autorecovery``."""

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
    """Of the cluster, when it was asked for."""

    is_enabled: bool
    auditor: str | None
    """Who is auditor; ``None`` when no autorecovery runs anywhere."""
    underreplicated: int
    """Ledgers with a task."""
    locked: int
    """Those of them that a worker is at."""
    lost_bookie_recovery_delay: int
    """Seconds."""
    bytes_per_second: int | None
    """Limit on the copying of each worker; ``None`` is none."""
    warning: str | None
    """What is wrong with all this, and what to do."""
    disabled_at: datetime | None = None
    """Since when it is not enabled, by ZooKeeper's clock."""

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return fields_table({k: str(v) for k, v in asdict(self).items()})


class AutorecoveryControl:
    """Everything here asks the cluster, each time. Nothing is kept.

    Args:
        runner: makes what carries out the work, by the name of a job.
    """

    def __init__(self, context: ClientContext, runner: Callable[[str], Runner]) -> None:
        self._context = context
        self._runner = runner

    def __repr__(self) -> str:
        return "AutorecoveryControl()"

    def status(self) -> AutorecoveryStatus:
        """The state of autorecovery. Its ``warning`` says if nobody does the work, or if
        BookKeeper's own auditor holds the office.
        """
        tree = self._tree
        locks, tasks, locked = tree.locks(), 0, 0
        for ledger_id in tree.ledger_ids():
            tasks += 1
            locked += ledger_id in locks  # of one that is done its worker may keep the lock a while
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
        """Why nobody does the work, or somebody unfit, and what to do; ``None`` when all is well.

        Two requests, however many tasks there are.
        """
        return _warning(self._tree.auditor(), is_enabled=self._tree.is_enabled())

    def _disabled_at(self) -> datetime | None:
        at_ms = self._tree.disabled_at_ms()
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, timezone.utc)

    def enable(self) -> bool:
        """Let autorecovery go on in the whole cluster; ``False`` when it was enabled already."""
        return self._tree.enable()

    def disable(self) -> bool:
        """Stop it in the whole cluster, until ``enable``; ``False`` when it was stopped already.

        What is under way is finished, ledger by ledger. Apache BookKeeper's auditor and workers
        obey as well.
        """
        return self._tree.disable()

    @property
    def lost_bookie_recovery_delay(self) -> int:
        """Seconds that one bookie may be away before its ledgers are published; 0 is at once, also
        where what stands there cannot be read.
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
        """What each worker may copy; one that is at work obeys another limit within seconds."""
        return read_limit(self._context.store.registers)

    @bytes_per_second.setter
    def bytes_per_second(self, limit: int | None) -> None:
        if limit is not None:
            whole_number("bytes_per_second", limit, 1)
        write_limit(self._context.store.registers, limit)

    def who_is_auditor(self) -> str | None:
        """The name of the auditor; ``None`` when there is none."""
        return self._tree.auditor()

    def trigger_audit(self) -> None:
        """Have the auditor look for lost bookies now, whatever the delay.

        As BookKeeper's tools do it: the delay is written again as it is, and the auditor, which
        watches it, looks.

        Raises:
            InvalidArgumentError: autorecovery is disabled, or nobody is auditor. Nothing was done.
        """
        self._check_auditor(
            "`spark-bookkeeper autorecovery audit`, or bk.audit(), does one audit by itself"
        )
        self._tree.set_delay_seconds(self.lost_bookie_recovery_delay)

    def checks(self) -> tuple[CheckResult, ...]:
        """What each of the auditor's checks of all ledgers found when it was done last."""
        return read_results(self._context.store.registers)

    def trigger_checks(self) -> None:
        """Have the auditor do its checks of all ledgers now, those whose interval is not 0.

        As BookKeeper's ``forceauditchecks`` does it: when they were done last is forgotten, and the
        auditor, which watches that, begins at once, or when no bookie is away any more.

        Raises:
            InvalidArgumentError: autorecovery is disabled, or nobody is auditor. Nothing was done.
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
        """Run auditor and replication worker beside the caller, until ``stop`` of what is returned.

        Args:
            bookie_id: run beside this bookie, and copy to no other.

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
    """A foreign auditor is told of first: it is at work again as soon as somebody enables it."""
    if auditor is not None and not is_ours(auditor):
        return FOREIGN.format(name=auditor)
    if not is_enabled:
        return DISABLED
    return NONE_RUNS if auditor is None else None
