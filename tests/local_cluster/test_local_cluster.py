"""A whole cluster on this machine: started again, moved, robbed of bookies, side by side.

What is shown of bookies is shown with guests of the ZooKeeper that all tests share; those with a
ZooKeeper of their own are about the processes that a cluster starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.background import start_detached
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.local_cluster.processes import birth_of
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.storage.local import LocalStorage
from tests.support.interrupts import Noise, interrupt_until_it_ends
from tests.support.processes import is_gone, processes_of, start_script
from tests.support.program import until
from tests.worlds import first_of

pytestmark = pytest.mark.integration


@pytest.fixture
def three(cluster_of: Callable[[int], LocalCluster]) -> LocalCluster:
    """A guest of three bookies."""
    return cluster_of(3)


@pytest.fixture(params=first_of("a guest", "with its own ZooKeeper"))
def kind(request: pytest.FixtureRequest) -> str:
    """What clusters that a test starts are: one with its own ZooKeeper starts that again, too."""
    if request.param == "a guest":
        request.getfixturevalue("guests")
    return str(request.param)


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
    fragments = (Fragment(EntryId(0), ensemble),)
    made = LedgerMetadata(Quorum(len(ensemble), 1, 1), LedgerState.OPEN, fragments)
    store.create_ledger(store.generate_ledger_id(), made, is_generated=True)
    store.close()


def test_every_bookie_is_registered_with_its_root(three: LocalCluster) -> None:
    found = registered(three)

    assert list(found) == three.bookie_ids == three.running_bookie_ids
    assert three.bookie_ids == ["127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183"]
    for bookie_id, registration in found.items():
        assert registration.root_uri == three.root_of(bookie_id).as_uri()
        marker = read_marker(LocalStorage(three.root_of(bookie_id)))
        assert marker is not None
        assert marker.incarnation == registration.incarnation


def test_a_cluster_starts_again_with_everything_in_it(tmp_path: Path, kind: str) -> None:
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


def test_a_cluster_that_was_moved_starts_at_its_new_place(tmp_path: Path, kind: str) -> None:
    with LocalCluster(tmp_path / "here", bookies=2) as first:
        before = registered(first)
    (tmp_path / "here").rename(tmp_path / "over there")

    with LocalCluster(tmp_path / "over there") as second:
        after = registered(second)

    assert list(after) == list(before)
    assert "over%20there" in after[BookieId("127.0.0.1:3181")].root_uri


def test_a_stopped_bookie_is_gone_and_comes_back_as_it_was(three: LocalCluster) -> None:
    bookie_id = three.bookie_ids[1]
    before = registered(three)[bookie_id]

    three.stop_bookie(bookie_id)
    assert bookie_id not in registered(three)
    assert bookie_id in three.bookie_ids
    three.start_bookie(bookie_id)

    assert registered(three)[bookie_id].incarnation == before.incarnation


def test_a_destroyed_bookie_is_gone_with_its_storage_also_after_a_restart(
    tmp_path: Path, guests: None
) -> None:
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


def test_files_that_come_while_a_bookie_is_destroyed_go_with_it(three: LocalCluster) -> None:
    lost = three.bookie_ids[0]
    root = three.root_of(lost)
    parts = root / "ledgers" / "0-00" / "parts"
    parts.mkdir(parents=True)
    begun, ended = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set() and parts.exists():
            try:
                (parts / f"{number}.arrow").write_bytes(b"rows")
            except FileNotFoundError:
                return
            number += 1
            if number == 500:
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(60)
        three.stop_bookie(lost, destroy=True)
    finally:
        ended.set()
        writer.join()

    assert not root.exists()
    assert lost not in three.bookie_ids


def test_a_destroyed_bookie_begins_anew_only_when_no_ledger_counts_on_it(
    three: LocalCluster,
) -> None:
    needed, free = three.bookie_ids[:2]
    before = registered(three)[free]
    add_ledger(three, needed)
    for bookie_id in (needed, free):
        three.stop_bookie(bookie_id, destroy=True)

    with pytest.raises(InvalidArgumentError, match="bookie recover"):
        three.start_bookie(needed)
    three.start_bookie(free)

    assert registered(three)[free].incarnation != before.incarnation
    assert needed not in registered(three)


def test_a_bookie_whose_directory_vanished_does_not_keep_the_others_down(
    tmp_path: Path, guests: None
) -> None:
    with LocalCluster(tmp_path / "c", bookies=2) as first:
        root = first.root_of(first.bookie_ids[0])
    root.rename(tmp_path / "elsewhere")

    with LocalCluster(tmp_path / "c") as second:
        assert second.running_bookie_ids == ["127.0.0.1:3182"]


def test_an_added_bookie_has_an_id_that_was_never_used(three: LocalCluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"it has 127\.0\.0\.1:3181, "):
        three.stop_bookie("127.0.0.1:9999")
    three.stop_bookie(three.bookie_ids[-1], destroy=True)

    added = three.add_bookie()

    assert added == "127.0.0.1:3184"
    assert added in registered(three)


def test_threads_may_stop_and_start_bookies_at_once(three: LocalCluster) -> None:
    def flap(bookie_id: BookieId) -> None:
        for _ in range(3):
            three.stop_bookie(bookie_id)
            three.start_bookie(bookie_id)

    threads = [threading.Thread(target=flap, args=[b]) for b in three.bookie_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(registered(three)) == three.bookie_ids


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


# With a ZooKeeper of its own


def test_a_zookeeper_that_died_is_started_again_and_one_that_was_stopped_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # no other looks there
    cluster = LocalCluster(bookies=2)
    assert "not running" in repr(cluster)
    with cluster:
        directory, uri, died = cluster.directory, cluster.metadata_uri, cluster.zookeeper.pid
        assert died is not None
        os.kill(died, signal.SIGKILL)

        until(lambda: cluster.zookeeper.pid not in (None, died), "another server", 0.01)
        assert cluster.metadata_uri == uri
        wanted = cluster.bookie_ids
        until(lambda: list(registered(cluster)) == wanted, "all bookies are back", 0.1)

        second = cluster.zookeeper.pid
        assert second is not None
        cluster.zookeeper.stop()
        assert not cluster.zookeeper.has_died
        assert "2 of 2 bookies running" in repr(cluster), "its picture needs no connection"

    assert not directory.exists(), "it was a temporary cluster"
    assert is_gone(second)


OWNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
from spark_bookkeeper.local_cluster import running_cluster
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
if sys.argv[2] == "die":
    running_cluster.SESSION_TIMEOUT_MS = 1_500
cluster = LocalCluster(sys.argv[1], bookies=2).start()
print(cluster.zookeeper.pid, cluster.metadata_uri, flush=True)
if sys.argv[2] in ("wait", "die"):
    sys.stdin.read()
"""


def told_by(owner: subprocess.Popen[str]) -> tuple[int, str]:
    """The server's process id and the URI of the cluster, once it runs."""
    assert owner.stdout is not None
    pid, uri = owner.stdout.readline().split()
    return int(pid), uri


def interrupted(owner: subprocess.Popen[str], press: Callable[[], None]) -> str:
    """Press Ctrl-C until it ends; returns what it wrote to standard error."""
    noise = Noise(owner.stderr)
    interrupt_until_it_ends(owner, press, noise)
    errors = noise.whole()
    owner.communicate()
    return errors


def test_a_cluster_that_nobody_closed_ends_with_the_interpreter(tmp_path: Path) -> None:
    owner = start_script(OWNER, tmp_path / "c", "end")
    server, _ = told_by(owner)

    _, errors = owner.communicate(timeout=60)

    assert (owner.returncode, errors) == (0, "")
    assert is_gone(server)


@pytest.mark.full
def test_ctrl_c_in_a_terminal_ends_everything(tmp_path: Path) -> None:
    owner = start_script(OWNER, tmp_path / "c", "wait")
    server, _ = told_by(owner)

    # As a terminal does: to the whole foreground group.
    errors = interrupted(owner, lambda: os.killpg(owner.pid, signal.SIGINT))

    assert "KeyboardInterrupt" in errors
    assert is_gone(server)


@pytest.mark.full
def test_the_directory_of_a_temporary_cluster_whose_owner_was_killed_goes_with_the_next(
    tmp_path: Path,
) -> None:
    script = OWNER.replace("sys.argv[1]", "None").replace(
        "from spark", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\nfrom spark", 1
    )
    owner = start_script(script, tmp_path, "wait")
    server, _ = told_by(owner)
    watchdog = psutil.Process(server).ppid()
    (left,) = tmp_path.glob("spark-bookkeeper-*/temporary")
    owner.kill()
    owner.communicate()
    for each in (server, watchdog):  # both hold the lock
        until(lambda each=each: birth_of(each) is None, "they are gone", 0.01)  # type: ignore[misc]

    second = start_script(script, tmp_path, "end")
    out, _ = second.communicate(timeout=120)

    assert (second.returncode, bool(out)) == (0, True)
    assert not left.parent.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_cluster_whose_owner_was_killed_starts_again(tmp_path: Path) -> None:
    owner = start_script(OWNER, tmp_path / "c", "die")  # and its sessions end soon
    _, uri = told_by(owner)
    owner.kill()
    owner.communicate()

    with LocalCluster(tmp_path / "c") as cluster:
        assert cluster.metadata_uri == uri
        assert len(registered(cluster)) == 2


MOMENTS = ["zookeeper/lock", "zookeeper/data", "cluster.json", "bookies/2/BOOKIE"]


@pytest.mark.full
@pytest.mark.parametrize(
    "moment", ["bookies/1", *(pytest.param(m, marks=pytest.mark.full) for m in MOMENTS)]
)
def test_ctrl_c_while_it_starts_leaves_no_process(tmp_path: Path, moment: str) -> None:
    owner = start_script(OWNER, tmp_path / "c", "wait")
    until(lambda: (tmp_path / "c" / moment).exists(), f"{moment} is there", 0.001)

    errors = interrupted(owner, lambda: owner.send_signal(signal.SIGINT))

    assert "KeyboardInterrupt" in errors
    until(lambda: not processes_of(tmp_path / "c" / "zookeeper"), "the server is gone", 0.05)
