"""``spark-bookkeeper bookie start | format | verify``, as a person uses them."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from spark_bookkeeper.bookie.marker import read_marker
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.metadata.cookie_text import decode_cookie
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.conformance.metadata import eventually
from tests.agent.agents import free_port
from tests.cli.conftest import Call, caller
from tests.support.program import Program
from tests.support.sessions import connect_without_spark
from tests.worlds import there

pytestmark = pytest.mark.integration

BOOKIE = BookieId("127.0.0.1:3181")

Start = Callable[..., Program]
Place = tuple[object, ...]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bookie").mkdir()
    return tmp_path / "bookie"


@pytest.fixture
def place(root: Path) -> Place:
    """Options that name the bookie and its root."""
    return ("--bookie-id", BOOKIE, "--root", root)


@pytest.fixture
def call(store: ZooKeeperStore, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(str(store.uri), capsys)


def ended(agent: Program, ending: signal.Signals) -> str:
    """What it has said when it has ended as it should."""
    agent.process.send_signal(ending)
    assert agent.process.wait(60) == 0
    assert "Traceback" not in agent.said
    return agent.said


def test_an_agent_shows_its_health_and_metrics_at_its_port(
    store: ZooKeeperStore, root: Path, start: Start
) -> None:
    bookie = f"127.0.0.1:{free_port()}"
    with connect_without_spark(str(store.uri)) as bk:
        bk.create_log("orders").publish("etl", "0:0")
    place = ("--bookie-id", bookie, "--root", root)
    agent = start("serves", "bookie", "start", *place, "--show-lag", "orders")
    (found,) = store.registrations()

    told = json.loads(page(f"http://{bookie}/health"))
    metrics = page(f"http://{bookie}/metrics")
    said = ended(agent, signal.SIGTERM)

    assert f"http://{bookie}" in said
    assert (found.bookie_id, found.root_uri, found.is_readonly) == (bookie, root.as_uri(), False)
    assert (told["bookie_id"], told["state"]) == (bookie, "writable")
    duties = [duty["name"] for duty in told["duties"]]
    assert duties == ["collect", "collect-copies", "compact", "scrub"]
    assert "bookie_SERVER_STATUS 1.0" in metrics
    assert "zookeeper_client_retries_total 0.0" in metrics
    assert 'entries_behind{consumer="etl",log="orders"} 0.0' in metrics
    assert "is unregistered" in said
    assert store.registrations() == []


def page(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.full
def test_one_agent_looks_after_several_partitions_and_goes_on_without_a_broken_one(
    store: ZooKeeperStore, tmp_path: Path, start: Start
) -> None:
    port = free_port()
    roots = {f"127.0.0.1:{port + n}": tmp_path / f"disk-{n}" for n in range(3)}
    first, second, away = roots
    for bookie in (first, second):
        roots[bookie].mkdir()
    tables = "".join(
        f'[[partitions]]\nbookie_id = "{bookie}"\nroot = "{root}"\n'
        for bookie, root in roots.items()
    )
    (tmp_path / "bookies.toml").write_text(tables)
    agent = start("are at http", "bookie", "start", "--conf", tmp_path / "bookies.toml")
    registered = sorted(r.bookie_id for r in store.registrations())
    told = json.loads(page(f"http://{first}/health"))
    metrics = page(f"http://{first}/metrics")

    said = ended(agent, signal.SIGTERM)

    assert registered == sorted([first, second]), said
    assert f"bookie {second} is unregistered" in said
    assert f"bookie {away} is unregistered" not in said, "it never was registered"
    assert f"bookie {away} at {roots[away]} is not served" in said
    assert (told["writable"], told["unregistered"]) == (2, 1)
    assert f'bookie_SERVER_STATUS{{bookie="{second}"}} 1.0' in metrics
    assert store.registrations() == []


def test_a_partition_that_is_not_formatted_yet_has_to_be_told_whose_it_is(
    root: Path, tmp_path: Path, call: Call, place: Place
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    assert call("bookie", "format", *place, "--yes").code == 0

    untold = call("bookie", "start", root, new)
    assert (untold.code, f"write HOST:PORT={new}" in untold.err) == (2, True)
    assert call("bookie", "start", f"{BOOKIE}={root}", "--root", "x").code == 2
    nothing = call("bookie", "start")
    assert (nothing.code, "no partition was named" in nothing.err) == (2, True)


@pytest.mark.full
def test_an_agent_whose_disk_goes_says_so_and_serves_the_one_that_is_formatted_in_its_place(
    store: ZooKeeperStore, root: Path, tmp_path: Path, start: Start, call: Call, place: Place
) -> None:
    conf = tmp_path / "bookie.toml"
    conf.write_text("probe_interval_ms = 100\n")
    agent = start("serves", "bookie", "start", *place, "--conf", conf)
    (before,) = store.registrations()
    for each in root.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()

    eventually(lambda: not store.registrations())
    assert call("bookie", "format", *place, "--replaced", "--yes").code == 0
    eventually(lambda: bool(store.registrations()))
    (after,) = store.registrations()
    said = ended(agent, signal.SIGTERM)

    assert after.incarnation != before.incarnation
    assert "is not registered: the storage holds no BOOKIE marker: not mounted, or wiped" in said
    assert f"served as incarnation {after.incarnation}, and as {before.incarnation} no more" in said


def test_a_wiped_bookie_is_refused_with_the_three_views(
    root: Path, call: Call, place: Place
) -> None:
    assert call("bookie", "format", *place, "--yes").code == 0
    (root / "BOOKIE").unlink()

    done = call("bookie", "start", *place)

    assert done.code == 2
    assert "found on the storage:   nothing" in done.err
    assert f" bookie recover {BOOKIE}" in done.err


def test_a_root_that_is_not_there_is_not_made(tmp_path: Path, call: Call) -> None:
    missing = tmp_path / "not mounted"

    done = call("bookie", "start", "--bookie-id", BOOKIE, "--root", missing)

    assert (done.code, f"mkdir -p '{missing}'" in done.err) == (2, True)
    assert not missing.exists()


def cookie_of(store: ZooKeeperStore) -> Cookie:
    return there(store.read_cookie(BOOKIE)).value


def test_formatting_asks_and_shows_what_it_made(
    store: ZooKeeperStore, root: Path, call: Call, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert call("--json", "bookie", "format", *place).code == 1  # nobody says yes
    assert read_marker(LocalStorage(root)) is None
    made = call("--json", "bookie", "format", *place, "--yes")

    marker = there(read_marker(LocalStorage(root)))
    assert (made.code, made.json["incarnation"]) == (0, marker.incarnation)
    assert "holds no bookie, 0 ledger directories" in made.err
    assert "holds: a deleted file is gone" in made.err
    assert cookie_of(store).incarnation == marker.incarnation


def formatted(call: Call, bookie: str, root: object) -> str:
    """What is said where a bookie is formatted."""
    done = call("bookie", "format", "--yes", "--bookie-id", bookie, "--root", root)
    assert done.code == 0
    return done.err


def test_formatting_says_what_the_new_bookie_shares_with_others(
    root: Path, tmp_path: Path, call: Call
) -> None:
    second = tmp_path / "2"
    second.mkdir()

    assert "share the" not in formatted(call, "10.0.0.1:3181", root)
    said = formatted(call, "10.0.0.2:3181", second)

    assert "10.0.0.1:3181 and 10.0.0.2:3181 share the disk" in said


def test_format_and_doctor_say_which_bookies_share_a_machine(root: Path, call: Call) -> None:
    """On two disks; those on one disk are told of that alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == os.stat(root).st_dev:
            pytest.skip("there is but one disk here")
        assert "share the" not in formatted(call, "10.0.0.1:3181", root)
        said = formatted(call, "10.0.0.1:3182", other)
        found = {each["check"]: each for each in call("--json", "doctor").json["findings"]}

    shared = "10.0.0.1:3181 and 10.0.0.1:3182 share the machine 10.0.0.1"
    assert f"{shared}: what loses one" in said
    told = found["bookies on one machine"]
    assert (told["verdict"], shared in told["detail"]) == ("warning", True)
    assert "give each of them its own machine" in told["remedy"]


@pytest.mark.full
def test_an_agent_says_once_what_its_bookies_share(tmp_path: Path, start: Start) -> None:
    """A new partition is formatted by the start, where nobody has said `bookie format`."""
    partitions = []
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        partitions.append(f"node{number}:3181={tmp_path / str(number)}")

    said = ended(start("share the disk", "bookie", "start", *partitions), signal.SIGTERM)

    (told,) = [line for line in said.splitlines() if "share the disk" in line]
    assert "node0:3181 and node1:3181 share the disk" in told
    assert "give each bookie its own disk" in told


@pytest.fixture
def lost(store: ZooKeeperStore, call: Call, place: Place) -> Cookie:
    """The cookie of a bookie that is there, which was deleted."""
    assert call("bookie", "format", *place, "--yes").code == 0
    cookie, version = cookie_of(store), store.cookie_version(BOOKIE)
    assert version is not None
    store.delete_cookie(BOOKIE, version)
    return cookie


def test_a_lost_cookie_is_made_again_from_the_partition_and_shown_before_it_is_written(
    store: ZooKeeperStore, tmp_path: Path, call: Call, place: Place, lost: Cookie
) -> None:
    file = tmp_path / "cookie.txt"
    generate = ("--json", "bookie", "cookie", "generate", *place)

    made = call(*generate, "--output", file)
    assert (made.code, store.read_cookie(BOOKIE)) == (0, None)
    assert call(*generate, "--output", file).code == 2  # it is there
    assert call("bookie", "cookie", "create", *place, "--yes").code == 0

    assert (made.json["incarnation"], made.json["is_stored"]) == (lost.incarnation, False)
    assert call(*generate).json == {**made.json, "is_stored": True}
    assert decode_cookie(file.read_bytes(), "file") == lost
    assert cookie_of(store) == lost


def test_a_lost_cookie_is_made_again_and_stored_in_one_step(
    store: ZooKeeperStore, call: Call, place: Place, lost: Cookie
) -> None:
    generate = ("--json", "bookie", "cookie", "generate", *place, "--store")

    asked = call(*generate)
    assert (asked.code, "used last?" in asked.err) == (1, True), "nobody says yes"
    assert store.read_cookie(BOOKIE) is None
    assert call(*generate, "--yes").json["is_stored"] is True
    assert cookie_of(store) == lost
    assert call(*generate).code == 0, "it is there, so nobody is asked"


def test_a_cookie_is_generated_only_from_the_storage_that_the_ledgers_mean(
    call: Call, place: Place
) -> None:
    done = call("bookie", "cookie", "generate", *place)

    assert (done.code, "holds no BOOKIE marker" in done.err) == (2, True)


def test_formatting_the_last_good_copy_is_refused(
    store: ZooKeeperStore, root: Path, call: Call, place: Place
) -> None:
    assert call("bookie", "format", *place, "--yes").code == 0
    before = read_marker(LocalStorage(root))
    ledger_id = store.generate_ledger_id()
    fragments = (Fragment(EntryId(0), (BOOKIE,)),)
    named = LedgerMetadata(Quorum(1, 1, 1), LedgerState.OPEN, fragments)
    store.create_ledger(ledger_id, named, is_generated=True)

    done = call("bookie", "format", *place, "--yes")

    assert (done.code, f"of ledger {ledger_id}." in done.err) == (2, True)
    assert read_marker(LocalStorage(root)) == before


# Whether a directory can be a bookie


def test_verify_prints_each_check_and_leaves_nothing(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)

    done = call("bookie", "verify", "bookie")

    assert done.code == 0
    assert "exactly one is told that it won" in done.out
    assert f"{root.as_uri()} can be a bookie" in done.out
    assert list(root.iterdir()) == []


def test_verify_says_what_keeps_a_directory_from_becoming_a_bookie(
    tmp_path: Path, call: Call
) -> None:
    place = tmp_path / "disk"
    (place / "lost+found").mkdir(parents=True)
    empty = call("--json", "bookie", "verify", place)
    (place / "notes.txt").write_text("mine")

    told, shown = call("--json", "bookie", "verify", place), call("bookie", "verify", place)

    assert (empty.code, told.code, shown.code) == (0, 1, 1)
    assert (empty.json["in_the_way"], told.json["in_the_way"]) == ([], ["notes.txt"])
    assert told.json["is_suitable"] is True, "the file system is"
    assert "it holds notes.txt" in shown.out
    assert "can be a bookie" not in shown.out


def test_verify_says_what_held_before_a_check_failed(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "list", lambda *_: [])

    done = call("bookie", "verify", root)

    shown = done.out.splitlines()
    assert done.code == 1
    assert [line.partition(":")[0] for line in shown[:-1]] == ["holds"] * 5
    assert "is missing from the listing" in shown[-1]


def test_verify_refuses_a_file_system_that_overwrites(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(self: LocalStorage, path: str, data: bytes) -> bool:
        (root / path).write_bytes(data)
        return True

    monkeypatch.setattr(LocalStorage, "put_if_absent", put)

    done = call("--json", "bookie", "verify", root)

    assert (done.code, done.json["is_suitable"], done.json["checks"]) == (1, False, [])
    assert "writers of one name were told that they won" in done.json["reason"]


def test_verify_of_no_file_system_at_all_is_a_wrong_call(call: Call) -> None:
    done = call("bookie", "verify", "foo://bucket/1")

    assert (done.code, "no file system is known by the name 'foo'" in done.err) == (2, True)
    assert "s3://bucket/prefix" in done.err


def test_verify_of_a_storage_that_does_not_answer_changed_nothing(
    root: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: LocalStorage, path: str) -> bytes | None:
        raise BookieUnavailableError(
            "it may or may not have taken effect", bookie_id="b:1"
        ) from OSError("no key")

    monkeypatch.setattr(LocalStorage, "read", read)

    done = call("bookie", "verify", root)

    assert (done.code, "OSError: no key. Nothing was changed" in done.err) == (2, True)
    assert "--storage-option" in done.err
    assert "may or may not" not in done.err


def test_an_agent_with_autorecovery_is_a_candidate_for_auditor(
    store: ZooKeeperStore, start: Start, place: Place
) -> None:
    agent = start("serves", "bookie", "start", *place, "--autorecovery")
    eventually(lambda: store.underreplication.auditor() == f"spark-bookkeeper@{BOOKIE}")

    assert "is unregistered" in ended(agent, signal.SIGINT)

    assert store.registrations() == []
    assert store.underreplication.auditor() is None
    assert list(store.underreplication.ledger_ids()) == []


@pytest.mark.full
def test_autorecovery_that_runs_by_itself_serves_its_metrics(
    store: ZooKeeperStore, start: Start
) -> None:
    port = free_port()
    call = ("autorecovery", "start", "--engine", "local", "--metrics-port", port)
    first = start("/metrics are at", *call)
    second = start("autorecovery runs", *call)

    text = page(f"http://127.0.0.1:{port}/metrics")

    assert f"http://127.0.0.1:{port}" in ended(first, signal.SIGTERM)
    assert f"no metrics are served: port {port}" in ended(second, signal.SIGTERM), "it goes on"
    assert "auditor_NUM_UNDER_REPLICATED_LEDGERS 0.0" in text
    assert "replication_worker_underreplicated_seconds" in text
