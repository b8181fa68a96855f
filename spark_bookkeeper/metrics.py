"""Every counter and gauge of the library, declared once; they are written where things happen.

A client and an agent each have a registry of their own, so that two in one process do not mix.
Names are BookKeeper's where the meaning is the same, and durations so named are in milliseconds as
BookKeeper's are. What BookKeeper lacks has a name in lower case and seconds.

What Spark tasks count stays in their worker processes: a client shows what its own process did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

MILLISECONDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
SECONDS: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0)


class _Registry(CollectorRegistry):
    """Without the time at which each counter was made, which the library adds to all of them."""

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


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

    def as_dict(self) -> dict[str, float]:
        """Every value by its name, with its labels as Prometheus writes them; no buckets."""
        return {
            sample.name + _labels(sample.labels): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if not sample.name.endswith("_bucket")
        }

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class ClientMetrics(Metrics):
    """What one client did, in its own process."""

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
        self._recovery_ms = Histogram(
            "bookkeeper_client_LEDGER_RECOVER",
            "Milliseconds that the recovery of a ledger took",
            ["success"],
            buckets=MILLISECONDS,
            registry=registry,
        )
        self.recovery_ms = self._recovery_ms.labels("true")
        self.failed_recovery_ms = self._recovery_ms.labels("false")
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


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""
