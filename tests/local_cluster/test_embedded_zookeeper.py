"""A real ZooKeeper that comes up quickly, keeps its data, and never outlives its maker."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.local_cluster import embedded_zookeeper as zookeeper
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from tests.support.processes import is_gone, start_script
from tests.support.program import until

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as running:
        yield running


def set_value(address: str, value: bytes) -> None:
    client = KazooClient(address)
    client.start(timeout=60)
    client.ensure_path("/value")
    client.set("/value", value)
    client.stop()
    client.close()


def get_value(address: str) -> bytes:
    client = KazooClient(address)
    client.start(timeout=60)
    value, _ = client.get("/value")
    client.stop()
    client.close()
    return bytes(value)


def test_it_listens_on_loopback_only(host: EmbeddedZooKeeper) -> None:
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(host.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == host.port
    ]

    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


@pytest.mark.full
def test_a_restart_on_the_same_directory_has_everything_in_it(tmp_path: Path) -> None:
    first = EmbeddedZooKeeper(tmp_path / "zoo keeper, größer")
    first.start()
    set_value(first.address, b"kept")
    pid, port = first.pid, first.port
    assert pid is not None
    first.stop()
    first.stop()
    assert not psutil.pid_exists(pid)
    assert (first.pid, first.is_running) == (None, False)
    assert first.directory.stat().st_mode & 0o777 == 0o700, "it holds the passwords of ledgers"

    with EmbeddedZooKeeper(tmp_path / "zoo keeper, größer", port) as second:
        assert second.port == port
        assert get_value(second.address) == b"kept"


@pytest.mark.full
def test_what_was_answered_survives_a_killed_server(server: EmbeddedZooKeeper) -> None:
    set_value(server.address, b"answered")
    killed = server.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: not server.is_running, "the watchdog noticed", 0.01)

    server.start()

    assert server.pid != killed
    assert get_value(server.address) == b"answered"


@pytest.mark.full
def test_a_port_that_somebody_else_has_is_left_to_them(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with EmbeddedZooKeeper(tmp_path, port) as server:
            assert server.port != port
            set_value(server.address, b"x")


def test_a_port_lost_at_the_last_moment_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        looks = iter([True])
        really_free = zookeeper._is_free
        monkeypatch.setattr(
            zookeeper, "_is_free", lambda asked: next(looks, None) or really_free(asked)
        )
        with EmbeddedZooKeeper(tmp_path, port) as server:
            assert server.port != port
            set_value(server.address, b"x")


def test_another_server_on_the_port_is_not_taken_for_ours(
    host: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    assert host.port is not None

    assert zookeeper._is_serving(host.port, host.directory / "data")
    assert not zookeeper._is_serving(host.port, tmp_path / "another" / "data")


def test_a_directory_in_use_is_refused_at_once(
    host: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "_LOCK_SECONDS", 3600.0)

    with pytest.raises(MetadataUnavailableError, match=rf"another process \({os.getpid()}\)"):
        EmbeddedZooKeeper(host.directory).start()

    set_value(host.address, b"still serving")


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the data directory should be")

    with pytest.raises(MetadataUnavailableError, match="did not start") as failed:
        EmbeddedZooKeeper(tmp_path).start()

    assert (
        "Unable to create data directory" in str(failed.value)
        or "data" in str(failed.value).split("ends:")[1]
    )


MAKER = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
server = EmbeddedZooKeeper(sys.argv[1])
server.start()
if sys.argv[2] == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(600)
print(server.pid, server._watchdog.pid, server.address, flush=True)
if sys.argv[2] == "exit":
    sys.exit(3)
time.sleep(600)
"""


def start_maker(directory: Path, manner: str) -> tuple[subprocess.Popen[str], int, int, str]:
    maker = start_script(MAKER, directory, manner)
    assert maker.stdout is not None
    server, watchdog, address = maker.stdout.readline().split()
    return maker, int(server), int(watchdog), address


MANNERS = ["kill", "interrupt", "exit", "fork"]


@pytest.mark.parametrize(
    "manner",
    ["kill -9", "watchdog", *(pytest.param(each, marks=pytest.mark.full) for each in MANNERS)],
)
def test_no_process_stays_behind_however_the_maker_ends(tmp_path: Path, manner: str) -> None:
    maker, server, watchdog, _ = start_maker(tmp_path, manner)
    try:
        if manner == "kill":
            maker.terminate()
        elif manner == "interrupt":
            maker.send_signal(signal.SIGINT)
        elif manner == "watchdog":
            os.kill(watchdog, signal.SIGKILL)
        elif manner != "exit":
            maker.kill()

        until(lambda: is_gone(server), "the server is gone", 0.01)
        until(lambda: is_gone(watchdog), "the watchdog is gone", 0.01)
    finally:
        os.killpg(maker.pid, signal.SIGKILL)
        maker.communicate()
        for pid in (server, watchdog):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # the test fails, and still leaves nothing behind


@pytest.mark.full
def test_a_directory_whose_maker_was_killed_starts_again_at_once(tmp_path: Path) -> None:
    maker, _, _, address = start_maker(tmp_path, "kill -9")
    set_value(address, b"before the kill")
    maker.kill()
    maker.communicate()

    with EmbeddedZooKeeper(tmp_path) as server:
        assert get_value(server.address) == b"before the kill"


def test_a_forked_child_does_not_stop_its_parents_server(host: EmbeddedZooKeeper) -> None:
    child = os.fork()
    if child == 0:
        host.stop()
        os._exit(0)
    os.waitpid(child, 0)

    set_value(host.address, b"still serving")
    assert host.is_running
