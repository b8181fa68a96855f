"""Writers that are frozen or killed in the middle of their work, and what others find then."""

from __future__ import annotations

import random
import time

import pytest

from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.actors import Actor
from spark_bookkeeper.testing.rows import check_numbered_ledger
from tests.worlds import first_of

pytestmark = pytest.mark.integration

KINDS = ("both", "small", "bulk")


@pytest.mark.parametrize(
    ("kind", "quorum"), first_of(*((k, q) for q in ("3/3/2", "5/3/2") for k in KINDS))
)
def test_a_frozen_writer_that_goes_on_after_a_recovery_is_told_that_it_was_fenced(
    cluster: LocalCluster, bk: BookKeeper, kind: str, quorum: str
) -> None:
    with Actor("write", cluster.metadata_uri, "--kind", kind, "--quorum", quorum) as writer:
        writer.wait_for("rows", at_least=300)
        writer.freeze()
        last = bk.open_ledger(writer.ledger_id).last_add_confirmed
        writer.thaw()
        error, text = writer.error()
        code, noise = writer.wait()

        assert error == "LedgerFencedError"
        assert "may or may not be written" in text
        assert f"ledger {writer.ledger_id}" in text
        assert (code, noise) == (0, "")
        assert writer.wait_for("confirmed") <= last, "confirmed-never-exceeds-last-entry"
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


@pytest.mark.full
def test_a_writer_frozen_before_its_close_does_not_close_what_another_recovered(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    with Actor("write", cluster.metadata_uri, "--rows", 50, "--wait") as writer:
        writer.wait_for("written")
        writer.freeze()
        bk.open_ledger(writer.ledger_id)
        writer.thaw()
        writer.tell("close")

        code, noise = writer.wait()
        assert (code, noise) == (0, "")
        # Closed exactly where it would close it is success; unless a copy that nobody waited for
        # was still on its way and met the fence.
        told = writer.said[-1]
        assert told.get("closed", told.get("confirmed")) == 49
        assert told.get("error", {"class": "LedgerFencedError"})["class"] == "LedgerFencedError"
        assert check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged) == 50


@pytest.mark.parametrize(
    ("kind", "seed"), first_of(*((k, seed) for seed in (1, 0, 2) for k in KINDS))
)
def test_whatever_a_killed_writer_was_told_is_there(
    cluster: LocalCluster, bk: BookKeeper, kind: str, seed: int
) -> None:
    dice = random.Random(f"{kind}/{seed}")
    quorum = dice.choice(["3/3/2", "5/3/2", "4/3/3", "2/2/1"])
    with Actor("write", cluster.metadata_uri, "--kind", kind, "--quorum", quorum) as writer:
        wanted = dice.choice([0, dice.randrange(1, 200), dice.randrange(200, 3000)])
        if wanted:
            writer.wait_for("rows", at_least=wanted)
        ledger_id = writer.ledger_id
        writer.kill()

        if seed % 2:  # two recoverers at once: all-closes-agree
            with Actor("recover", cluster.metadata_uri, ledger_id) as other:
                mine = bk.open_ledger(ledger_id).last_add_confirmed
                assert other.wait_for("closed") == mine
        report = bk.recover_ledgers([ledger_id])
        assert report.is_complete
        assert check_numbered_ledger(bk, ledger_id, *writer.acknowledged) >= wanted


@pytest.mark.full
def test_a_recoverer_that_is_killed_leaves_a_ledger_that_the_next_one_closes(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    dice = random.Random("recoverers")
    with Actor("write", cluster.metadata_uri, "--quorum", "5/3/2") as writer:
        writer.wait_for("rows", at_least=2000)
        writer.kill()
        for _ in range(3):
            with Actor("recover", cluster.metadata_uri, writer.ledger_id) as recoverer:
                recoverer.wait_for("connected")
                time.sleep(dice.random() * 0.03)  # a random moment of it is what is wanted
                recoverer.kill()

        bk.open_ledger(writer.ledger_id)

        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)
