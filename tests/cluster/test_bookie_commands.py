"""``spark-bookkeeper bookie start | format | verify``, as a person uses them."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cluster.zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.metadata.cookie_text import decode_cookie
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import eventually

pytestmark = pytest.mark.integration

BOOKIE = BookieId("127.0.0.1:3181")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def store(server: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> Iterator[ZooKeeperStore]:
    """A cluster of its own for each test, under another root of the same ZooKeeper."""
    uri = f"zk://{server.address}/{request.node.name}"
    store = ZooKeeperStore(uri, token=ThreadRuntime().token)
    store.initialize_cluster()
    yield store
    store.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bookie").mkdir()
    return tmp_path / "bookie"


def call_of(store: ZooKeeperStore, verb: str, bookie: str = BOOKIE) -> list[str]:
    return ["--metadata-uri", str(store.uri), "bookie", verb, "--bookie-id", bookie]


def start_agent(
    store: ZooKeeperStore, root: Path, *options: str, bookie: str = BOOKIE
) -> subprocess.Popen[str]:
    """An agent in the foreground of a process of its own, once it says that it serves."""
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "spark_bookkeeper"),
            *(*call_of(store, "start", bookie), "--root", str(root), *options),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    said = ""
    for line in agent.stderr:
        said += line
        if "serves" in line:
            return agent
    pytest.fail(f"the agent ended: {said}")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_agent_registers_its_bookie_until_it_is_stopped(
    store: ZooKeeperStore, root: Path, ending: signal.Signals
) -> None:
    agent = start_agent(store, root)
    found = store.registrations()

    agent.send_signal(ending)
    _, said = agent.communicate(timeout=60)

    assert [(r.bookie_id, r.root_uri, r.is_readonly) for r in found] == [
        (BOOKIE, root.as_uri(), False)
    ]
    assert agent.returncode == 0
    assert "is unregistered" in said
    assert "Traceback" not in said
    assert store.registrations() == []


def test_an_agent_shows_its_health_and_metrics_at_its_port(
    store: ZooKeeperStore, root: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bookie = f"127.0.0.1:{probe.getsockname()[1]}"
    with sbk.connect(str(store.uri)) as bk:
        bk.create_log("orders").publish("etl", "0:0")
    agent = start_agent(store, root, "--show-lag", "orders", bookie=bookie)
    assert agent.stderr is not None
    assert f"http://{bookie}" in agent.stderr.readline()

    with urlopen(f"http://{bookie}/health", timeout=60) as answer:
        told = json.load(answer)
    with urlopen(f"http://{bookie}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=60)

    assert (told["bookie_id"], told["state"]) == (bookie, "writable")
    duties = [duty["name"] for duty in told["duties"]]
    assert duties == ["collect", "collect-copies", "compact", "scrub"]
    assert "bookie_SERVER_STATUS 1.0" in metrics
    assert "zookeeper_client_retries_total 0.0" in metrics
    assert 'entries_behind{consumer="etl",log="orders"} 0.0' in metrics
    assert agent.returncode == 0


def test_one_agent_looks_after_several_partitions_and_goes_on_without_a_broken_one(
    store: ZooKeeperStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    roots = {f"127.0.0.1:{port + n}": tmp_path / f"disk-{n}" for n in range(3)}
    first, second, away = roots
    for bookie in (first, second):
        roots[bookie].mkdir()
    tables = "".join(
        f'[[partitions]]\nbookie_id = "{bookie}"\nroot = "{root}"\n'
        for bookie, root in roots.items()
    )
    (tmp_path / "bookies.toml").write_text(tables)
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "spark_bookkeeper", "--metadata-uri", str(store.uri)),
            *("bookie", "start", "--conf", str(tmp_path / "bookies.toml")),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    said = ""
    for line in agent.stderr:
        said += line
        if "are at http" in line:
            break
    registered = sorted(r.bookie_id for r in store.registrations())
    with urlopen(f"http://{first}/health", timeout=60) as answer:
        told = json.load(answer)
    with urlopen(f"http://{first}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    agent.send_signal(signal.SIGTERM)
    _, ended = agent.communicate(timeout=60)

    assert registered == sorted([first, second]), said
    assert f"bookie {second} is unregistered" in ended
    assert f"bookie {away} is unregistered" not in ended, "it never was registered"
    assert f"bookie {away} at {roots[away]} is not served" in said
    assert (told["writable"], told["unregistered"]) == (2, 1)
    assert f'bookie_SERVER_STATUS{{bookie="{second}"}} 1.0' in metrics
    assert agent.returncode == 0
    assert store.registrations() == []
    # The two that are formatted say by themselves who they are; a new one has to be told.
    call = ["--metadata-uri", str(store.uri), "bookie", "start"]
    roots[away].mkdir()
    capsys.readouterr()
    assert run([*call, str(roots[first]), str(roots[away])]) == 2
    assert f"write HOST:PORT={roots[away]}" in capsys.readouterr().err
    assert run([*call, f"{first}={roots[first]}", "--root", "x"]) == 2
    assert run(call) == 2
    assert "no partition was named" in capsys.readouterr().err


def test_an_agent_whose_disk_goes_says_so_and_serves_the_one_that_is_formatted_in_its_place(
    store: ZooKeeperStore, root: Path, tmp_path: Path
) -> None:
    conf = tmp_path / "bookie.toml"
    conf.write_text("probe_interval_ms = 100\n")
    agent = start_agent(store, root, "--conf", str(conf))
    (before,) = store.registrations()
    for each in root.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()

    eventually(lambda: not store.registrations())
    assert run([*call_of(store, "format"), "--root", str(root), "--replaced", "--yes"]) == 0
    eventually(lambda: bool(store.registrations()))
    (after,) = store.registrations()
    agent.send_signal(signal.SIGTERM)
    _, said = agent.communicate(timeout=60)

    assert after.incarnation != before.incarnation
    assert "is not registered: the storage holds no BOOKIE marker: not mounted, or wiped" in said
    assert f"served as incarnation {after.incarnation}, and as {before.incarnation} no more" in said


def test_a_wiped_bookie_is_refused_with_the_three_views(
    store: ZooKeeperStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = start_agent(store, root)
    agent.send_signal(signal.SIGINT)
    agent.communicate(timeout=60)
    (root / "BOOKIE").unlink()

    code = run([*call_of(store, "start"), "--root", str(root)])

    said = capsys.readouterr().err
    assert code == 2
    assert "found on the storage:   nothing" in said
    assert f"spark-bookkeeper bookie recover {BOOKIE}" in said
    assert "Traceback" not in said


def test_a_root_that_is_not_there_is_not_made(
    store: ZooKeeperStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "not mounted"

    code = run([*call_of(store, "start"), "--root", str(missing)])

    assert code == 2
    assert f"mkdir -p '{missing}'" in capsys.readouterr().err
    assert not missing.exists()


def test_formatting_asks_and_shows_what_it_made(
    store: ZooKeeperStore,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = ["--json", *call_of(store, "format"), "--root", str(root)]
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert run(call) == 1  # nobody says yes
    assert read_marker(LocalStorage(root)) is None
    capsys.readouterr()
    assert run([*call, "--yes"]) == 0

    said = capsys.readouterr()
    made = json.loads(said.out)
    marker = read_marker(LocalStorage(root))
    assert marker is not None
    assert made["incarnation"] == marker.incarnation
    assert "holds no bookie, 0 ledger directories" in said.err
    assert "holds: a deleted file is gone" in said.err
    cookie = store.read_cookie(BOOKIE)
    assert cookie is not None
    assert cookie.value.incarnation == marker.incarnation


def test_formatting_says_what_the_new_bookie_shares_with_others(
    store: ZooKeeperStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--metadata-uri", str(store.uri), "bookie", "format", "--yes"]
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    assert run([*call, "--bookie-id", "10.0.0.1:3181", "--root", str(first)]) == 0
    assert "share the" not in capsys.readouterr().err

    assert run([*call, "--bookie-id", "10.0.0.2:3181", "--root", str(second)]) == 0

    assert "10.0.0.1:3181 and 10.0.0.2:3181 share the disk" in capsys.readouterr().err


def test_format_and_doctor_say_which_bookies_share_a_machine(
    store: ZooKeeperStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two disks; those on one disk are told of that alone."""
    call = ["--metadata-uri", str(store.uri), "bookie", "format", "--yes"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(root).st_dev:
            pytest.skip("there is but one disk here")
        assert run([*call, "--bookie-id", "10.0.0.1:3181", "--root", str(root)]) == 0
        assert "share the" not in capsys.readouterr().err

        assert run([*call, "--bookie-id", "10.0.0.1:3182", "--root", other]) == 0
        said = capsys.readouterr().err
        run(["--metadata-uri", str(store.uri), "--json", "doctor"])
        found = {each["check"]: each for each in json.loads(capsys.readouterr().out)["findings"]}

    assert "10.0.0.1:3181 and 10.0.0.1:3182 share the machine 10.0.0.1: what loses one" in said
    told = found["bookies on one machine"]
    assert told["verdict"] == "warning"
    assert "10.0.0.1:3181 and 10.0.0.1:3182 share the machine 10.0.0.1" in told["detail"]
    assert "give each of them its own machine" in told["remedy"]


def test_an_agent_says_once_what_its_bookies_share(store: ZooKeeperStore, tmp_path: Path) -> None:
    """A new partition is formatted by the start, where nobody has said `bookie format`."""
    partitions = []
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        partitions.append(f"node{number}:3181={tmp_path / str(number)}")
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "spark_bookkeeper", "--metadata-uri", str(store.uri)),
            *("bookie", "start", *partitions),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert agent.stderr is not None
    told = next(line for line in agent.stderr if "share the disk" in line)
    agent.send_signal(signal.SIGTERM)
    _, rest = agent.communicate(timeout=60)

    assert "node0:3181 and node1:3181 share the disk" in told
    assert "give each bookie its own disk" in told
    assert "share the disk" not in rest


def test_a_lost_cookie_is_made_again_from_the_partition_and_shown_before_it_is_written(
    store: ZooKeeperStore, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cookie = ["--metadata-uri", str(store.uri), "--json", "bookie", "cookie"]
    bookie = ["--bookie-id", BOOKIE, "--root", str(root)]
    assert run([*call_of(store, "format"), "--root", str(root), "--yes"]) == 0
    before = store.read_cookie(BOOKIE)
    assert before is not None
    store.delete_cookie(BOOKIE, before.version)
    file = tmp_path / "cookie.txt"
    capsys.readouterr()

    assert run([*cookie, "generate", *bookie, "--output", str(file)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert store.read_cookie(BOOKIE) is None
    assert run([*cookie, "generate", *bookie, "--output", str(file)]) == 2  # it is there
    assert run([*cookie, "create", *bookie, "--yes"]) == 0
    capsys.readouterr()
    assert run([*cookie, "generate", *bookie]) == 0

    assert (made["incarnation"], made["is_stored"]) == (before.value.incarnation, False)
    assert json.loads(capsys.readouterr().out) == {**made, "is_stored": True}
    assert decode_cookie(file.read_bytes(), "file") == before.value
    after = store.read_cookie(BOOKIE)
    assert after is not None
    assert after.value == before.value


def test_a_lost_cookie_is_made_again_and_stored_in_one_step(
    store: ZooKeeperStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--metadata-uri", str(store.uri), "--json", "bookie", "cookie", "generate"]
    call += ["--bookie-id", BOOKIE, "--root", str(root), "--store"]
    assert run([*call_of(store, "format"), "--root", str(root), "--yes"]) == 0
    before = store.read_cookie(BOOKIE)
    assert before is not None
    store.delete_cookie(BOOKIE, before.version)
    capsys.readouterr()

    assert run(call) == 1, "nobody says yes"
    assert store.read_cookie(BOOKIE) is None
    assert "used last?" in capsys.readouterr().err
    assert run([*call, "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["is_stored"] is True
    after = store.read_cookie(BOOKIE)
    assert after is not None
    assert after.value == before.value
    assert run(call) == 0, "it is there, so nobody is asked"


def test_a_cookie_is_generated_only_from_the_storage_that_the_ledgers_mean(
    store: ZooKeeperStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["--metadata-uri", str(store.uri), "bookie", "cookie", "generate"]

    assert run([*call, "--bookie-id", BOOKIE, "--root", str(root)]) == 2
    assert "holds no BOOKIE marker" in capsys.readouterr().err


def test_formatting_the_last_good_copy_is_refused(
    store: ZooKeeperStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*call_of(store, "format"), "--root", str(root), "--yes"]
    assert run(call) == 0
    before = read_marker(LocalStorage(root))
    ledger_id = store.generate_ledger_id()
    store.create_ledger(
        ledger_id,
        LedgerMetadata(Quorum(1, 1, 1), LedgerState.OPEN, (Fragment(EntryId(0), (BOOKIE,)),)),
        is_generated=True,
    )

    assert run(call) == 2

    assert f"of ledger {ledger_id}." in capsys.readouterr().err
    assert read_marker(LocalStorage(root)) == before


def test_verify_prints_each_check_and_leaves_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)

    assert run(["bookie", "verify", "bookie"]) == 0

    shown = capsys.readouterr().out
    assert "exactly one is told that it won" in shown
    assert f"{root.as_uri()} can be a bookie" in shown
    assert list(root.iterdir()) == []


def test_verify_says_what_keeps_a_directory_from_becoming_a_bookie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lost+found").mkdir()
    assert run(["--json", "bookie", "verify", str(tmp_path)]) == 0
    empty = json.loads(capsys.readouterr().out)
    (tmp_path / "notes.txt").write_text("mine")

    assert run(["--json", "bookie", "verify", str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert run(["bookie", "verify", str(tmp_path)]) == 1

    assert (empty["in_the_way"], told["in_the_way"]) == ([], ["notes.txt"])
    assert told["is_suitable"] is True, "the file system is"
    said = capsys.readouterr().out
    assert "it holds notes.txt" in said
    assert "can be a bookie" not in said


def test_verify_says_what_held_before_a_check_failed(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "list", lambda *_: [])

    assert run(["bookie", "verify", str(root)]) == 1

    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in shown[:-1]] == ["holds"] * 5
    assert "is missing from the listing" in shown[-1]


def test_verify_refuses_a_file_system_that_overwrites(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(self: LocalStorage, path: str, data: bytes) -> bool:
        target = root / path
        target.write_bytes(data)
        return True

    monkeypatch.setattr(LocalStorage, "put_if_absent", put)

    assert run(["--json", "bookie", "verify", str(root)]) == 1

    found = json.loads(capsys.readouterr().out)
    assert not found["is_suitable"]
    assert "writers of one name were told that they won" in found["reason"]
    assert found["checks"] == []


def test_verify_of_no_file_system_at_all_is_a_wrong_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bookie", "verify", "foo://bucket/1"]) == 2
    said = capsys.readouterr().err
    assert "no file system is known by the name 'foo'" in said
    assert "s3://bucket/prefix" in said


def test_verify_of_a_storage_that_does_not_answer_changed_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: LocalStorage, path: str) -> bytes | None:
        raise BookieUnavailableError(
            "it may or may not have taken effect", bookie_id="b:1"
        ) from OSError("no key")

    monkeypatch.setattr(LocalStorage, "read", read)

    assert run(["bookie", "verify", str(root)]) == 2
    said = capsys.readouterr().err
    assert "OSError: no key. Nothing was changed" in said
    assert "--storage-option" in said
    assert "may or may not" not in said


def test_an_agent_with_autorecovery_is_a_candidate_for_auditor(
    store: ZooKeeperStore, root: Path
) -> None:
    agent = start_agent(store, root, "--autorecovery")
    try:
        eventually(lambda: store.underreplication.auditor() == f"spark-bookkeeper@{BOOKIE}")
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=60)

    assert agent.returncode == 0
    assert store.underreplication.auditor() is None
    assert list(store.underreplication.ledger_ids()) == []


def test_autorecovery_that_runs_by_itself_serves_its_metrics(store: ZooKeeperStore) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call = [sys.executable, "-m", "spark_bookkeeper", "--metadata-uri", str(store.uri)]
    call += ["autorecovery", "start", "--engine", "local", "--metrics-port", str(port)]
    first = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    told = next(line for line in first.stderr if "/metrics are at" in line)
    second = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    refused = next(line for line in second.stderr if "metrics" in line)
    running = next(line for line in second.stderr if "autorecovery runs" in line)

    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert f"http://127.0.0.1:{port}" in told
    assert f"no metrics are served: port {port}" in refused
    assert running, "it goes on without"
    assert "auditor_NUM_UNDER_REPLICATED_LEDGERS 0.0" in page
    assert "replication_worker_underreplicated_seconds" in page
    assert (first.returncode, second.returncode) == (0, 0)
