"""Names of znodes, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId

R = "/ledgers"


def ledger_at(root: str, path: str) -> LedgerId | None:
    parent, _, name = path.rpartition("/")
    return next(paths.ledgers_below(root, parent, [name]), None)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (1_234_567_890, "/ledgers/12/3456/L7890"),
        ((1 << 31) - 2, "/ledgers/21/4748/L3646"),
        ((1 << 31) - 1, "/ledgers/000/0000/0021/4748/L3647"),
        ((1 << 63) - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_a_ledger_has_bookkeepers_path(ledger_id: int, path: str) -> None:
    assert paths.ledger(R, LedgerId(ledger_id)) == path
    assert ledger_at(R, path) == ledger_id


@given(st.integers(0, (1 << 63) - 1), st.sampled_from(["", "/ledgers", "/a/b"]))
def test_every_path_leads_back_to_its_ledger(ledger_id: int, root: str) -> None:
    path = paths.ledger(root, LedgerId(ledger_id))

    assert ledger_at(root, path) == ledger_id
    for parent in paths.ledger_parents(root, LedgerId(ledger_id)):
        assert path.startswith(f"{parent}/")
        assert ledger_id in paths.ids_below(root, parent)
        assert paths.is_parent_name(parent[len(root) + 1 :].split("/"))


@given(st.lists(st.integers(0, (1 << 63) - 1), unique=True))
def test_short_ids_before_long_ones_in_order_of_names_is_order_of_ids(ids: list[int]) -> None:
    names = [paths.ledger(R, LedgerId(n)) for n in ids]

    in_order = sorted(names, key=lambda path: (len(path), path))

    assert [ledger_at(R, path) for path in in_order] == sorted(ids)


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/00/0000",
        "/ledgers/00/0000/0000",
        "/ledgers/00/0000/L000",
        "/ledgers/00/L0000",
        "/ledgers/99/9999/L9999",  # would be stored in the long form
        "/ledgers/000/0000/0000/0000/L0007",  # would be stored in the short form
        "/ledgers/idgen/ID-0000000000",
        "/elsewhere/00/0000/L0000",
        "/ledgers/available",
        "/ledgers/cookies",
        "/ledgers/idgen",
        "/ledgers/idgen-long",
        "/ledgers/underreplication",
        "/ledgers/INSTANCEID",
        "/ledgers/LAYOUT",
    ],
)
def test_other_nodes_are_no_ledgers(path: str) -> None:
    assert ledger_at(R, path) is None


@pytest.mark.parametrize(
    "parent", ["00/0000", "21/4748", "99/9999", "000/0000/0021/4748", "922/3372/0368/5477", "00/x"]
)
def test_the_ledgers_below_a_node_are_those_that_their_paths_lead_to(parent: str) -> None:
    names = [f"L{n:04d}" for n in (9999, 0, 3646, 3647, 5807, 5808)]
    names += ["L٠٠٠١", "l0001", "L00001", "0001", "L-001", "L0001x"]
    numbers = [parent.replace("/", "") + name[1:] for name in sorted(names)]
    there = {f"{R}/{parent}/{name}" for name in names}
    wanted = [int(n) for n in numbers if n.isascii() and n.isdigit() and int(n) < 1 << 63]

    found = list(paths.ledgers_below(R, f"{R}/{parent}", names))

    assert found == [n for n in wanted if paths.ledger(R, LedgerId(n)) in there]


def test_bookies_have_bookkeepers_paths() -> None:
    bookie = BookieId("10.0.0.3:3181")

    assert paths.cookie(R, bookie) == "/ledgers/cookies/10.0.0.3:3181"
    assert paths.registration(R, bookie, readonly=False) == "/ledgers/available/10.0.0.3:3181"
    assert (
        paths.registration(R, bookie, readonly=True) == "/ledgers/available/readonly/10.0.0.3:3181"
    )
