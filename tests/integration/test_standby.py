"""Warm standbys in processes of their own: a leader that is killed, and one that was frozen."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.actors import Actor

# Full: what is shown of a standby is shown in one process by tests/logs/test_standby.py as well.
pytestmark = [pytest.mark.integration, pytest.mark.full]


def test_every_standby_sees_the_same_entries_whatever_becomes_of_the_leader(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    log = bk.create_log("led")
    with ExitStack() as stack:
        actors: list[Actor] = []
        for role in ("led", "followed", "followed"):
            arguments = ("stand-by", cluster.metadata_uri, "led", "--patience-ms", 4_000)
            actors.append(stack.enter_context(Actor(*arguments)))
            actors[-1].wait_for(role)
        killed, frozen, last = actors
        killed.wait_for("led", at_least=3)
        killed.kill()
        frozen.wait_for("led", at_least=3)
        frozen.freeze()
        last.wait_for("led", at_least=3)
        frozen.thaw()
        led = frozen.wait_for("deposed")
        last.kill()
        frozen.wait_for("led", at_least=led + 3)

    with log.become_writer():
        written = [(f"{e.ledger_id}:{e.entry_id}:0", e.payload.decode()) for e in log.entries()]
    for actor in actors:
        seen = [(each["place"], each["payload"]) for each in actor.said if "place" in each]
        assert len(seen) > 3
        assert seen == written[: len(seen)], "none twice, none missing"
