"""A whole cluster on this machine: started again, moved, robbed of bookies, side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.cluster.background import start_detached
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.cluster.processes import birth_of
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.interrupts import Noise, interrupt_until_it_ends

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", bookies=3) as running:
        yield running


def connect(cluster: LocalCluster) -> ZooKeeperStore:
    return ZooKeeperStore(cluster.metadata_uri, token=ThreadRuntime().token)


def registered(cluster: LocalCluster) -> dict[BookieId, Registration]:
    store = connect(cluster)
    try:
        return {registration.bookie_id: registration for registration in store.registrations()}
    finally:
        store.close()


def add_ledger(cluster: LocalCluster, *ensemble: BookieId) -> None:
    store = connect(cluster)
    store.create_ledger(
        store.generate_ledger_id(),
        LedgerMetadata(
            quorum=Quorum(len(ensemble), 1, 1),
            state=LedgerState.OPEN,
            fragments=(Fragment(EntryId(0), ensemble),),
        ),
        is_generated=True,
    )
    store.close()


def test_every_bookie_is_registered_with_its_root(cluster: LocalCluster) -> None:
    found = registered(cluster)

    assert list(found) == cluster.bookie_ids == cluster.running_bookie_ids
    assert cluster.bookie_ids == ["127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183"]
    for bookie_id, registration in found.items():
        assert registration.root_uri == cluster.root_of(bookie_id).as_uri()
        marker = read_marker(LocalStorage(cluster.root_of(bookie_id)))
        assert marker is not None
        assert marker.incarnation == registration.incarnation


def test_a_temporary_cluster_is_gone_when_it_is_closed() -> None:
    with LocalCluster(bookies=1) as cluster:
        directory = cluster.directory
        assert directory.is_dir()
        pid = cluster.zookeeper.pid

    assert not directory.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_cluster_starts_again_with_everything_in_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", bookies=2) as first:
        uri, before = first.metadata_uri, registered(first)
        add_ledger(first, *first.bookie_ids)

    with LocalCluster(tmp_path / "c", bookies=7) as second:
        assert second.metadata_uri == uri
        after = registered(second)
        store = connect(second)
        assert list(store.ledger_ids()) == [0]
        store.close()

    assert {i: r.incarnation for i, r in after.items()} == {
        i: r.incarnation for i, r in before.items()
    }


def test_a_cluster_that_was_moved_starts_at_its_new_place(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "here", bookies=2) as first:
        before = registered(first)
    (tmp_path / "here").rename(tmp_path / "over there")

    with LocalCluster(tmp_path / "over there") as second:
        after = registered(second)

    assert list(after) == list(before)
    assert "over%20there" in after[BookieId("127.0.0.1:3181")].root_uri


def test_two_clusters_side_by_side_are_separate(cluster: LocalCluster, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "other", bookies=1) as other:
        assert other.metadata_uri != cluster.metadata_uri
        assert len(registered(other)) == 1
        assert len(registered(cluster)) == 3


def test_a_stopped_bookie_is_gone_and_comes_back_as_it_was(cluster: LocalCluster) -> None:
    bookie_id = cluster.bookie_ids[1]
    before = registered(cluster)[bookie_id]

    cluster.stop_bookie(bookie_id)
    assert bookie_id not in registered(cluster)
    assert bookie_id in cluster.bookie_ids
    cluster.start_bookie(bookie_id)

    assert registered(cluster)[bookie_id].incarnation == before.incarnation


def test_a_destroyed_bookie_is_gone_with_its_storage_also_after_a_restart(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", bookies=3) as cluster:
        lost = cluster.bookie_ids[0]
        add_ledger(cluster, lost)
        cluster.stop_bookie(lost, destroy=True)
        assert not cluster.root_of(lost).exists()
        assert lost not in cluster.bookie_ids
        assert lost not in registered(cluster)

    with LocalCluster(tmp_path / "c") as again:
        assert lost not in again.bookie_ids
        assert len(registered(again)) == 2


def test_a_destroyed_bookie_begins_anew_only_when_no_ledger_counts_on_it(
    cluster: LocalCluster,
) -> None:
    needed, free = cluster.bookie_ids[:2]
    before = registered(cluster)[free]
    add_ledger(cluster, needed)
    for bookie_id in (needed, free):
        cluster.stop_bookie(bookie_id, destroy=True)

    with pytest.raises(InvalidArgumentError, match="bookie recover"):
        cluster.start_bookie(needed)
    cluster.start_bookie(free)

    assert registered(cluster)[free].incarnation != before.incarnation
    assert needed not in registered(cluster)


def test_a_bookie_whose_directory_vanished_does_not_keep_the_others_down(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", bookies=2) as first:
        root = first.root_of(first.bookie_ids[0])
    root.rename(tmp_path / "elsewhere")

    with LocalCluster(tmp_path / "c") as second:
        assert second.running_bookie_ids == ["127.0.0.1:3182"]


def test_an_added_bookie_has_an_id_that_was_never_used(cluster: LocalCluster) -> None:
    cluster.stop_bookie(cluster.bookie_ids[-1], destroy=True)

    added = cluster.add_bookie()

    assert added == "127.0.0.1:3184"
    assert added in registered(cluster)


def test_a_bookie_that_is_not_there_is_refused_with_those_that_are(cluster: LocalCluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"it has 127\.0\.0\.1:3181, "):
        cluster.stop_bookie("127.0.0.1:9999")


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(InvalidArgumentError, match=r"thesis\.txt"):
        LocalCluster(tmp_path).start()

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", "/proc/cluster"):
        with pytest.raises(InvalidArgumentError, match="Name a directory"):
            LocalCluster(place).start()
        with pytest.raises(InvalidArgumentError, match="Name a directory"):
            start_detached(place)
    number: Any = 3
    with pytest.raises(InvalidArgumentError, match="directory=3 is no path"):
        LocalCluster(number)


def test_its_picture_needs_no_connection(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "c", bookies=1)
    assert "not running" in repr(cluster)

    with cluster:
        assert "1 of 1 bookies running" in repr(cluster)
        cluster.zookeeper.stop()
        assert "1 of 1 bookies running" in repr(cluster)


OWNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
from spark_bookkeeper.cluster import running_cluster
from spark_bookkeeper.cluster.local import LocalCluster
if sys.argv[2] == "die":
    running_cluster.SESSION_TIMEOUT_MS = 1_500
cluster = LocalCluster(sys.argv[1], bookies=2).start()
print(cluster.zookeeper.pid, cluster.metadata_uri, flush=True)
if sys.argv[2] in ("wait", "die"):
    sys.stdin.read()
"""


def start_owner(directory: Path, manner: str) -> tuple[subprocess.Popen[str], int, str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory), manner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    pid, uri = owner.stdout.readline().split()
    return owner, int(pid), uri


def interrupted(owner: subprocess.Popen[str], press: Callable[[], None]) -> str:
    """Press Ctrl-C until it ends; returns what it wrote to standard error."""
    noise = Noise(owner.stderr)
    interrupt_until_it_ends(owner, press, noise)
    errors = noise.whole()
    owner.communicate()
    return errors


def test_a_cluster_that_nobody_closed_ends_with_the_interpreter(tmp_path: Path) -> None:
    owner, server, _ = start_owner(tmp_path / "c", "end")

    _, errors = owner.communicate(timeout=60)

    assert (owner.returncode, errors) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_ctrl_c_in_a_terminal_ends_everything(tmp_path: Path) -> None:
    owner, server, _ = start_owner(tmp_path / "c", "wait")

    # As a terminal does: to the whole foreground group.
    errors = interrupted(owner, lambda: os.killpg(owner.pid, signal.SIGINT))

    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_the_directory_of_a_temporary_cluster_whose_owner_was_killed_goes_with_the_next(
    tmp_path: Path,
) -> None:
    script = OWNER.replace("sys.argv[1]", "None").replace(
        "from spark", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\nfrom spark", 1
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, "", "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    server = int(owner.stdout.readline().split()[0])
    watchdog = psutil.Process(server).ppid()
    (left,) = tmp_path.glob("spark-bookkeeper-*/temporary")
    owner.kill()
    owner.communicate()
    for each in (server, watchdog):  # both hold the lock
        wait_until(lambda each=each: birth_of(each) is None, "they are gone")  # type: ignore[misc]

    second = subprocess.run(
        [sys.executable, "-c", script, "", "end"], capture_output=True, text=True, check=True
    )

    assert second.stdout
    assert not left.parent.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_whose_owner_was_killed_starts_again(tmp_path: Path) -> None:
    owner, _, uri = start_owner(tmp_path / "c", "die")  # and its sessions end soon
    owner.kill()
    owner.communicate()

    with LocalCluster(tmp_path / "c") as cluster:
        assert cluster.metadata_uri == uri
        assert len(registered(cluster)) == 2


def test_a_zookeeper_that_died_is_started_again_and_one_that_was_stopped_is_not(
    cluster: LocalCluster,
) -> None:
    uri, died = cluster.metadata_uri, cluster.zookeeper.pid
    assert died is not None
    os.kill(died, signal.SIGKILL)

    wait_until(lambda: cluster.zookeeper.pid not in (None, died), "another server")
    assert cluster.metadata_uri == uri
    wait_until(lambda: list(registered(cluster)) == cluster.bookie_ids, "all bookies are back")

    cluster.zookeeper.stop()
    assert not cluster.zookeeper.has_died


def test_threads_may_stop_and_start_bookies_at_once(cluster: LocalCluster) -> None:
    def flap(bookie_id: BookieId) -> None:
        for _ in range(3):
            cluster.stop_bookie(bookie_id)
            cluster.start_bookie(bookie_id)

    threads = [threading.Thread(target=flap, args=[b]) for b in cluster.bookie_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(registered(cluster)) == cluster.bookie_ids


@pytest.mark.parametrize(
    "moment", ["zookeeper/lock", "zookeeper/data", "cluster.json", "bookies/1", "bookies/2/BOOKIE"]
)
def test_ctrl_c_while_it_starts_leaves_no_process(tmp_path: Path, moment: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "c"), "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (tmp_path / "c" / moment).exists(), f"{moment} is there")

    errors = interrupted(owner, lambda: owner.send_signal(signal.SIGINT))

    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not servers_of(tmp_path), "the server is gone")


def servers_of(directory: Path) -> list[int]:
    """Processes with a file of this directory on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(directory / "c" / "zookeeper") in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.001)
