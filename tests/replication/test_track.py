"""How a job came forward is kept, moment by moment."""

from __future__ import annotations

from spark_bookkeeper.replication import track as tracks
from spark_bookkeeper.replication.track import TRACK, Track
from spark_bookkeeper.testing.ground import Ground


def test_what_a_job_tells_is_kept_with_its_time_and_told_on(ground: Ground) -> None:
    heard: list[tuple[object, ...]] = []
    track = Track(ground.runtime, lambda table: table, lambda *told: heard.append(told))

    track("copying", 0, 4, 0)
    track("copying, waiting for a:1 for 3 s", 2, 4, 20)
    table = track.to_df()

    assert table.schema == TRACK
    first, second = table.to_pylist()
    assert 0 <= first["seconds"] <= second["seconds"]
    assert (second["phase"], second["done"], second["total"], second["bytes"]) == (
        *("copying", 2),
        *(4, 20),
    )
    assert heard[1] == ("copying, waiting for a:1 for 3 s", 2, 4, 20)
    assert repr(track) == "Track(copying: 2 of 4)"


def test_however_much_is_told_it_stays_small_and_keeps_both_ends(ground: Ground) -> None:
    track = Track(ground.runtime, lambda table: table)
    for done in range(3 * tracks.MOST_MOMENTS):
        track("copying", done, 3 * tracks.MOST_MOMENTS, 0)

    done = track.to_arrow().column("done").to_pylist()
    assert len(done) <= tracks.MOST_MOMENTS
    assert (done[0], done[-1]) == (0, 3 * tracks.MOST_MOMENTS - 1)
    assert done == sorted(done)
