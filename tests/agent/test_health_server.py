"""What an agent says of itself over HTTP, and that saying it costs the bookie nothing."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Set
from http.client import HTTPConnection, HTTPResponse

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.duties import Duty, Turn
from spark_bookkeeper.agent.health_server import HealthServer
from spark_bookkeeper.agent.readonly import set_readonly
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metrics import ClientMetrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.memory_storage import MemoryStorage
from spark_bookkeeper.testing.memory_store import MemoryCluster, MemoryStore
from tests.agent.agents import free_port, half_full


class ShownAgent:
    def __init__(self) -> None:
        self.metadata = MemoryCluster()
        self.silent: Set[str] | None = frozenset()
        """To which requests the metadata store says nothing; ``None``: to any."""
        self.store = MemoryStore(self.metadata, self.lose)
        self.store.initialize_cluster()
        self.disk = half_full()
        self.config = BookieConfig(3_600_000, 100, 200)
        self.runtime = ThreadRuntime()
        self.scrubbed = AutoResetEvent(self.runtime)
        self.agent = BookieAgent(
            self.store,
            Partition(MemoryStorage(self.disk, self.fail)),
            BookieId(f"127.0.0.1:{free_port()}"),
            self.runtime,
            self.config,
            duties=[Duty("scrub", 3_600_000, self.scrub)],
        )
        self.fails = False
        self.server = HealthServer([self.agent], self.config)

    def fail(self, operation: str, path: str, moment: str) -> None:
        if self.fails:
            raise BookieUnavailableError("input/output error", bookie_id="a:1")

    def lose(self, moment: str, operation: str, subject: str) -> None:
        if self.silent is None or operation in self.silent:
            raise MetadataUnavailableError("ZooKeeper did not answer")

    def scrub(self, turn: Turn) -> None:
        self.scrubbed.set()
        raise BookieUnavailableError("entry 3 of ledger 7 is damaged", bookie_id="a:1")

    def get(self, page: str, method: str = "GET") -> tuple[int, str]:
        assert self.server.address is not None
        connection = HTTPConnection(*self.server.address, timeout=60)
        connection.request(method, page)
        response: HTTPResponse = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, body


@pytest.fixture
def fresh() -> Iterator[ShownAgent]:
    world = ShownAgent()
    yield world
    world.fails, world.silent = False, frozenset()
    world.agent.stop()
    world.server.close()
    world.server.close()


@pytest.fixture
def world(fresh: ShownAgent) -> ShownAgent:
    """One that was started."""
    fresh.agent.start()
    return fresh


def test_health_is_well_when_the_bookie_is_registered(world: ShownAgent) -> None:
    code, body = world.get("/health")

    told = json.loads(body)
    assert code == 200
    assert (told["state"], told["reason"]) == ("writable", None)
    assert (told["free_bytes"], told["total_bytes"]) == (500, 1_000)
    assert told["bookie_id"] == world.agent.bookie_id
    assert told["seconds_since_good_probe"] >= 0


def test_health_is_bad_before_a_start_and_says_why_after_a_failed_probe(fresh: ShownAgent) -> None:
    assert fresh.get("/health")[0] == 503
    fresh.agent.start()
    fresh.fails = True

    fresh.agent.step()

    code, body = fresh.get("/health")
    told = json.loads(body)
    assert (code, told["state"], told["reason"]) == (503, "unregistered", "input/output error")


def test_health_says_that_zookeeper_does_not_answer_and_asks_for_no_restart(
    world: ShownAgent,
) -> None:
    """A restarted agent would only wait for it, and its bookie be away for longer."""
    world.silent = None
    world.agent.step()

    code, body = world.get("/health")
    told = json.loads(body)
    assert (code, told["zookeeper_problem"]) == (200, "ZooKeeper did not answer")
    assert told["seconds_since_zookeeper_answered"] >= 0

    world.store.expire()
    world.agent.step()

    code, body = world.get("/health")
    assert (code, json.loads(body)["state"]) == (200, "unregistered")
    assert "bookie_SERVER_STATUS -1.0" in world.get("/metrics")[1]

    world.silent = frozenset()
    world.agent.step()

    told = json.loads(world.get("/health")[1])
    assert (told["state"], told["zookeeper_problem"]) == ("writable", None)


def test_a_registration_that_gets_no_answer_asks_for_no_restart(world: ShownAgent) -> None:
    """ZooKeeper froze just after it was asked for orders."""
    world.store.expire()
    world.silent = {"register"}
    world.agent.step()

    code, body = world.get("/health")
    told = json.loads(body)
    assert (told["state"], told["zookeeper_problem"]) == (
        "unregistered",
        "ZooKeeper did not answer",
    )
    assert code == 200


def test_health_says_why_a_bookie_is_readonly(world: ShownAgent) -> None:
    set_readonly(world.store, world.agent.bookie_id, "new disk", 0)
    world.agent.step()

    code, body = world.get("/health")

    told = json.loads(body)
    assert (code, told["state"], told["reason"]) == (200, "readonly", "set by hand: new disk")


def test_health_shows_each_duty_with_its_last_run_and_error(world: ShownAgent) -> None:
    assert world.scrubbed.wait(60)
    world.agent.pause()  # the step has ended

    (duty,) = json.loads(world.get("/health")[1])["duties"]

    assert (duty["name"], duty["runs"], duty["failures"]) == ("scrub", 1, 1)
    assert duty["last_error"] == "entry 3 of ledger 7 is damaged"
    assert duty["last_run_ms"] > 0


def test_metrics_are_what_prometheus_reads(fresh: ShownAgent) -> None:
    assert "bookie_SERVER_STATUS -1.0" in fresh.get("/metrics")[1]
    fresh.agent.start()
    fresh.fails = True
    fresh.agent.step()
    fresh.fails = False
    fresh.agent.step()

    code, body = fresh.get("/metrics")

    lines = body.splitlines()
    assert code == 200
    for line in (
        "bookie_SERVER_STATUS 1.0",
        "bookie_free_bytes 500.0",
        "bookie_total_bytes 1000.0",
        "bookie_probes_total 3.0",
        "bookie_failed_probes_total 1.0",
    ):
        assert line in lines
    for name in ("bookie_seconds_since_good_probe", "bookie_seconds_since_zookeeper_answered"):
        assert any(line.startswith(f"{name} ") for line in lines)


def test_the_status_follows_the_registration(world: ShownAgent) -> None:
    set_readonly(world.store, world.agent.bookie_id, "new disk", 0)
    world.agent.step()
    assert "bookie_SERVER_STATUS 0.0" in world.get("/metrics")[1]
    world.agent.stop()
    assert "bookie_SERVER_STATUS -1.0" in world.get("/metrics")[1]


def test_there_is_nothing_else(fresh: ShownAgent) -> None:
    there = f"there are /metrics, /health, /health/{fresh.agent.bookie_id}\n"
    assert fresh.get("/") == (404, there)
    assert fresh.get("/health/10.0.0.9:3181") == (404, there)
    assert fresh.get("/health?verbose")[0] == 503


def test_who_asks_for_the_head_alone_gets_the_same_answer_without_its_body(
    fresh: ShownAgent,
) -> None:
    for page in ("/metrics", "/health", f"/health/{fresh.agent.bookie_id}", "/"):
        assert fresh.get(page, "HEAD") == (fresh.get(page)[0], "")
    fresh.agent.start()
    assert fresh.get("/health", "HEAD") == (200, "")


def test_it_listens_at_the_port_of_the_bookie_id_on_the_loopback_address(fresh: ShownAgent) -> None:
    port = int(fresh.agent.bookie_id.rpartition(":")[2])

    assert fresh.server.address == ("127.0.0.1", port)


def test_a_port_that_is_taken_costs_the_pages_and_not_the_bookie(
    fresh: ShownAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        second = HealthServer([fresh.agent], fresh.config)

    assert second.address is None
    assert "http_port" in caplog.text
    fresh.agent.start()
    assert fresh.agent.status.state == "writable"


def test_it_listens_elsewhere_or_nowhere_as_configured(fresh: ShownAgent) -> None:
    with HealthServer([fresh.agent], BookieConfig(http_port=free_port())) as elsewhere:
        assert elsewhere.address not in (None, fresh.server.address)
    assert HealthServer([fresh.agent], BookieConfig(http_host="")).address is None
    with pytest.raises(InvalidArgumentError, match="http_port"):
        BookieConfig(http_port=70_000)
    with pytest.raises(InvalidArgumentError, match="http_host"):
        BookieConfig(http_host=7)  # type: ignore[arg-type]


def test_somebody_who_asks_nothing_keeps_no_process_from_ending() -> None:
    script = """
import socket
from spark_bookkeeper.config import BookieConfig
from tests.agent.test_health_server import ShownAgent
world = ShownAgent()
idle = socket.create_connection(world.server.address)
print(world.get("/health")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "503\n", "")


def test_metrics_of_what_runs_beside_the_agent_stand_on_its_page_and_no_name_stands_twice() -> None:
    world = ShownAgent()
    beside = ClientMetrics()
    beside.replicated_ledgers.inc(3)
    world.server.show_also(world.agent.bookie_id, beside)
    try:
        _, text = world.get("/metrics")
    finally:
        world.server.close()

    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert len(set(helped)) == len(helped)
    assert "replication_worker_ledgers_replicated_total 3.0" in text
    assert "bookie_SERVER_STATUS -1.0" in text
