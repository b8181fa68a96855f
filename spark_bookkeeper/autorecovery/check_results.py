"""What the auditor's checks found last. It is kept in the cluster, for whoever asks later.

One register for each check, and the newest result in it. It says how things were when the check
ended; what was mended since is still in it. Nothing rests on it (SLOT-LOG rule R17).

Source: BookKeeper ``replication/AuditorStats``, which has the same numbers as gauges, and no ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spark_bookkeeper.metadata.registers import change_register
from spark_bookkeeper.metadata.store import Registers, Versioned
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.metrics import ClientMetrics
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.stored_json import decoded, number

BOOKIES: Final = "bookies"
"""The check that looks for absent bookies in all ledgers. Each new auditor does it, whenever it
was done last: nobody has seen who came and went while there was none."""

MOST_NAMED: Final = 20
"""Ledgers that a result names, of each kind."""

ABSENT_BOOKIE: Final = "counts on an absent bookie"
NO_REPLICA: Final = "no replica"
BELOW_ACK_QUORUM: Final = "fewer than Qa"
BELOW_WRITE_QUORUM: Final = "fewer than Qw"
"""Of what the count of replicas finds: of some entry there are so many, and no more."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of all ledgers that came to its end."""

    check: str
    """``bookies``, ``all_ledgers``, ``placement`` or ``replicas``."""
    ended_at_ms: int
    duration_ms: int
    ledgers: int
    """That were looked at."""
    found: Mapping[str, int] = field(default_factory=dict)
    """How many of them are not as they should be, by what was found."""
    named: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The first of them, at most ``MOST_NAMED`` of each."""


class Found:
    """What a check has found so far."""

    def __init__(self) -> None:
        self.ledgers = 0
        """That were looked at."""
        self._counts: Counter[str] = Counter()
        self._named: dict[str, list[int]] = {}
        self._last: dict[str, int] = {}

    def add(self, what: str, ledger_id: LedgerId) -> None:
        """One finding; those of one ledger come one after the other, and count once."""
        if self._last.get(what) == ledger_id:
            return
        self._last[what] = ledger_id
        self._counts[what] += 1
        named = self._named.setdefault(what, [])
        if len(named) < MOST_NAMED:
            named.append(ledger_id)

    def result(self, check: Check | None, ended_at_ms: int, duration_ms: int) -> CheckResult:
        """When the check has ended; ``None`` is that of the bookies."""
        named = {what: tuple(ids) for what, ids in self._named.items()}
        name = BOOKIES if check is None else check.name.lower()
        return CheckResult(name, ended_at_ms, duration_ms, self.ledgers, dict(self._counts), named)


def write_result(registers: Registers, result: CheckResult) -> None:
    """It takes the place of the one before."""
    change_register(
        registers,
        _name(result.check),
        _decode,
        lambda value: json.dumps(None if value is None else asdict(value)).encode(),
        lambda _: result,
    )


def read_results(registers: Registers) -> tuple[CheckResult, ...]:
    """The newest result of each check that has one: bookies, then in the order of ``Check``."""
    names = (BOOKIES, *(check.name.lower() for check in Check))
    found = (_decode(registers.read(_name(name))) for name in names)
    return tuple(result for result in found if result is not None)


def show_results(metrics: ClientMetrics, registers: Registers) -> None:
    """Set the gauges by what was found last, whoever was auditor then."""
    for result in read_results(registers):
        if result.check == Check.REPLICAS.name.lower():
            metrics.ledgers_without_replica.set(result.found.get(NO_REPLICA, 0))
            metrics.ledgers_below_ack_quorum.set(result.found.get(BELOW_ACK_QUORUM, 0))
            metrics.ledgers_below_write_quorum.set(result.found.get(BELOW_WRITE_QUORUM, 0))
        elif result.check == Check.PLACEMENT.name.lower():
            metrics.ledgers_misplaced.set(sum(result.found.values()))


def show_nothing(metrics: ClientMetrics) -> None:
    """Who is not the auditor any more shows none of it: what it knew grows old."""
    for gauge in (
        metrics.underreplicated_ledgers,
        metrics.ledgers_without_replica,
        metrics.ledgers_below_ack_quorum,
        metrics.ledgers_below_write_quorum,
        metrics.ledgers_misplaced,
    ):
        gauge.set(0)


def _name(check: str) -> str:
    return f"autorecovery/checks/{check}"


def _decode(found: Versioned[bytes] | None) -> CheckResult | None:
    """``None`` also where what is there cannot be read: the next check writes it again."""
    if found is None:
        return None
    try:
        return decoded(found.value, _result)
    except ValueError:
        return None


def _result(values: Any) -> CheckResult:
    return CheckResult(
        check=str(values["check"]),
        ended_at_ms=number(values["ended_at_ms"]),
        duration_ms=number(values["duration_ms"]),
        ledgers=number(values["ledgers"]),
        found={str(what): number(count) for what, count in values["found"].items()},
        named={str(what): tuple(map(number, ids)) for what, ids in values["named"].items()},
    )
