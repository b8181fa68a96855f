"""One node in ZooKeeper that nobody can decode: it is named, and everything else goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from tests.cli.conftest import Call

pytestmark = pytest.mark.integration

STRANGER = BookieId("10.0.0.9:3181")
BROKEN = LedgerId(77)


@contextmanager
def raw(cluster: LocalCluster) -> Iterator[tuple[KazooClient, str]]:
    uri = parse_metadata_uri(cluster.metadata_uri)
    client = KazooClient(uri.hosts)
    client.start()
    try:
        yield client, uri.root
    finally:
        client.stop()
        client.close()


def test_a_broken_ledger_cookie_and_registration_hold_up_nothing_else(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    def told(*arguments: Any) -> Any:
        return call_own(*arguments, "--json")

    with raw(own_cluster) as (client, tree):
        client.create(paths.ledger(tree, BROKEN), b"garbage", makepath=True)
        client.create(paths.cookie(tree, STRANGER), b"garbage", makepath=True)
        client.create(paths.registration(tree, STRANGER, readonly=False), b"\xff", ephemeral=True)

        good = told("ledger", "append", numbers, "--leave-open").json["ledger_id"]
        listed = {row["ledger_id"]: row["state"] for row in told("ledger", "list").json["ledgers"]}
        chosen = told("ledger", "list", "--state", "unreadable").json["ledgers"]
        for_people = call_own("ledger", "list")
        bookies = {row["bookie_id"] for row in told("bookie", "list").json["bookies"]}
        shown = call_own("ledger", "show", BROKEN)
        recovered = told("ledger", "recover", "--yes", "--no-spark")
        doctor = told("doctor")
        info, summed = told("cluster", "info").json, call_own("cluster", "info").out
        lost = own_cluster.bookie_ids[0]
        look = told("bookie", "show", lost)
        own_cluster.stop_bookie(lost, destroy=True)
        given_up = call_own("bookie", "recover", lost, "--yes", "--no-spark", "--delete-cookie")
        root = own_cluster.root_of(lost).with_name("another")
        root.mkdir()
        formatted = call_own("bookie", "format", "--bookie-id", lost, "--root", root, "--yes")
        kept = call_own("bookie", "cookie", "delete", lost)
        safe = call_own("cluster", "safe-to-lose", own_cluster.bookie_ids[1])
        (found,) = [
            each
            for each in told("cluster", "health").json["findings"]
            if each["check"] == f"bookie {lost}"
        ]
        (insists,) = re.findall("(bookie cookie delete [^`]+)`", kept.err)
        unanswered = call_own(*insists.split())
        forgotten = call_own(*insists.split(), "--yes", "--json")

    assert listed == {good: "OPEN", BROKEN: "UNREADABLE"}
    assert [row["ledger_id"] for row in chosen] == [BROKEN]
    assert (for_people.code, "UNREADABLE" in for_people.out) == (0, True), for_people.err
    assert info["ledgers"]["UNREADABLE"] == 1
    assert "of 1 ledger nothing is known" in summed
    assert STRANGER in bookies
    assert (shown.code, "garbage" in shown.err) == (1, True)
    assert {(row["ledger_id"], row["status"]) for row in recovered.json["rows"]} == {
        (good, "closed"),
        (BROKEN, "left"),
    }
    assert recovered.code == 1
    problems = [f for f in doctor.json["findings"] if f["verdict"] == "problem"]
    assert any("garbage" in f["detail"] and f["check"] == "ledger metadata" for f in problems)
    assert doctor.code == 1
    assert (look.code, look.json["state"]) == (0, "writable")
    assert (given_up.code, "not everything could be done" in given_up.err) == (1, True)
    assert formatted.code == 2
    assert "garbage" in formatted.err, "that ledger may count on this bookie"
    assert (kept.code, "garbage" in kept.err) == (2, True)
    assert (safe.code, "of 1 ledger nobody can say" in safe.out) == (1, True)
    assert "may count on it" in found["remedy"]
    assert unanswered.code == 1
    assert (forgotten.code, forgotten.json["deleted"]) == (0, True)


def test_one_round_beside_a_bookie_copies_there_and_says_what_it_could_not_look_at(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    def members() -> dict[int, set[str]]:
        rows = call_own("ledger", "list", "--state", "closed", "--json").json["ledgers"]
        return {row["ledger_id"]: set(row["bookies"]) for row in rows}

    lost, beside = own_cluster.bookie_ids[:2]
    while not any(lost in held and beside not in held for held in members().values()):
        call_own("ledger", "append", numbers)
    before = members()
    own_cluster.stop_bookie(lost, destroy=True)
    with raw(own_cluster) as (client, tree):
        client.create(paths.ledger(tree, BROKEN), b"garbage", makepath=True)

        done = call_own("autorecovery", "start", "--once", "--engine", "local", "--beside", beside)

    published = [held for held in before.values() if lost in held]
    assert f"published: {len(published)} ledger" in done.err
    assert (done.code, "garbage" in done.out) == (1, True)
    for ledger_id, held in members().items():
        if lost in before[ledger_id] and beside not in before[ledger_id]:
            assert held == before[ledger_id] - {lost} | {beside}
        else:
            assert held == before[ledger_id], "it is healthy, or for another bookie's worker"
