"""Nodes with junk in them stop nothing but themselves, whatever the junk and whichever the node.

Every round puts junk into nodes of every kind at once, does everything that a cluster is asked
for, and compares what is told of the healthy ledgers and bookies with what was told without junk.
A round is repeated with ``JUNK_SEED=<seed> python -m pytest tests/integration/test_junk.py``.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.metadata.zookeeper import link, paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.storage.local import LocalStorage
from tests.support import junk
from tests.support.rows import wait_for_every_copy
from tests.support.sessions import connect_without_spark
from tests.support.znodes import ZNodes, client_class
from tests.worlds import first_of

T = TypeVar("T")

ROUNDS: Final = 24
SOMEBODY: Final = 1 << 40
"""A session of another program."""

URI: Final = "zk://nowhere:2181/ledgers"

STATUSES: Final = {
    *("replicated", "closed", "gone", "no longer needed", "healthy", "planned", "left"),
    *("unrecoverable", "missing", "damaged", "unreadable", "pending", "unavailable"),
}


@dataclass
class JunkWorld:
    """A cluster with healthy ledgers, one lost bookie, and a place for junk."""

    znodes: ZNodes
    bk: BookKeeper
    healthy: list[LedgerId]
    is_open: LedgerId
    lost: BookieId
    alive: list[BookieId]
    before: dict[str, Any]
    """The nodes as they were without junk."""
    told: dict[str, Any]
    """What was told then."""

    def put_back(self) -> None:
        self.znodes.nodes = copy.deepcopy(self.before)
        self.znodes.put(paths.available(junk.ROOT), b"")  # whoever watches is told


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JunkWorld]:
    with pytest.MonkeyPatch.context() as patch:
        znodes = ZNodes()
        patch.setattr(link, "Client", client_class(znodes))
        # So that a seed finds the same bytes to spoil in every run.
        tokens = random.Random("tokens")
        patch.setattr(ThreadRuntime, "token", lambda _: f"{tokens.getrandbits(128):032x}")
        patch.setattr(ThreadRuntime, "wall_ms", lambda _: 1_700_000_000_000)
        patch.setattr(ThreadRuntime, "shuffle", lambda _, items: items.sort(key=str))
        runtime = ThreadRuntime()
        agent = ZooKeeperStore(URI, token=runtime.token)
        agent.initialize_cluster()
        names = [BookieId(f"127.0.0.1:{3181 + n}") for n in range(5)]
        for name in names:
            root = tmp_path_factory.mktemp("bookie")
            storage = LocalStorage(str(root))
            marker = Marker(name, runtime.token(), agent.instance_id())
            Partition(storage).furnish(marker)
            agent.write_cookie(
                Cookie(name, storage.uri, marker.incarnation, agent.instance_id()), None
            )
            agent.register(Registration(name, storage.uri, marker.incarnation))
        with connect_without_spark(URI) as bk:
            healthy: list[LedgerId] = []
            for count in (3, 40, 0):
                with bk.create_ledger(name="healthy") as writer:
                    for number in range(count):
                        writer.append(b"%d" % number)
                healthy.append(writer.ledger_id)
            writer = bk.create_ledger()
            for number in range(5):
                writer.append(b"%d" % number)
            wait_for_every_copy(writer)
            writer.abandon()
            lost = writer.metadata.fragments[0].ensemble[0]
            agent.unregister(lost)
            made = JunkWorld(
                znodes, bk, healthy, writer.ledger_id, lost,
                [n for n in names if n != lost], copy.deepcopy(znodes.nodes), {},
            )  # fmt: skip
            made.told = look(made)
            made.put_back()
            yield made
        agent.close()


def look(world: JunkWorld) -> dict[str, Any]:
    """All that is told of the healthy ledgers and bookies, by whoever can be asked."""
    bk = world.bk
    ours = {*world.healthy, world.is_open}
    known = {*world.alive, world.lost}

    def rows(report: Report) -> list[tuple[Any, ...]]:
        assert {row.status for row in report.rows} <= STATUSES
        json.dumps(report.to_dict())
        report.to_arrow()
        return sorted(
            (r.ledger_id, r.first_entry_id or 0, r.source or "", r.action, r.status, r.entries)
            for r in report.rows
            if r.ledger_id in ours
        )

    told: dict[str, Any] = {
        "ledgers": [
            r for r in bk.ledgers_arrow().select(["ledger_id", "state", "bookies"]).to_pylist()
            if r["ledger_id"] in ours
        ],
        "bookies": [
            (r["bookie_id"], r["state"], r["root_uri"] if r["state"] != "lost" else "")
            for r in bk.bookies_arrow().to_pylist() if r["bookie_id"] in known
        ],
        "doctor": sorted(
            (f.check, f.verdict)
            for f in cluster_diagnoses(bk.context)
            if f.check.removeprefix("bookie ") in known
        ),
        "read": [bk.open_ledger(i).read_arrow().num_rows for i in world.healthy[:2]],
        "check": rows(bk.check_ledgers(percentage=100)),
        "check a little": rows(bk.check_ledgers()),
        "planned": rows(bk.recover_bookie(world.lost, dry_run=True)),
        "repair": rows(bk.repair_ledgers()),
        "recover": rows(bk.recover_ledgers()),
        "recover bookie": rows(bk.recover_bookie(world.lost)),
        "again": rows(bk.recover_bookie(world.lost)),
    }  # fmt: skip
    with bk.create_ledger() as writer:
        writer.append(b"new")
    told["created"] = bk.open_ledger(writer.ledger_id).read_arrow().num_rows
    return told


def ours_only(call: Callable[[], T]) -> T | BookKeeperError:
    """What a call about junk ends with: a result, or an error of ours that says something."""
    try:
        return call()
    except BookKeeperError as error:
        return error


def plant(world: JunkWorld, dice: random.Random) -> dict[str, bytes]:
    """Put junk into nodes of every kind."""
    node = {path: found.data for path, found in world.before.items()}
    ids = [*world.healthy[:2], world.is_open]
    planted = junk.nodes(dice, node, ids, world.alive, world.lost)
    for path, data in planted.items():
        is_of_bookie = path.startswith(paths.available(junk.ROOT))
        world.znodes.put(path, data, owner=SOMEBODY if is_of_bookie else 0)
    return planted


def about_junk(world: JunkWorld, planted: dict[str, bytes]) -> None:
    """What is asked of the junk itself ends with a result, or with an error of ours."""
    bk = world.bk
    listed = {row["ledger_id"] for row in bk.ledgers_arrow().to_pylist()}
    assert {*junk.LEDGERS, *world.healthy} <= listed
    for ledger_id in junk.LEDGERS:
        info = ours_only(lambda i=ledger_id: bk.ledger(i))  # type: ignore[misc]
        if not isinstance(info, BookKeeperError):
            info.fragments_arrow()
            info._repr_html_()
            ours_only(info.slots_arrow)
            ours_only(lambda i=ledger_id: bk.diff_replicas_arrow(i))  # type: ignore[misc]
        ours_only(lambda i=ledger_id: bk.history_arrow(i))  # type: ignore[misc]
        reader = ours_only(lambda i=ledger_id: bk.open_ledger_no_recovery(i))  # type: ignore[misc]
        if not isinstance(reader, BookKeeperError):
            ours_only(lambda r=reader: list(r.entries(0, 0)))  # type: ignore[misc]
        ours_only(lambda i=ledger_id: bk.open_ledger(i))  # type: ignore[misc]
    bk.space_arrow()
    bk.orphans_arrow()
    for diagnosis in cluster_diagnoses(bk.context):
        assert isinstance(diagnosis, Diagnosis)


def doomed(world: JunkWorld) -> None:
    """Junk can be deleted."""
    for ledger_id in junk.LEDGERS:
        world.bk.delete_ledger(ledger_id, even_if_alive=True)
    left = {row["ledger_id"] for row in world.bk.ledgers_arrow().to_pylist()}
    assert not left & {*junk.LEDGERS}


def one_round(world: JunkWorld, seed: str) -> None:
    dice = random.Random(seed)
    try:
        planted = plant(world, dice)
        print(f"JUNK_SEED={seed}")  # shown when it fails
        for path, data in planted.items():
            print(f"  {path}: {data[:300]!r}")
        about_junk(world, planted)
        world.put_back()
        for path, data in planted.items():
            world.znodes.put(path, data)
        told = look(world)
        assert {k: (told[k], v) for k, v in world.told.items() if told[k] != v} == {}
        doomed(world)
    finally:
        world.put_back()


def seeds(count: int) -> list[object]:
    """Return ``count`` seeds; the plain run takes the first. ``JUNK_SEED`` replaces them."""
    given = os.environ.get("JUNK_SEED")
    if given:
        return [given]
    return first_of(*(f"junk-{n}" for n in range(count)))


@pytest.mark.parametrize("seed", seeds(ROUNDS))
def test_junk_stops_nothing_but_itself(world: JunkWorld, seed: str) -> None:
    one_round(world, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(200))
def test_much_more_junk_stops_nothing_but_itself(world: JunkWorld, number: int) -> None:
    one_round(world, f"junk-{number}-long")


@pytest.mark.parametrize("seed", seeds(3))
def test_commands_go_on_beside_junk(
    world: JunkWorld, seed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dice = random.Random(f"commands-{seed}")
    commands = (
        *("ledger list", "bookie list", "cluster info", "doctor", "ledger recover --dry-run"),
        *("ledger check --no-spark --percentage 100", "ledger repair --no-spark --dry-run"),
        f"bookie recover {world.lost} --dry-run",
        f"bookie recover {world.lost} --no-spark --yes --delete-cookie",
        "ledger recover --no-spark --yes",
        *(f"bookie show {name}" for name in (*world.alive[:1], *junk.STRANGERS)),
        *(f"ledger show {ledger_id}" for ledger_id in (world.healthy[0], *junk.LEDGERS)),
        f"ledger check --no-spark {world.healthy[0]} {junk.LEDGERS[0]}",
        *(f"ledger delete --yes {ledger_id}" for ledger_id in junk.LEDGERS),
    )
    try:
        planted = plant(world, dice)
        for command in commands:
            for more in ([], ["--json"]):
                capsys.readouterr()
                code = run(["--metadata-uri", URI, *command.split(), *more])
                said = capsys.readouterr()
                about = any(str(name) in command for name in (*junk.LEDGERS, *junk.STRANGERS))
                assert "Traceback" not in said.err + said.out, (command, said.err, planted)
                assert code in (0, 1) or about, (command, said.err, planted)
                if more and said.out:
                    json.loads(said.out)
    finally:
        world.put_back()


def test_a_cookie_with_junk_in_it_takes_no_ledger_of_that_bookie_along(world: JunkWorld) -> None:
    try:
        world.znodes.put(paths.cookie(junk.ROOT, world.lost), b"\xff")
        with connect_without_spark(URI) as fresh:  # which never knew where that bookie was
            assert fresh.open_ledger(world.is_open).read_arrow().num_rows == 5
            assert fresh.recover_bookie(world.lost).is_complete
            rows = fresh.check_ledgers(percentage=100).rows
        assert {row.status for row in rows} == {"healthy"}
    finally:
        world.put_back()


@pytest.mark.parametrize("seed", range(6))
def test_a_registration_with_junk_in_it_takes_only_that_bookie_along(
    world: JunkWorld, seed: int
) -> None:
    dice = random.Random(f"registration-{seed}")
    spoilt, other = world.alive[:2]
    path = paths.registration(junk.ROOT, spoilt, readonly=False)
    real, another = (
        world.before[paths.registration(junk.ROOT, b, readonly=False)].data for b in (spoilt, other)
    )
    try:
        data = junk.registration(dice, real, another)
        print(data)  # shown when it fails
        world.znodes.put(path, data)
        with connect_without_spark(URI) as fresh:
            with fresh.create_ledger() as writer:
                writer.append(b"new")
            for ledger_id, rows in zip(
                (*world.healthy[:2], world.is_open), (3, 40, 5), strict=True
            ):
                assert fresh.open_ledger(ledger_id).read_arrow().num_rows == rows
            states = {r["bookie_id"]: r["state"] for r in fresh.bookies_arrow().to_pylist()}
            assert states[spoilt] != "lost"
            report = fresh.check_ledgers()
            assert {r.status for r in report.rows if r.source not in (spoilt, world.lost)} == {
                "healthy"
            }
            assert {r.status for r in fresh.recover_bookie(world.lost).rows} <= {
                "replicated",
                "no longer needed",
            }
    finally:
        world.put_back()
