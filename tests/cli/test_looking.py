"""``bookie space``, ``ledger orphans``, ``ledger history``, ``cluster health``."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.cli.bookie.space import _by_log
from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.runtime import progress
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.cli.conftest import Call


def test_space_and_orphans_and_history_of_a_ledger(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    made = call_own("ledger", "create", "--json").json["ledger_id"]

    orphan = call_own("ledger", "orphans", "--json").json["orphans"]
    events = call_own("ledger", "history", made, "--json").json["events"]
    space = call_own("bookie", "space", "--ledgers", "--json")

    assert [row["ledger_id"] for row in orphan] == [made]
    assert [event["event"] for event in events] == ["created", "closed"]
    assert (space.code, {b["bookie_id"] for b in space.json["bookies"]}) == (
        0,
        set(own_cluster.bookie_ids),
    )
    assert call_own("bookie", "space", "h:1").code == 2
    assert call_own("ledger", "history", 999).code == 2
    assert f"ledger delete {made}" in call_own("ledger", "orphans").out


def test_space_is_summed_by_log(own_cluster: LocalCluster, call_own: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x" * 1000 + "\n")
    call_own("log", "create", "orders")
    for _ in range(2):
        assert call_own("log", "append", "orders", str(tmp_path / "lines")).code == 0

    told = call_own("bookie", "space", "--logs", "--json").json

    by_log = {each["log"]: each for each in told["logs"]}
    assert set(by_log) == {"orders"}
    assert by_log["orders"]["ledgers"] == 2
    assert by_log["orders"]["live_bytes"] == sum(each["live_bytes"] for each in told["bookies"])
    assert by_log["orders"]["live_bytes"] >= 2 * 3 * 1000
    assert by_log["orders"]["files"] == sum(each["files"] for each in told["bookies"]) >= 2 * 3
    assert "orders" in call_own("bookie", "space", "--logs").out


def test_orphans_are_deleted_when_somebody_says_yes(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    kept = call_own("ledger", "create", "--name", "mine", "--json").json["ledger_id"]
    made = call_own("ledger", "create", "--json").json["ledger_id"]

    assert call_own("ledger", "delete-orphans").code == 2, "how old they are is to be said"
    young = call_own("ledger", "delete-orphans", "--older-than", "7d", "--yes", "--json")
    assert (young.code, young.json["rows"]) == (0, [])
    planned = call_own("ledger", "delete-orphans", "--older-than", "0s", "--dry-run", "--json")
    assert [row["ledger_id"] for row in planned.json["rows"]] == [made]
    unasked = call_own("ledger", "delete-orphans", "--older-than", "0s")
    assert (unasked.code, f"to go: {made}" in unasked.err) == (1, True)
    done = call_own("ledger", "delete-orphans", "--older-than", "0s", "--yes", "--json")

    assert [(r["ledger_id"], r["status"]) for r in done.json["rows"]] == [(made, "deleted")]
    left = call_own("ledger", "list", "--json").json["ledgers"]
    assert [row["ledger_id"] for row in left] == [kept]


def test_health_is_exit_code_1_when_a_bookie_that_counts_is_lost(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    made = call_own("ledger", "create", "--json").json["ledger_id"]
    assert call_own("cluster", "health").code == 0
    lost = call_own("ledger", "show", made, "--json").json["fragments"][-1]["ensemble"][0]
    own_cluster.stop_bookie(lost)

    told = call_own("cluster", "health", "--json")
    space = call_own("bookie", "space", lost)

    assert (told.code, told.json["healthy"]) == (1, False)
    assert f"bookie {lost}" in {f["check"] for f in told.json["findings"] if f["remedy"]}
    assert (space.code, "not registered" in space.out) == (1, True)


def test_a_bookie_that_takes_nothing_new_is_not_called_healthy(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    bookie = own_cluster.bookie_ids[0]
    before = call_own("cluster", "health")
    own_cluster.stop_bookie(bookie)

    told, for_programs = call_own("cluster", "health"), call_own("cluster", "health", "--json")

    assert (before.code, before.out.split(":")[0]) == (0, "healthy")
    assert (told.code, told.out.split(":")[0], bookie in told.out) == (0, "warning", True)
    assert (for_programs.json["healthy"], for_programs.json["verdict"]) == (True, "warning")


def test_the_log_with_the_most_bytes_is_first_however_many_files_another_has() -> None:
    few = {"ledger_id": 1, "live_bytes": 900, "garbage_bytes": 0, "orphan_bytes": 0, "files": 1}
    many = {**few, "live_bytes": 100, "files": 5_000}

    rows = _by_log([{"log": "many", **many}, {"log": "few", **few}])

    assert [row["log"] for row in rows] == ["few", "many"]


SIZES = ("total_bytes", "total_inodes")


def test_a_disk_that_bookies_share_is_counted_once(own_cluster: LocalCluster, call: Call) -> None:
    one = call("bookie", "list", "--json").json["bookies"][0]

    told = call("cluster", "info", "--json").json

    assert [told[name] for name in SIZES] == [one[name] for name in SIZES]
    shown = call("cluster", "info").out
    assert f"of {one['total_bytes'] / 2**30:,.1f} GiB" in shown
    assert f"of {one['total_inodes']:,}, shared" in shown


@pytest.fixture
def zookeeper_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers that there is a cluster, and nothing more."""
    require = MemoryStore.require_cluster

    def gone(moment: str, operation: str, subject: str) -> None:
        raise MetadataUnavailableError("ZooKeeper did not answer")

    def then_go(store: MemoryStore) -> None:
        require(store)
        store.faults = gone

    monkeypatch.setattr(MemoryStore, "require_cluster", then_go)


@pytest.mark.usefixtures("zookeeper_goes")
@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "health"),
        ("cluster", "info"),
        ("cluster", "safe-to-lose", "BOOKIE"),
        ("cluster", "report", "--html", "PAGE"),
        ("bookie", "list"),
        ("bookie", "show", "BOOKIE"),
        ("bookie", "space"),
        ("bookie", "cookie", "get", "BOOKIE"),
        ("ledger", "list"),
        ("ledger", "show", 0),
        ("ledger", "history", 0),
        ("ledger", "orphans"),
        ("ledger", "diff", 0),
        ("log", "list"),
        ("log", "show", "a"),
        ("autorecovery", "status"),
        ("autorecovery", "underreplicated"),
        ("autorecovery", "who-is-auditor"),
    ],
)
def test_who_only_looks_changed_nothing_whenever_zookeeper_goes(
    arguments: tuple[object, ...], cluster: LocalCluster, call: Call, tmp_path: Path
) -> None:
    words: dict[object, object] = {"BOOKIE": cluster.bookie_ids[0], "PAGE": tmp_path / "page.html"}

    done = call(*(words.get(word, word) for word in arguments), "--json")

    assert (done.code, done.json["error"]["code"]) == (2, "BOOKKEEPER_METADATA_UNAVAILABLE")
    assert "ZooKeeper" in done.err


@pytest.mark.usefixtures("zookeeper_goes")
def test_who_changes_something_may_have_when_zookeeper_goes(call: Call) -> None:
    assert call("autorecovery", "disable").code == 1


def test_every_listing_shows_that_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(progress, "shown")
    for name in vars(BookKeeper):
        if name.endswith("_arrow") or name in ("doctor", "safe_to_lose"):
            with pytest.raises(NameError, match="shown"):  # which comes first
                getattr(BookKeeper, name)(None)
