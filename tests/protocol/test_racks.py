"""Racks against a slower definition: every ensemble that could be made of some bookies."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.racks import fewest_racks, most_racks, spread

QUORUMS = [Quorum(e, q, 1) for e in range(1, 6) for q in range(1, e + 1)]

quorums = st.sampled_from(QUORUMS)
some_racks = st.lists(st.sampled_from("xyz"), max_size=7)


def slowly(quorum: Quorum, racks: list[str | None], places: list[int], offered: list[str]) -> int:
    """The greatest ``fewest_racks`` of all ways to fill the places."""
    most = 0
    for chosen in set(permutations(offered, len(places))):
        filled = list(racks)
        for place, rack in zip(places, chosen, strict=True):
            filled[place] = rack
        most = max(most, fewest_racks(quorum, filled))
    return most


def counted(quorum: Quorum, ensemble: list[str | None]) -> int:
    """``fewest_racks`` in other words: entry by entry."""
    size, copies = quorum.ensemble_size, quorum.write_quorum_size
    return min(
        len({ensemble[(entry + n) % size] for n in range(copies)} - {None}) for entry in range(size)
    )


@given(quorums, st.lists(st.sampled_from(["x", "y", "z", None]), min_size=5, max_size=5))
def test_the_racks_of_an_ensemble_are_counted_for_every_entry(
    quorum: Quorum, racks: list[str | None]
) -> None:
    ensemble = racks[: quorum.ensemble_size]

    assert fewest_racks(quorum, ensemble) == counted(quorum, ensemble)


@given(quorums, some_racks)
def test_no_other_ensemble_of_the_same_bookies_is_on_more_racks(
    quorum: Quorum, offered: list[str]
) -> None:
    size = quorum.ensemble_size
    if len(offered) < size:
        assert most_racks(quorum, offered) == 0
        return

    chosen = spread(quorum, [None] * size, range(size), offered)

    assert len(set(chosen)) == size
    reached = fewest_racks(quorum, [offered[index] for index in chosen])
    assert reached == slowly(quorum, [None] * size, list(range(size)), offered)
    assert reached == most_racks(quorum, offered)
    assert reached == most_racks(quorum, offered[::-1]), "whatever the order"


@given(quorums, st.data())
def test_no_other_replacement_is_on_more_racks(quorum: Quorum, data: st.DataObject) -> None:
    size = quorum.ensemble_size
    racks: list[str | None] = data.draw(
        st.lists(st.sampled_from(["x", "y", "z", None]), min_size=size, max_size=size)
    )
    places = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3)))
    offered = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(places), max_size=5))

    chosen = spread(quorum, racks, places, offered)

    filled = list(racks)
    for place, index in zip(places, chosen, strict=True):
        filled[place] = offered[index]
    assert len(set(chosen)) == len(places)
    assert fewest_racks(quorum, filled) == slowly(quorum, racks, places, offered)


@given(quorums, st.integers(0, 3))
def test_with_one_rack_the_order_of_preference_decides(quorum: Quorum, more: int) -> None:
    size = quorum.ensemble_size

    chosen = spread(quorum, [None] * size, range(size), ["x"] * (size + more))

    assert list(chosen) == list(range(size))


def test_many_bookies_on_many_racks_are_chosen_among_in_few_steps() -> None:
    """Also where what is wished for cannot be had: one rack has almost all of them."""
    offered = ["x"] * 500 + ["y", "z"]

    chosen = spread(Quorum(9, 3, 2), [None] * 9, range(9), offered)

    assert len(set(chosen)) == 9
