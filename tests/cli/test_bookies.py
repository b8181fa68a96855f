"""``spark-bookkeeper bookie list | show | recover`` and ``cluster``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from spark_bookkeeper.cli.cluster_facts import look
from spark_bookkeeper.cli.cluster_page import render
from spark_bookkeeper.cli.shell.remedies import pasteable
from spark_bookkeeper.client.views import BOOKIES
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.protocol.ids import BookieId
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark


def test_every_bookie_is_listed(cluster: LocalCluster, call: Call) -> None:
    told = call("bookie", "list", "--json").json["bookies"]

    assert [row["bookie_id"] for row in told] == cluster.bookie_ids
    assert {tuple(row) for row in told} == {tuple(BOOKIES.names)}
    assert {row["state"] for row in told} == {"writable"}
    assert call("bookie", "list", "--state", "lost", "--json").json == {"bookies": []}


def test_a_bookie_is_shown_with_its_cookie_and_marker(cluster: LocalCluster, call: Call) -> None:
    told = call("bookie", "show", cluster.bookie_ids[0], "--json").json

    assert told["storage"] == "answers"
    assert told["incarnation"] == told["cookie_incarnation"] == told["marker_incarnation"]
    assert told["cookie_instance_id"] == told["marker_instance_id"]
    (row, *_) = call("bookie", "list", "--json").json["bookies"]
    assert (row["free_inodes"] is None) == (told["total_inodes"] is None), "btrfs counts none"
    assert (row["free_inodes"] or 0) <= (row["total_inodes"] or 0)
    assert "free inodes" in call("bookie", "list").out


def test_a_bookie_shows_when_it_was_scrubbed_last(cluster: LocalCluster, call: Call) -> None:
    bookie = cluster.bookie_ids[1]
    before = call("bookie", "show", bookie, "--json").json
    assert (before["scrubbed_at"], before["scrub_rounds"]) == (None, 0)
    shown = call("bookie", "show", bookie).out
    for what, value in (("scrubbed at", "never"), ("readonly reason", "none"), ("free GiB", ".")):
        assert any(what in line and value in line for line in shown.splitlines())
    assert "None" not in shown

    assert call("bookie", "scrub", bookie).code == 0

    after = call("bookie", "show", bookie, "--json").json
    assert after["scrub_rounds"] == 1
    assert datetime.fromisoformat(after["scrubbed_at"]).year > 2000
    assert "scrubbed at" in call("bookie", "show", bookie).out


WRITABLE = "spark-bookkeeper bookie set-writable"


def test_draining_is_asked_for_and_changes_nothing_before(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    ledger_id = call_own("ledger", "append", numbers, "-e", 3, "--json").json["ledger_id"]
    bookie = call_own("ledger", "show", ledger_id, "--json").json["bookies"][0]
    opened = call_own("ledger", "append", numbers, "-e", 4, "--leave-open", "--json").json

    def state() -> str:
        return str(call_own("bookie", "show", bookie, "--json").json["state"])

    asked = call_own("bookie", "drain", bookie, "--no-spark")  # nobody says yes
    assert (asked.code, f"Make {bookie} read-only" in asked.out + asked.err) == (1, True)
    asked = call_own("bookie", "decommission", bookie, "--drain", "--no-spark")
    assert (asked.code, f"Make {bookie} read-only" in asked.err) == (1, True)
    assert "forget" not in asked.err  # its cookie stays while it runs
    is_on_it = bookie in call_own("ledger", "show", opened["ledger_id"], "--json").json["bookies"]
    assert (f"stops their writers: ledger {opened['ledger_id']}" in asked.err) == is_on_it
    assert state() == "writable"

    done = call_own("bookie", "drain", bookie, "--no-spark", "--yes", "--json")
    assert (done.code, state()) == (0, "readonly")
    typed = pasteable(f"{WRITABLE} {bookie}", ("--metadata-uri", own_cluster.metadata_uri))
    assert f"stays read-only until it is told otherwise: {typed}" in done.err
    again = call_own("bookie", "decommission", bookie, "--drain", "--no-spark", "--yes", "--json")
    assert (again.code, "stop its agent" in again.json["blocked_by"]) == (1, True)
    assert "nothing was changed" not in again.err
    assert typed in again.err
    assert bookie not in call_own("ledger", "show", ledger_id, "--json").json["bookies"]


def test_the_ledgers_of_a_bookie_are_shown_as_ids_and_not_as_a_number(
    cluster: LocalCluster, call: Call, numbers: Path
) -> None:
    ledger_id = call("ledger", "append", numbers, "-e", 5, "--json").json["ledger_id"]

    shown = call("bookie", "show", cluster.bookie_ids[0]).out

    (line,) = (line for line in shown.splitlines() if "ledger ids" in line)
    assert str(ledger_id) in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["127.0.0.1:3181", "nonsense"],
        ["127.0.0.1:3181", "--bookie", "127.0.0.1:99999"],
    ],
)
def test_what_is_no_name_of_a_bookie_is_refused_before_anything_is_asked(
    call_at: Callable[[str], Call], arguments: list[str]
) -> None:
    done = call_at("127.0.0.1:1")("bookie", "recover", *arguments, "--no-spark")

    assert (done.code, "is not of the form host:port" in done.err) == (2, True)


def test_a_lost_bookie_is_recovered_and_forgotten(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    closed = call_own("ledger", "append", numbers, "-e", 4, "--json").json["ledger_id"]
    opened = call_own("ledger", "append", numbers, "-e", 5, "--leave-open", "--json").json
    lost = call_own("ledger", "show", closed, "--json").json["bookies"][0]
    own_cluster.stop_bookie(lost, destroy=True)

    asked = call_own("bookie", "recover", lost, "--no-spark")
    planned = call_own("bookie", "recover", lost, "--dry-run", "--json")
    plan = planned.json
    # All five bookies are in the second ledger's ensemble: nobody is left to take the place.
    statuses = {(row["ledger_id"], row["action"]): row["status"] for row in plan["rows"]}
    assert (planned.code, plan["complete"], statuses) == (
        1,
        False,
        {
            (closed, "copy"): "planned",
            (opened["ledger_id"], "recover"): "planned",
            (opened["ledger_id"], "copy"): "left",
        },
    )
    (target,) = (
        row["target"] for row in plan["rows"] if row["status"] == "planned" and row["source"]
    )
    assert target in set(own_cluster.bookie_ids) - {lost}
    shown = call_own("bookie", "recover", lost, "--dry-run").out
    assert target in shown
    skipping = call_own("bookie", "recover", lost, "--dry-run", "--skip-open-ledgers")
    assert (skipping.code, "1 row is not as it should be" in skipping.out) == (1, True)
    state = call_own("ledger", "show", opened["ledger_id"], "--json").json["state"]
    assert (asked.code, state) == (1, "OPEN")

    done = call_own(
        "bookie", "recover", lost, "--ledger", closed, "--no-spark", "--yes", "--delete-cookie"
    )
    assert (done.code, f"still counts on bookie {lost}" in done.err) == (1, True)

    full = call_own("bookie", "recover", lost, "--no-spark", "--yes", "--json")
    assert full.code == 1
    assert [row["status"] for row in full.json["rows"] if row["action"] == "copy"] == ["left"]

    own_cluster.add_bookie()
    last = call_own("bookie", "recover", lost, "--no-spark", "--yes", "--delete-cookie", "--json")
    assert {row["action"] for row in plan["rows"]} == {"copy", "recover"}
    assert (last.code, last.json["complete"]) == (0, True)
    assert lost not in {
        row["bookie_id"] for row in call_own("bookie", "list", "--json").json["bookies"]
    }
    for ledger_id in (closed, opened["ledger_id"]):
        assert call_own("ledger", "check", ledger_id, "--percentage", 100, "--no-spark").code == 0


def test_a_bookie_is_made_readonly_by_hand_for_a_reason_and_writable_again(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    bookie = own_cluster.bookie_ids[0]

    made = call_own("bookie", "set-readonly", bookie, "--reason", "new disk")
    own_cluster.agent(bookie).step()
    listed = call_own("bookie", "list", "--state", "readonly", "--json").json["bookies"]
    shown = call_own("bookie", "show", bookie, "--json").json
    kept = call_own("bookie", "set-readonly", bookie)
    replaced = call_own("bookie", "set-readonly", bookie, "--reason", "moves")
    told = call_own("bookie", "set-readonly", bookie, "--reason", "noise", "--json").json
    back = call_own("bookie", "set-writable", bookie, "--json")
    again = call_own("bookie", "set-writable", bookie)
    own_cluster.agent(bookie).step()

    assert (made.code, f"bookie {bookie} is to be read-only" in made.out) == (0, True)
    assert [(b["bookie_id"], b["readonly_reason"]) for b in listed] == [
        (bookie, "set by hand: new disk")
    ]
    assert (shown["state"], shown["readonly_by_hand"]) == ("readonly", "new disk")
    assert (kept.code, "the reason stays: new disk" in kept.out) == (0, True)
    assert (replaced.code, "the reason was: new disk" in replaced.out) == (0, True)
    assert told == {
        "bookie_id": bookie,
        "readonly_by_hand": "noise",
        "readonly_by_hand_before": "moves",
    }
    assert (back.code, back.json["was_readonly_by_hand"]) == (0, True)
    assert "nothing was changed" in again.out
    assert call_own("bookie", "show", bookie, "--json").json["state"] == "writable"
    assert call_own("bookie", "set-readonly", "10.9.9.9:3181").code == 2


def test_a_cluster_is_summed_up(cluster: LocalCluster, call: Call, numbers: Path) -> None:
    call("ledger", "append", numbers)

    told = call("cluster", "info", "--json").json

    assert told["bookies"] == {"writable": 5, "readonly": 0, "lost": 0}
    assert told["ledgers"]["CLOSED"] >= 1
    assert told["entries"] >= 100
    assert "5 writable" in call("cluster", "info").out


def test_a_cluster_is_made_once(cluster: LocalCluster, call_at: Callable[[str], Call]) -> None:
    call = call_at(cluster.metadata_uri.replace("/ledgers", "/made-here"))

    made = call("cluster", "init", "--json")
    again = call("cluster", "init")

    assert (made.code, len(made.json["instance_id"])) == (0, 36)
    assert again.code == 2
    assert call("cluster", "info", "--json").json["instance_id"] == made.json["instance_id"]


@pytest.mark.integration
def test_a_bookie_whose_disk_was_replaced_is_formatted_started_and_filled_again(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    """The whole story, with a real agent whose root was wiped."""
    closed = call_own("ledger", "append", numbers, "-e", 4, "--json").json["ledger_id"]
    opened = call_own("ledger", "append", numbers, "-e", 5, "--leave-open", "--json").json
    wiped = BookieId(call_own("ledger", "show", closed, "--json").json["bookies"][0])
    root = own_cluster.root_of(wiped)
    own_cluster.stop_bookie(wiped, destroy=True)
    root.mkdir()

    formatting = ["bookie", "format", "--bookie-id", wiped, "--root", root, "--yes"]
    refused = call_own(*formatting)
    assert (refused.code, "may hold the last good copy" in refused.err) == (2, True)
    unready = call_own("bookie", "refill", wiped, "--no-spark", "--yes")
    assert (unready.code, "--replaced" in unready.err) == (2, True)
    formatted = call_own(*formatting, "--replaced")
    assert (formatted.code, "autorecovery disable" in formatted.err) == (0, True)
    own_cluster.start_bookie(wiped)
    unwell = call_own("doctor", "--json")
    assert any("bookie refill" in (each["remedy"] or "") for each in unwell.json["findings"])

    listed = call_own("bookie", "list", "--json").json["bookies"]
    assert {b["bookie_id"]: b["limbo_ledgers"] for b in listed if b["limbo_ledgers"]} == {wiped: 2}
    assert f"bookie refill {wiped}" in call_own("bookie", "list").out
    assert f"bookie refill {wiped}" in call_own("bookie", "show", wiped).out
    assert call_own("bookie", "show", wiped, "--json").json["limbo_ledgers"] > 0
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        facts = look(bk)
    lacking = {each.ledger_id: each.missing for each in facts.lacking}
    assert lacking == dict.fromkeys((closed, opened["ledger_id"]), (wiped,))
    assert all(f"bookie refill {wiped}" in each.reason for each in facts.lacking)
    assert facts.diagnoses[0].check == "fragments on replaced disks"
    page = render(facts)
    assert f"{wiped}</code> (in limbo)" in page
    assert "names 1 bookie in limbo" in page

    asked = call_own("bookie", "refill", wiped, "--no-spark")  # nobody says yes
    planned = call_own("bookie", "refill", wiped, "--dry-run", "--json")
    done = call_own("bookie", "refill", wiped, "--no-spark", "--yes", "--json")

    assert (asked.code, planned.code, done.code) == (1, 0, 0)
    assert {row["status"] for row in planned.json["rows"]} == {"planned"}
    copies = {r["ledger_id"]: r["status"] for r in done.json["rows"] if r["action"] == "copy"}
    assert copies == {closed: "replicated", opened["ledger_id"]: "replicated"}
    checked = call_own("ledger", "check", "--percentage", 100, "--no-spark", "--json")
    assert (checked.code, checked.json["complete"]) == (0, True)


def test_ledgers_move_to_a_new_bookie_as_the_plan_said(
    own_cluster: LocalCluster, call_own: Call, numbers: Path, tmp_path: Path
) -> None:
    for _ in range(4):
        call_own("ledger", "append", numbers, "-e", 5, "--json")
    new = own_cluster.add_bookie()
    moving = ["bookie", "rebalance", new, "--spare-bytes", 0, "--no-spark"]

    plan = call_own(*moving, "--dry-run", "--json").json
    asked = call_own(*moving)  # nobody says yes
    file = tmp_path / "moves.jsonl"
    done = call_own(*moving, "--yes", "--json", "--report-file", file)

    assert {row["target"] for row in plan["rows"]} == {new}
    assert asked.code == 1
    assert (done.code, done.json["complete"], done.json["rows"]) == (0, True, [])
    moved = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(r["ledger_id"], r["source"]) for r in moved] == [
        (r["ledger_id"], r["source"]) for r in plan["rows"]
    ]
    assert "its part" in call_own(*moving, "--dry-run").out
    wrong = call_own(*moving, "--report-file", tmp_path / "moves.txt")
    assert (wrong.code, ".parquet" in wrong.err) == (2, True)
