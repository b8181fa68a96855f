"""All counters and gauges of the library, declared once; other modules update them.

Each client and each agent has its own registry, so that two in one process do not mix. A metric has
BookKeeper's name if the meaning is the same; its durations are then in milliseconds, as there. A
metric that BookKeeper lacks has a name in lower case, and seconds.

If Spark can return what tasks count in their worker processes (``spark/counts.py``), this is added
to the client's own counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, RestrictedRegistry
from prometheus_client.samples import Sample
from typing_extensions import override

MILLISECONDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
LONG_MILLISECONDS: Final = (10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000)
SECONDS: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0)


_BEHIND: Final = "bookkeeper_log_consumer"

Counts = Mapping[str, float]
"""Values of counters, and counts and sums of histograms, by name with labels."""

_GROW: Final = frozenset({"counter", "histogram"})


class _Registry(CollectorRegistry):
    """Includes the counts of other processes, and omits the creation time that the library
    ``prometheus_client`` adds to every counter.

    Args:
        make_all: makes the metrics that are not made yet.
    """

    def __init__(self, make_all: Callable[[], None]) -> None:
        super().__init__()
        self._make_all = make_all
        self.elsewhere: list[Callable[[], Counts]] = []

    def collect(self) -> Iterator[Metric]:
        self._make_all()
        others = [look() for look in self.elsewhere]
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            if metric.type in _GROW and any(others):
                metric.samples = [
                    s._replace(value=s.value + sum(o.get(_key(s), 0) for o in others))
                    for s in metric.samples
                ]
            yield metric

    @override
    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        self._make_all()
        return super().restricted_registry(names)


class _Together(CollectorRegistry):
    """Several registries that are read as one."""

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
    """The source of durations."""

    def now(self) -> float: ...


@dataclass(frozen=True)
class Timer:
    """The duration of an operation, separately for success and failure."""

    succeeded: Histogram
    failed: Histogram

    @contextmanager
    def __call__(self, clock: Clock) -> Iterator[None]:
        """Measure the time of the block; an error counts as a failure."""
        began, took = clock.now(), self.failed
        try:
            yield
            took = self.succeeded
        finally:
            took.observe((clock.now() - began) * 1000)


MetricT = TypeVar("MetricT")


class _Declared(Generic[MetricT]):
    """An attribute of ``Metrics`` that is made and registered at its first use.

    A task makes a client for each piece of work, and uses few of its metrics.
    """

    def __init__(self, make: Callable[[CollectorRegistry], MetricT]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, metrics: Metrics, _: type) -> MetricT:
        with metrics.lock:
            if self._name not in vars(metrics):  # which Python looks up before this descriptor
                vars(metrics)[self._name] = self._make(metrics.registry)
            made: MetricT = vars(metrics)[self._name]
            return made


def _counter(name: str, text: str, labels: Sequence[str] = ()) -> _Declared[Counter]:
    return _Declared(lambda registry: Counter(name, text, labels, registry=registry))


def _gauge(name: str, text: str, labels: Sequence[str] = ()) -> _Declared[Gauge]:
    return _Declared(lambda registry: Gauge(name, text, labels, registry=registry))


def _histogram(
    name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
) -> _Declared[Histogram]:
    return _Declared(
        lambda registry: Histogram(name, text, labels, buckets=buckets, registry=registry)
    )


def _timer(name: str, what: str) -> _Declared[Timer]:
    def make(registry: CollectorRegistry) -> Timer:
        both = Histogram(
            f"bookkeeper_client_{name}",
            f"Milliseconds that {what}",
            ["success"],
            buckets=MILLISECONDS,
            registry=registry,
        )
        return Timer(both.labels("true"), both.labels("false"))

    return _Declared(make)


class Metrics:
    """A registry, the metrics of every session with ZooKeeper, and its two output forms."""

    zookeeper_retries = _counter(
        "zookeeper_client_retries",
        "Requests to ZooKeeper that were repeated because an answer was lost",
    )
    zookeeper_connections_lost = _counter(
        "zookeeper_client_connections_lost",
        "Times that a connection to ZooKeeper broke; the session may go on with another",
    )
    zookeeper_sessions_lost = _counter(
        "zookeeper_client_sessions_lost", "Sessions with ZooKeeper that ended without being closed"
    )

    def __init__(self) -> None:
        self.lock = Lock()
        self.registry = _Registry(self._make_all)
        self.consumers = ConsumerGauges(self.registry)

    def _make_all(self) -> None:
        """Make the metrics that were not used yet. Their value is 0."""
        for of in reversed(type(self).__mro__):
            for name, declared in vars(of).items():
                if isinstance(declared, _Declared):
                    getattr(self, name)

    def counts(self) -> Counts:
        """Return the counts so far, here and in other processes, without those that are 0."""
        return {
            _key(sample): sample.value
            for metric in self.registry.collect()
            if metric.type in _GROW
            for sample in metric.samples
            if sample.value
        }

    def include(self, look: Callable[[], Counts]) -> None:
        """Add the counts of other processes; ``look`` returns their totals, which only grow."""
        self.registry.elsewhere.append(look)

    def as_dict(self) -> dict[str, float]:
        """Return every value by name, with labels as Prometheus writes them; without buckets."""
        return {
            _key(sample): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if not sample.name.endswith("_bucket")
        }

    def exposition(self, *others: Metrics) -> bytes:
        """Return the text that Prometheus reads.

        Args:
            others: further registries of this process. If several have a metric, such as the
                counters of sessions with ZooKeeper, only that of the first is shown.
        """
        return generate_latest(self.together(*others))

    def together(self, *others: Metrics) -> CollectorRegistry:
        """Return a registry that joins this one and others, by the rule of ``exposition``."""
        return _Together([self.registry, *(other.registry for other in others)])


class Lag(Protocol):
    """The lag of one named follower of a log."""

    @property
    def consumer(self) -> str: ...

    @property
    def entries_behind(self) -> int: ...

    @property
    def bytes_behind(self) -> int: ...

    @property
    def seconds_behind(self) -> float | None: ...


class ConsumerGauges(Collector):
    """The lag of named followers of logs, looked up at each read of the metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looks: dict[str, Callable[[], Iterable[Lag]]] = {}
        self._names: dict[str, set[str | None]] = {}
        registry.register(self)

    def show(
        self, log: str, look: Callable[[], Iterable[Lag]], consumer: str | None = None
    ) -> None:
        """Show the followers of a log from now on.

        Args:
            log: its name.
            look: looks up the lag of all its followers.
            consumer: show this one, in addition to those already shown; ``None`` shows all.
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
    """The work of one client, in its own process and in tasks."""

    add_latency_ms = _histogram(
        "bookkeeper_client_ADD_ENTRY",
        "Milliseconds from sending entries to their ack quorum, once for each group of "
        "entries that was sent together",
        buckets=MILLISECONDS,
    )
    added_entries = _counter("bookkeeper_client_ADD_ENTRIES", "Entries acknowledged")
    added_bytes = _counter("bookkeeper_client_ADD_BYTES", "Bytes of the entries acknowledged")
    ensemble_changes = _counter(
        "bookkeeper_client_NUM_ENSEMBLE_CHANGE",
        "Changes of the ensemble of a ledger that is written",
    )
    writers_fenced = _counter(
        "bookkeeper_client_writers_fenced", "Writers that were stopped by another client's fence"
    )
    fences = _counter(
        "bookkeeper_client_fences",
        "Fences that recoveries put on bookies: one for each bookie that answered",
    )
    creating = _timer("LEDGER_CREATE", "creating a ledger took")
    opening = _timer("LEDGER_OPEN", "opening a ledger took, with its recovery where it needed one")
    deleting = _timer("LEDGER_DELETE", "deleting a ledger took")
    recovering = _timer("LEDGER_RECOVER", "the recovery of a ledger took")
    read_entries = _counter("bookkeeper_client_READ_ENTRIES", "Entries read")
    read_bytes = _counter("bookkeeper_client_READ_BYTES", "Bytes of the entries read")
    read_retries = _counter(
        "bookkeeper_client_read_retries",
        "Entries that a bookie could not deliver, and another was asked for",
    )
    speculative_reads = _counter(
        "bookkeeper_client_SPECULATIVE_READ_COUNT",
        "Reads that were asked of another bookie because the first was slow",
    )
    copies = _counter(
        "replication_worker_copies", "Times that a bookie was given the entries it lacked"
    )
    copied_bytes = _counter(
        "replication_worker_NUM_BYTES_WRITTEN",
        "Bytes of the entries copied to bookies that lacked them",
    )
    replicated_ledgers = _counter(
        "replication_worker_ledgers_replicated", "Ledgers that a replication worker made whole"
    )
    underreplicated_seconds = _histogram(
        "replication_worker_underreplicated_seconds",
        "Seconds that a ledger lacked replicas, from its being published to being made whole",
        buckets=SECONDS,
    )
    published_ledgers = _counter(
        "auditor_ledgers_published",
        "Ledgers that audits published as under-replicated: each when it lacks one bookie more",
    )
    underreplicated_ledgers = _gauge(
        "auditor_NUM_UNDER_REPLICATED_LEDGERS",
        "Ledgers that were published and are not yet made whole, as the auditor saw last",
    )
    audits_delayed = _counter(
        "auditor_NUM_BOOKIE_AUDITS_DELAYED",
        "Times that a bookie was away and was given time to come back",
    )
    delayed_audits_cancelled = _counter(
        "auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED",
        "Times that a bookie came back in that time, or was not waited for any more",
    )
    auditing = _histogram(
        "auditor_AUDIT_BOOKIES_TIME",
        "Milliseconds that looking for lost bookies in all ledgers took",
        buckets=LONG_MILLISECONDS,
    )
    _checking_all_ledgers = _histogram(
        "auditor_CHECK_ALL_LEDGERS_TIME",
        "Milliseconds that a check of all ledgers took",
        buckets=LONG_MILLISECONDS,
    )
    _checking_placement = _histogram(
        "auditor_PLACEMENT_POLICY_CHECK_TIME",
        "Milliseconds that a look at the racks of all ledgers took",
        buckets=LONG_MILLISECONDS,
    )
    _checking_replicas = _histogram(
        "auditor_REPLICAS_CHECK_TIME",
        "Milliseconds that a count of the replicas of all ledgers took",
        buckets=LONG_MILLISECONDS,
    )
    ledgers_without_replica = _gauge(
        "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "Closed ledgers with an entry of which no replica was there at the last count",
    )
    ledgers_below_ack_quorum = _gauge(
        "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
        "The same with fewer than Qa replicas, and not none",
    )
    ledgers_below_write_quorum = _gauge(
        "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
        "The same with fewer than Qw replicas, and not fewer than Qa",
    )
    ledgers_misplaced = _gauge(
        "auditor_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        "Closed ledgers with copies on fewer racks than there could be, at the last look",
    )
    _silent_bookies = _gauge(
        "bookkeeper_client_silent_bookies",
        "Bookies that this client waits for, and that have not answered for long",
    )

    @property
    def checking(self) -> Mapping[str, Histogram]:
        """The durations of the auditor's checks, by the checks' names in lower case."""
        return {
            "all_ledgers": self._checking_all_ledgers,
            "placement": self._checking_placement,
            "replicas": self._checking_replicas,
        }

    def show_silent_bookies(self, count: Callable[[], int]) -> None:
        """Set the function that counts silent bookies; every read of the metrics calls it."""
        self._silent_bookies.set_function(count)


class BookieMetrics(Metrics):
    """The observations and the work of the agent of one bookie."""

    _server_status = _gauge(
        "bookie_SERVER_STATUS",
        "1: registered as writable, 0: registered as read-only, -1: not registered",
    )
    _free_bytes = _gauge("bookie_free_bytes", "Free space of the storage, at the last probe")
    _total_bytes = _gauge("bookie_total_bytes", "Size of the storage, at the last probe")
    _free_inodes = _gauge("bookie_free_inodes", "Free inodes of the storage, at the last probe")
    _total_inodes = _gauge("bookie_total_inodes", "Inodes of the storage, at the last probe")
    probes = _counter(
        "bookie_probes", "Looks at the storage: its marker, its space, a file written and read"
    )
    failed_probes = _counter(
        "bookie_failed_probes", "Looks at the storage that failed, or had no answer in time"
    )
    _since_good_probe = _gauge(
        "bookie_seconds_since_good_probe",
        "Seconds since the storage was last seen to be well, 0 between good looks; NaN before any",
    )
    _since_zookeeper = _gauge(
        "bookie_seconds_since_zookeeper_answered",
        "Seconds since ZooKeeper last answered the agent; NaN before the first time",
    )
    deleted_ledgers = _counter(
        "bookie_DELETED_LEDGER", "Ledgers whose files were removed here, as nothing needs them"
    )
    reclaimed_bytes = _counter(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES", "Bytes of what was removed, as nothing needs it"
    )
    compacted_ledgers = _counter("bookie_compacted_ledgers", "Times that a ledger was compacted")
    open_ledger_files = _gauge(
        "bookie_open_ledger_files",
        "Files here of the open ledger with most, which the label names, as compaction saw last",
        ["ledger"],
    )
    compacted_bytes = _counter("bookie_compacted_bytes", "Bytes that compaction moved")
    corrupt_replicas = _counter(
        "bookie_corrupt_replicas", "Replicas of fragments that scrubbing found damaged or missing"
    )
    scrubbed_at = _gauge(
        "bookie_scrubbed_timestamp_seconds",
        "When the last whole round of scrubbing ended, in seconds since 1970; 0: none has",
    )
    duty_seconds = _histogram(
        "bookie_duty_seconds", "Seconds that a step of a duty took", ["duty"], buckets=SECONDS
    )
    duty_failures = _counter("bookie_duty_failures", "Steps of a duty that failed", ["duty"])

    def show_bookie(self, look: Callable[[], Mapping[str, Any]]) -> None:
        """Set the source of the gauges: the content of ``/health``, read with the metrics."""
        status, since = {"writable": 1.0, "readonly": 0.0}, "seconds_since_zookeeper_answered"
        self._server_status.set_function(lambda: status.get(look()["state"], -1.0))
        self._free_bytes.set_function(lambda: _known(look()["free_bytes"]))
        self._total_bytes.set_function(lambda: _known(look()["total_bytes"]))
        self._free_inodes.set_function(lambda: _known(look()["free_inodes"]))
        self._total_inodes.set_function(lambda: _known(look()["total_inodes"]))
        self._since_good_probe.set_function(lambda: _known(look()["seconds_since_good_probe"]))
        self._since_zookeeper.set_function(lambda: _known(look()[since]))


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _key(sample: Sample) -> str:
    return str(sample.name) + _labels(sample.labels)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""
