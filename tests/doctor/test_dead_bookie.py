"""A bookie that is not registered: what ``doctor`` finds at its root, and what it says to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.autorecovery.names import process_name
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.schema import LEDGERS, MARKER_PATH
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import BookieFullError
from spark_bookkeeper.metadata.store import CLOCK_AHEAD
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.testing.ground import Ground
from tests.autorecovery.seen import audited
from tests.support.autorecovery import written


def findings(ground: Ground) -> dict[str, Diagnosis]:
    return {found.check: found for found in cluster_diagnoses(ground.context)}


@pytest.mark.parametrize(
    ("ahead_ms", "words"),
    [
        (-3_600_000, "ahead of ZooKeeper's"),
        (3_600_000, "behind ZooKeeper's"),
        (-30_000, None),
        (30_000, None),
        (None, None),
    ],
)
def test_a_clock_that_is_not_zookeepers_is_told(
    ground: Ground, ahead_ms: int | None, words: str | None
) -> None:
    ground.cluster.clock_ms = lambda: (
        None if ahead_ms is None else ground.runtime.wall_ms() + ahead_ms
    )

    found = findings(ground).get("clock")

    if words is None:
        assert found is None
    else:
        assert found is not None
        assert (found.verdict, words in found.detail) == ("warning", True)
        assert "nothing else depends on it" in found.detail
    assert not any(
        each.check == "clock" for each in cluster_diagnoses(ground.context, metadata_only=True)
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [("172800", "172,800 s ahead of"), ("-172800", "172,800 s behind"), ("", None), ("junk", None)],
)
def test_the_clock_of_a_bookies_machine_is_told_with_its_name(
    ground: Ground, told: str, words: str | None
) -> None:
    live = ground.context.store.registrations()[0]
    held = ground.cluster.registrations
    (_, holder) = held[live.bookie_id]
    changed = replace(live, properties={**live.properties, CLOCK_AHEAD: told})
    held[live.bookie_id] = changed, holder

    found = [
        each
        for each in cluster_diagnoses(ground.context, metadata_only=True)
        if each.check == f"bookie {live.bookie_id}" and "clock" in each.detail
    ]

    assert [words in each.detail for each in found if words] == ([True] if words else [])
    assert len(found) == (words is not None)


def lose(ground: Ground) -> BookieId:
    """The agent of a bookie that a ledger counts on ends; its storage can still be reached."""
    bookie = written(ground).metadata.last_fragment.ensemble[0]
    ground.end_agent(bookie)
    return bookie


def nothing_happened(root: Path) -> None:
    """Only the agent ended."""


def wiped(root: Path) -> None:
    for each in root.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def formatted_again(root: Path) -> None:
    marker = root / MARKER_PATH
    marker.chmod(0o644)
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"incarnation": "other"}))


def emptied(root: Path) -> None:
    shutil.rmtree(root / LEDGERS)


@pytest.mark.parametrize(
    ("happen", "found", "remedy"),
    [
        (
            nothing_happened,
            "its agent does not run, or does not reach ZooKeeper",
            "bookie start --bookie-id {0} --root",
        ),
        (wiped, "not mounted, or it was wiped", "bookie refill {0}"),
        (formatted_again, "formatted at another time", "bookie recover {0}"),
        (emptied, "what it held was removed", "bookie recover {0}"),
    ],
)
def test_a_lost_bookie_is_told_with_what_is_at_its_root(
    ground: Ground, happen: Callable[[Path], None], found: str, remedy: str
) -> None:
    lost = lose(ground)
    happen(ground.root(lost))
    before = sorted(ground.root(lost).rglob("*"))

    told = findings(ground)[f"bookie {lost}"]

    assert (told.verdict, found in told.detail) == ("problem", True), told
    assert told.detail.startswith("lost: not registered; its storage was file://")
    assert remedy.format(lost) in str(told.remedy)
    assert sorted(ground.root(lost).rglob("*")) == before, "looking changed it"


def test_a_wiped_bookie_that_no_ledger_names_is_not_told_to_be_started(ground: Ground) -> None:
    one, other = ground.bookie_ids[:2]
    for bookie in (one, other):
        ground.end_agent(bookie)
    wiped(ground.root(one))

    found = findings(ground)

    told, fine = found[f"bookie {one}"], found[f"bookie {other}"]
    assert (told.verdict, fine.verdict) == ("warning", "warning")
    assert "not mounted, or it was wiped" in told.detail
    assert str(told.remedy).startswith("bring back its storage")
    assert str(fine.remedy).startswith("start its agent again")
    for bookie in (one, other):
        assert f"bookie cookie delete {bookie}" in str(found[f"bookie {bookie}"].remedy)


def test_a_lost_bookie_whose_storage_gives_no_answer_is_told_so(ground: Ground) -> None:
    lost = lose(ground)
    ground.stop(lost)

    told = findings(ground)[f"bookie {lost}"]

    assert (told.verdict, "no answer" in told.detail) == ("problem", True)
    assert f"bookie recover {lost} --skip-open-ledgers --delete-cookie" in str(told.remedy)


def test_where_only_the_metadata_is_asked_no_storage_is(ground: Ground) -> None:
    lost = lose(ground)
    ground.forget()

    told = {d.check: d for d in cluster_diagnoses(ground.context, metadata_only=True)}

    assert told[f"bookie {lost}"].verdict == "problem"
    assert not [step for step in ground.steps if step.place == lost]


def test_a_full_disk_is_told_as_full_and_not_as_out_of_reach(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ground.bookie_ids[0]

    def probe(partition: object, token: object) -> None:
        raise BookieFullError("No space left on device", bookie_id=full)

    monkeypatch.setattr(Partition, "probe", probe)
    told = findings(ground)[f"bookie {full}"]

    assert (told.verdict, "so full" in told.detail) == ("problem", True)
    assert f"bookie gc {full}" in str(told.remedy)
    assert "reach" not in str(told.remedy)


def test_whatever_needs_care_has_a_command_with_every_bookie_in_it(ground: Ground) -> None:
    ensemble = written(ground).metadata.last_fragment.ensemble
    for bookie in ensemble[:2]:
        ground.format(bookie)
    before = findings(ground)
    for bookie in ensemble[:2]:
        ground.stop(bookie)
    after = findings(ground)

    checks = ("fragments on replaced disks", "entries below their ack quorum")
    for found in (before[checks[0]], before[checks[1]]):
        for bookie in ensemble[:2]:
            assert f"spark-bookkeeper bookie refill {bookie}" in (found.remedy or ""), found
    first, second = sorted(ensemble[:2])
    wanted = f"spark-bookkeeper bookie recover {first} --bookie {second}"
    for check in ("fragments on lost bookies", "entries below their ack quorum"):
        assert wanted in (after[check].remedy or ""), after[check]


def test_what_autorecovery_is_at_work_on_is_not_for_a_person_to_recover(ground: Ground) -> None:
    process = audited(ground, process_name().removeprefix("spark-bookkeeper@"))
    lost = lose(ground)
    wiped(ground.root(lost))
    checks = (f"bookie {lost}", "fragments on lost bookies")

    before = findings(ground)
    process.audit()
    found = findings(ground)

    assert "takes it up" in str(before[checks[1]].remedy), "it is not published yet"
    for check in checks:
        remedy = str(found[check].remedy)
        assert "autorecovery is at work on it" in remedy, remedy
        assert "`spark-bookkeeper autorecovery underreplicated` shows" in remedy
        assert found[check].verdict == "problem"
    assert "bookie recover" not in str(found[checks[1]].remedy)
    assert f"bookie refill {lost}" in str(found[checks[0]].remedy)
    ground.context.store.underreplication.disable()
    assert f"bookie recover {lost}" in str(findings(ground)[checks[1]].remedy)


def test_nobody_at_work_is_a_warning_where_ledgers_lack_copies(ground: Ground) -> None:
    assert findings(ground)["autorecovery"].verdict == "ok"
    lose(ground)

    assert (found := findings(ground)["autorecovery"]).verdict == "warning"
    assert "1 name a lost bookie" in found.detail
    assert "autorecovery start" in str(found.remedy)
    ground.context.store.underreplication.disable()
    assert (found := findings(ground)["autorecovery"]).verdict == "warning"
    assert "autorecovery enable" in str(found.remedy)
    ground.context.store.underreplication.enable()
    audited(ground, process_name().removeprefix("spark-bookkeeper@"))
    assert findings(ground)["autorecovery"].verdict == "ok"
