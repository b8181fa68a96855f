"""A real ZooKeeper that comes up quickly, keeps its data, and never outlives its maker."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.cluster import zookeeper
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.errors import MetadataUnavailableError

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as running:
        yield running


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Poll until ``condition`` holds; return the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"after {seconds} s still not: {what}"
        time.sleep(0.01)
    return time.monotonic() - start


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


def test_it_serves_within_about_a_second(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    begin = time.monotonic()
    server.start()
    seconds = time.monotonic() - begin
    record_property("serving_seconds", seconds)
    print(f"serving after {seconds:.2f} s")

    set_value(server.address, b"x")

    server.stop()
    assert server.pid is None


def test_it_listens_on_loopback_only(server: EmbeddedZooKeeper) -> None:
    assert server.pid is not None

    listening = [
        connection.laddr.ip
        for connection in psutil.Process(server.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == server.port
    ]

    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_a_restart_on_the_same_directory_has_everything_in_it(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zoo keeper, größer") as first:
        set_value(first.address, b"kept")
        port = first.port

    with EmbeddedZooKeeper(tmp_path / "zoo keeper, größer", port) as second:
        assert second.port == port
        assert get_value(second.address) == b"kept"


def test_what_was_answered_survives_a_killed_server(server: EmbeddedZooKeeper) -> None:
    set_value(server.address, b"answered")
    killed = server.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not server.is_running, "the watchdog noticed")

    server.start()

    assert server.pid != killed
    assert get_value(server.address) == b"answered"


def test_stop_is_idempotent_and_leaves_no_process(server: EmbeddedZooKeeper) -> None:
    pid = server.pid
    assert pid is not None

    server.stop()
    server.stop()

    assert not psutil.pid_exists(pid)
    assert not server.is_running


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
    server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    assert server.port is not None

    assert zookeeper._is_serving(server.port, tmp_path / "zookeeper" / "data")
    assert not zookeeper._is_serving(server.port, tmp_path / "another" / "data")


def test_two_servers_side_by_side_are_separate(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "other") as other:
        set_value(server.address, b"one")
        set_value(other.address, b"two")

        assert get_value(server.address) == b"one"


def test_a_directory_in_use_is_refused_at_once(
    server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "_LOCK_SECONDS", 3600.0)

    with pytest.raises(MetadataUnavailableError, match=rf"another process \({os.getpid()}\)"):
        EmbeddedZooKeeper(server.directory).start()

    set_value(server.address, b"still serving")


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
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
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
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(directory), manner],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert maker.stdout is not None
    server, watchdog, address = maker.stdout.readline().split()
    return maker, int(server), int(watchdog), address


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("manner", ["kill -9", "kill", "interrupt", "exit", "fork", "watchdog"])
def test_no_process_stays_behind_however_the_maker_ends(
    tmp_path: Path, manner: str, record_property: Callable[[str, object], None]
) -> None:
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

        seconds = wait_until(lambda: is_gone(server), "the server is gone")
        record_property("gone_after_seconds", seconds)
        wait_until(lambda: is_gone(watchdog), "the watchdog is gone")
    finally:
        os.killpg(maker.pid, signal.SIGKILL)
        maker.communicate()
        for pid in (server, watchdog):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # the test fails, and still leaves nothing behind


def test_a_directory_whose_maker_was_killed_starts_again_at_once(tmp_path: Path) -> None:
    maker, _, _, address = start_maker(tmp_path, "kill -9")
    set_value(address, b"before the kill")
    maker.kill()
    maker.communicate()

    with EmbeddedZooKeeper(tmp_path) as server:
        assert get_value(server.address) == b"before the kill"


def test_a_forked_child_does_not_stop_its_parents_server(server: EmbeddedZooKeeper) -> None:
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)

    set_value(server.address, b"still serving")
    assert server.is_running
