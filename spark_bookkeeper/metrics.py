"""Every counter and gauge of the library, declared once; they are written where things happen.

A client and an agent each have a registry of their own, so that two in one process do not mix.
Names are BookKeeper's where the meaning is the same, and durations so named are in milliseconds as
BookKeeper's are. What BookKeeper lacks has a name in lower case and seconds.

What Spark tasks count in their worker processes comes back with their results where there is a way
(``spark/counts.py``), and is added to what the client counted itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import override

MILLISECONDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
LONG_MILLISECONDS: Final = (10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000)
SECONDS: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0)


_BEHIND: Final = "bookkeeper_log_consumer"

Counts = Mapping[str, float]
"""Values of counters, and of the counts and sums of histograms, by their names with labels."""

_GROW: Final = frozenset({"counter", "histogram"})


class _Registry(CollectorRegistry):
    """Without the time at which each counter was made, which the library adds to all of them, and
    with what was counted in other processes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[Callable[[], Counts]] = []

    def collect(self) -> Iterator[Metric]:
        others = [look() for look in self.elsewhere]
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            if metric.type in _GROW and any(others):
                metric.samples = [
                    s._replace(value=s.value + sum(o.get(_key(s), 0) for o in others))
                    for s in metric.samples
                ]
            yield metric


class _Together(CollectorRegistry):
    """Several registries as one to read from."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        super().__init__()
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        told: set[str] = set()
        for registry in self._registries:
            for metric in registry.collect():
                if metric.name not in told:
                    told.add(metric.name)
                    yield metric


class Clock(Protocol):
    """What durations are taken from."""

    def now(self) -> float: ...


@dataclass(frozen=True)
class Timer:
    """How long something takes, apart for when it succeeds and when it fails."""

    succeeded: Histogram
    failed: Histogram

    @contextmanager
    def __call__(self, clock: Clock) -> Iterator[None]:
        """Time what is done in the block; an error makes it a failure."""
        began, took = clock.now(), self.failed
        try:
            yield
            took = self.succeeded
        finally:
            took.observe((clock.now() - began) * 1000)


def _timer(registry: CollectorRegistry, name: str, what: str) -> Timer:
    both = Histogram(
        f"bookkeeper_client_{name}",
        f"Milliseconds that {what}",
        ["success"],
        buckets=MILLISECONDS,
        registry=registry,
    )
    return Timer(both.labels("true"), both.labels("false"))


class Metrics:
    """A registry, what every session with ZooKeeper counts in it, and its two forms."""

    def __init__(self) -> None:
        self.registry = registry = _Registry()
        self.zookeeper_retries = Counter(
            "zookeeper_client_retries",
            "Requests to ZooKeeper that were repeated because an answer was lost",
            registry=registry,
        )
        self.zookeeper_connections_lost = Counter(
            "zookeeper_client_connections_lost",
            "Times that a connection to ZooKeeper broke; the session may go on with another",
            registry=registry,
        )
        self.zookeeper_sessions_lost = Counter(
            "zookeeper_client_sessions_lost",
            "Sessions with ZooKeeper that ended without being closed",
            registry=registry,
        )
        self.consumers = ConsumerGauges(registry)

    def counts(self) -> Counts:
        """What was counted so far, here and elsewhere; nothing that is still 0."""
        return {
            _key(sample): sample.value
            for metric in self.registry.collect()
            if metric.type in _GROW
            for sample in metric.samples
            if sample.value
        }

    def include(self, look: Callable[[], Counts]) -> None:
        """Show also what was counted in other processes; ``look`` gives all of it, ever more."""
        self.registry.elsewhere.append(look)

    def as_dict(self) -> dict[str, float]:
        """Every value by its name, with its labels as Prometheus writes them; no buckets."""
        return {
            _key(sample): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if not sample.name.endswith("_bucket")
        }

    def exposition(self, *others: Metrics) -> bytes:
        """The text that Prometheus reads.

        Args:
            others: further registries of this process. What several have, as the counters of
                sessions with ZooKeeper, the first one tells: a name stands there once.
        """
        return generate_latest(self.together(*others))

    def together(self, *others: Metrics) -> CollectorRegistry:
        """This registry and others as one, as ``exposition`` tells them."""
        return _Together([self.registry, *(other.registry for other in others)])


class Lag(Protocol):
    """How far one named follower of a log is behind its end."""

    @property
    def consumer(self) -> str: ...

    @property
    def entries_behind(self) -> int: ...

    @property
    def bytes_behind(self) -> int: ...

    @property
    def seconds_behind(self) -> float | None: ...


class ConsumerGauges(Collector):
    """How far named followers of logs are behind, looked up whenever somebody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looks: dict[str, Callable[[], Iterable[Lag]]] = {}
        self._names: dict[str, set[str | None]] = {}
        registry.register(self)

    def show(
        self, log: str, look: Callable[[], Iterable[Lag]], consumer: str | None = None
    ) -> None:
        """From now on show the followers of a log.

        Args:
            log: its name.
            look: how to look all of them up.
            consumer: show this one, beside those that are shown by now; ``None`` is all of them.
        """
        self._looks[log] = look
        self._names.setdefault(log, set()).add(consumer)

    def describe(self) -> Iterable[Metric]:
        return self._families()

    @override
    def collect(self) -> Iterable[Metric]:
        families = self._families()
        for log, look in list(self._looks.items()):
            names = self._names[log]
            for lag in look():
                if None in names or lag.consumer in names:
                    values = lag.entries_behind, lag.bytes_behind, _known(lag.seconds_behind)
                    for family, value in zip(families, values, strict=True):
                        family.add_metric([log, lag.consumer], value)
        return families

    def _families(self) -> list[GaugeMetricFamily]:
        told = {
            "entries": "Entries that a named follower of a log has still to read",
            "bytes": "About how many bytes these entries have",
            "seconds": "Age of what it reads next; 0 when it has read all, NaN where not known",
        }
        return [
            GaugeMetricFamily(f"{_BEHIND}_{unit}_behind", text, labels=("log", "consumer"))
            for unit, text in told.items()
        ]


class ClientMetrics(Metrics):
    """What one client did, in its own process and in tasks."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        self.add_latency_ms = Histogram(
            "bookkeeper_client_ADD_ENTRY",
            "Milliseconds from sending entries to their ack quorum, once for each group of "
            "entries that was sent together",
            buckets=MILLISECONDS,
            registry=registry,
        )
        self.added_entries = Counter(
            "bookkeeper_client_ADD_ENTRIES", "Entries acknowledged", registry=registry
        )
        self.added_bytes = Counter(
            "bookkeeper_client_ADD_BYTES", "Bytes of the entries acknowledged", registry=registry
        )
        self.ensemble_changes = Counter(
            "bookkeeper_client_NUM_ENSEMBLE_CHANGE",
            "Changes of the ensemble of a ledger that is written",
            registry=registry,
        )
        self.writers_fenced = Counter(
            "bookkeeper_client_writers_fenced",
            "Writers that were stopped by another client's fence",
            registry=registry,
        )
        self.fences = Counter(
            "bookkeeper_client_fences",
            "Fences that recoveries put on bookies: one for each bookie that answered",
            registry=registry,
        )
        self.creating = _timer(registry, "LEDGER_CREATE", "creating a ledger took")
        self.opening = _timer(
            registry, "LEDGER_OPEN", "opening a ledger took, with its recovery where it needed one"
        )
        self.deleting = _timer(registry, "LEDGER_DELETE", "deleting a ledger took")
        self.recovering = _timer(registry, "LEDGER_RECOVER", "the recovery of a ledger took")
        self.read_entries = Counter(
            "bookkeeper_client_READ_ENTRIES", "Entries read", registry=registry
        )
        self.read_bytes = Counter(
            "bookkeeper_client_READ_BYTES", "Bytes of the entries read", registry=registry
        )
        self.read_retries = Counter(
            "bookkeeper_client_read_retries",
            "Entries that a bookie could not deliver, and another was asked for",
            registry=registry,
        )
        self.speculative_reads = Counter(
            "bookkeeper_client_SPECULATIVE_READ_COUNT",
            "Reads that were asked of another bookie because the first was slow",
            registry=registry,
        )
        self.copies = Counter(
            "replication_worker_copies",
            "Times that a bookie was given the entries it lacked",
            registry=registry,
        )
        self.copied_bytes = Counter(
            "replication_worker_NUM_BYTES_WRITTEN",
            "Bytes of the entries copied to bookies that lacked them",
            registry=registry,
        )
        self.replicated_ledgers = Counter(
            "replication_worker_ledgers_replicated",
            "Ledgers that a replication worker made whole",
            registry=registry,
        )
        self.underreplicated_seconds = Histogram(
            "replication_worker_underreplicated_seconds",
            "Seconds that a ledger lacked replicas, from its being published to being made whole",
            buckets=SECONDS,
            registry=registry,
        )
        self.published_ledgers = Counter(
            "auditor_ledgers_published",
            "Ledgers that audits published as under-replicated",
            registry=registry,
        )
        self.underreplicated_ledgers = Gauge(
            "auditor_NUM_UNDER_REPLICATED_LEDGERS",
            "Ledgers that were published and are not yet made whole, as the auditor saw last",
            registry=registry,
        )
        self.audits_delayed = Counter(
            "auditor_NUM_BOOKIE_AUDITS_DELAYED",
            "Times that a bookie was away and was given the delay to come back",
            registry=registry,
        )
        self.delayed_audits_cancelled = Counter(
            "auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED",
            "Times that a bookie came back within its delay, or was not waited for any more",
            registry=registry,
        )
        self.auditing = Histogram(
            "auditor_AUDIT_BOOKIES_TIME",
            "Milliseconds that looking for lost bookies in all ledgers took",
            buckets=LONG_MILLISECONDS,
            registry=registry,
        )
        self.checking = {
            check: Histogram(
                f"auditor_{name}_TIME",
                f"Milliseconds that {what} took",
                buckets=LONG_MILLISECONDS,
                registry=registry,
            )
            for check, name, what in (
                ("all_ledgers", "CHECK_ALL_LEDGERS", "a check of all ledgers"),
                ("placement", "PLACEMENT_POLICY_CHECK", "a look at the racks of all ledgers"),
                ("replicas", "REPLICAS_CHECK", "a count of the replicas of all ledgers"),
            )
        }
        self.ledgers_without_replica = Gauge(
            "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
            "Closed ledgers with an entry of which no replica was there at the last count",
            registry=registry,
        )
        self.ledgers_below_ack_quorum = Gauge(
            "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
            "The same with fewer than Qa replicas, and not none",
            registry=registry,
        )
        self.ledgers_below_write_quorum = Gauge(
            "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
            "The same with fewer than Qw replicas, and not fewer than Qa",
            registry=registry,
        )
        self.ledgers_misplaced = Gauge(
            "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
            "Closed ledgers with copies on fewer racks than there could be, at the last look",
            registry=registry,
        )
        self._silent_bookies = Gauge(
            "bookkeeper_client_silent_bookies",
            "Bookies that this client waits for, and that have not answered for long",
            registry=registry,
        )

    def show_silent_bookies(self, count: Callable[[], int]) -> None:
        """How to count them; it is asked whenever somebody looks."""
        self._silent_bookies.set_function(count)


class BookieStatus(Protocol):
    """What an agent last saw, as far as gauges show it."""

    @property
    def state(self) -> str: ...

    @property
    def free_bytes(self) -> int | None: ...

    @property
    def total_bytes(self) -> int | None: ...

    @property
    def seconds_since_good_probe(self) -> float | None: ...


class BookieMetrics(Metrics):
    """What the agent of one bookie saw and did."""

    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        self._server_status = Gauge(
            "bookie_SERVER_STATUS",
            "1: registered as writable, 0: registered as read-only, -1: not registered",
            registry=registry,
        )
        self._free_bytes = Gauge(
            "bookie_free_bytes", "Free space of the storage, at the last probe", registry=registry
        )
        self._total_bytes = Gauge(
            "bookie_total_bytes", "Size of the storage, at the last probe", registry=registry
        )
        self.probes = Counter(
            "bookie_probes",
            "Looks at the storage: its marker, its space, a file written and read",
            registry=registry,
        )
        self.failed_probes = Counter(
            "bookie_failed_probes",
            "Looks at the storage that failed, or had no answer in time",
            registry=registry,
        )
        self._since_good_probe = Gauge(
            "bookie_seconds_since_good_probe",
            "Seconds since the storage was last seen to be well; NaN before the first time",
            registry=registry,
        )
        self.deleted_ledgers = Counter(
            "bookie_DELETED_LEDGER",
            "Ledgers whose files were removed here, as nothing needs them",
            registry=registry,
        )
        self.reclaimed_bytes = Counter(
            "bookie_RECLAIMED_DELETION_SPACE_BYTES",
            "Bytes of what was removed, as nothing needs it",
            registry=registry,
        )
        self.compacted_ledgers = Counter(
            "bookie_compacted_ledgers", "Times that a ledger was compacted", registry=registry
        )
        self.compacted_bytes = Counter(
            "bookie_compacted_bytes", "Bytes that compaction moved", registry=registry
        )
        self.corrupt_replicas = Counter(
            "bookie_corrupt_replicas",
            "Replicas of fragments that scrubbing found damaged or missing",
            registry=registry,
        )
        self.scrubbed_at = Gauge(
            "bookie_scrubbed_timestamp_seconds",
            "When the last whole round of scrubbing ended, in seconds since 1970; 0: none has",
            registry=registry,
        )
        self.duty_seconds = Histogram(
            "bookie_duty_seconds",
            "Seconds that a step of a duty took",
            ["duty"],
            buckets=SECONDS,
            registry=registry,
        )
        self.duty_failures = Counter(
            "bookie_duty_failures", "Steps of a duty that failed", ["duty"], registry=registry
        )

    def show_bookie(self, look: Callable[[], BookieStatus]) -> None:
        """Where the gauges come from; it is asked whenever somebody looks."""
        status = {"writable": 1.0, "readonly": 0.0}
        self._server_status.set_function(lambda: status.get(look().state, -1.0))
        self._free_bytes.set_function(lambda: _known(look().free_bytes))
        self._total_bytes.set_function(lambda: _known(look().total_bytes))
        self._since_good_probe.set_function(lambda: _known(look().seconds_since_good_probe))


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _key(sample: Sample) -> str:
    return str(sample.name) + _labels(sample.labels)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""
