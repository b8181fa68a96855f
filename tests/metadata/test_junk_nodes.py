"""Nodes that have no business where they are, or hold what nobody can read."""

from __future__ import annotations

import json
import logging
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.agent.cookies import forget_bookie
from spark_bookkeeper.errors import MetadataError, MetadataFormatError, VersionConflictError
from spark_bookkeeper.metadata import update
from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.metadata.cookie_text import decode_cookie, format_cookie, parse_cookie
from spark_bookkeeper.metadata.election import Election
from spark_bookkeeper.metadata.service_info import (
    decode_registration,
    format_service_info,
    parse_service_info,
)
from spark_bookkeeper.metadata.store import Cookie, Registration
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.conformance.metadata import open_ledger
from tests.metadata.conftest import opened
from tests.support.znodes import ZNodes

ROOT = "/ledgers"
GOOD = BookieId("10.0.0.1:3181")
ODD_NAMES = ("a b", "é", "x\u2028", "readonly2/", "[bold]", "a,b")


@pytest.fixture
def store(store: ZooKeeperStore) -> ZooKeeperStore:
    """With a bookie."""
    store.register(Registration(GOOD, "file:///good", "3f2a"))
    store.write_cookie(Cookie(GOOD, "file:///good", "3f2a", store.instance_id()), None)
    return store


def test_odd_names_beside_bookies_are_left_out_and_told(
    znodes: ZNodes, store: ZooKeeperStore, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ODD_NAMES:
        znodes.put(f"{paths.available(ROOT)}/{name.strip('/')} ", b"")
        znodes.put(f"{paths.cookies(ROOT)}/{name.strip('/')} ", b"")

    with caplog.at_level(logging.WARNING):
        assert [r.bookie_id for r in store.registrations()] == [GOOD]
        assert [c.value.bookie_id for c in store.cookies()] == [GOOD]

    assert "is left out of the bookies" in caplog.text


def test_a_cookie_speaks_for_no_bookie_but_that_of_its_name(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    stranger = BookieId("10.0.0.2:3181")
    znodes.put(paths.cookie(ROOT, stranger), znodes.get(paths.cookie(ROOT, GOOD)))

    assert [c.value.bookie_id for c in store.cookies()] == [GOOD]
    with pytest.raises(MetadataFormatError, match="holds the cookie of bookie"):
        store.read_cookie(stranger)


@pytest.mark.parametrize(
    "name",
    [
        *("99/9999/L9999x", "00/0000/L٠٠٠١", "00/0000/l0001", "00/0000/L00001", "00/0000/0001"),
        *("999/9999/9999/9999/L9999", "922/3372/0368/5477/L5808", "000/0000/0000/0000/L0001"),
        *("99", "zz/0000/L0001", "00/x/L0001", "00/0000/L0001x/L0001"),
    ],
)
def test_what_is_called_like_no_ledger_is_none(
    znodes: ZNodes, store: ZooKeeperStore, name: str
) -> None:
    znodes.put(f"{ROOT}/{name}", b"junk")

    assert list(store.ledger_ids()) == []
    ledgers = [LedgerId(n) for n in (3, 10_003, 1 << 40)]
    for ledger_id in ledgers:
        znodes.put(paths.ledger(ROOT, ledger_id), b"junk")
    ranges = list(store.ledger_ranges(1))
    assert (ranges[0].first, ranges[-1].end) == (0, 1 << 63)
    assert all(one.end == following.first for one, following in pairwise(ranges))
    assert [i for each in ranges for i in store.ledger_ids(each)] == ledgers


def test_the_largest_ledger_id_is_one(znodes: ZNodes, store: ZooKeeperStore) -> None:
    znodes.put(f"{ROOT}/922/3372/0368/5477/L5807", b"junk")

    assert list(store.ledger_ids()) == [2**63 - 1]


def test_a_listing_holds_few_of_the_long_lists_at_once(
    znodes: ZNodes, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        znodes.put(f"{ROOT}/00/{number:04d}/L0007", b"junk")
    client: Any = store._zk._client
    ask = client.get_children_async
    asked: list[str] = []

    def asking(path: str, *arguments: Any) -> Any:
        asked.append(path)
        return ask(path, *arguments)

    monkeypatch.setattr(client, "get_children_async", asking)
    listed = store.ledger_ids()

    for number in range(40):
        assert next(listed) == number * 10_000 + 7
        assert sum(path.count("/") == 3 for path in asked) <= number + 5


def test_odd_names_among_the_counters_of_ids_are_no_counters(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    for name in ("abcd12", "HOB-", "HOB-x", "HOB-12", "HOB-9999999999", "HOB-0000000003"):
        znodes.put(f"{paths.long_ids(ROOT)}/{name}", b"")
    znodes.put(paths.short_ids(ROOT), b"junk")

    assert store.generate_ledger_id() == 3 << 32


@pytest.mark.parametrize("is_known", [True, False])
def test_a_ledger_with_a_node_below_its_own_is_not_deleted_and_the_error_says_why(
    znodes: ZNodes, store: ZooKeeperStore, is_known: bool
) -> None:
    created = store.create_ledger(LedgerId(7), open_ledger())
    path = paths.ledger(ROOT, LedgerId(7))
    store._zk.create(f"{path}/by-hand", b"")
    delete: partial[Any] = partial(
        store.delete_ledger, LedgerId(7), None
    )  # of one that cannot be decoded
    if is_known:
        delete = partial(update.delete_ledger, store, LedgerId(7), known=created)

    with pytest.raises(MetadataError, match=f"was not deleted.*below {path}.*delete {path}/"):
        delete()
    assert list(store.ledger_ids()) == [7]

    znodes.remove(f"{path}/by-hand")
    update.delete_ledger(store, LedgerId(7), known=store.read_ledger(LedgerId(7)))
    assert list(store.ledger_ids()) == []


def test_a_cookie_that_cannot_be_decoded_has_a_version_by_which_it_is_deleted(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    for junk in (b"", b"\xff", b"6\n", znodes.get(paths.cookie(ROOT, GOOD))):
        odd = BookieId("10.0.0.2:3181")
        znodes.put(paths.cookie(ROOT, odd), junk)
        with pytest.raises(MetadataFormatError, match=f"bookie cookie delete {odd}`"):
            store.read_cookie(odd)

        version = store.cookie_version(odd)
        assert version is not None
        with pytest.raises(VersionConflictError):
            store.delete_cookie(odd, version + 1)
        forget_bookie(store, odd)

        assert store.cookie_version(odd) is None


@pytest.mark.parametrize("data", [b"", b"\xff", b"a b", b"x" * 200])
def test_an_instance_id_that_is_none_stops_only_who_needs_it(
    znodes: ZNodes, store: ZooKeeperStore, data: bytes
) -> None:
    znodes.put(paths.instance_id(ROOT), data)

    store.require_cluster()
    assert [r.bookie_id for r in store.registrations()] == [GOOD]
    with pytest.raises(MetadataFormatError, match="INSTANCEID holds no name of a cluster"):
        store.instance_id()


def test_a_layout_that_nobody_knows_stops_everything_as_ledgers_may_be_elsewhere(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    znodes.put(paths.layout(ROOT), b"\xff")

    with pytest.raises(MetadataFormatError, match="LAYOUT says"):
        opened().require_cluster()


# Of a tree that was copied: what goes with no session


def test_a_writer_whose_node_goes_with_no_session_does_not_live(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    """Its ledger would wait for it for ever."""
    znodes.put(paths.writer(ROOT, LedgerId(7), "3f2a"), b"")

    assert not store.has_writer(LedgerId(7), "3f2a")


def test_a_vote_that_goes_with_no_session_keeps_nobody_from_leading(
    znodes: ZNodes, store: ZooKeeperStore
) -> None:
    election = Election(store.ballots, "orders", ThreadRuntime())
    node = store.ballots._node("orders")
    znodes.put(f"{node}/V_{'f' * 32}_0000000000", b"of another one")
    znodes.nodes[node].made_below = 1

    assert (election.leader(), election.candidates()) == (None, [])
    with election.join(b"one") as vote:
        assert vote.wait(0)
        assert vote.is_leader
        assert election.leader() == b"one"


_GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "reference-znodes.json").read_text()
)
_ROOT = _GOLDEN["root"]
_NODES: dict[str, bytes] = {z["path"]: bytes.fromhex(z["hex"]) for z in _GOLDEN["znodes"]}
_DECODED: dict[str, Any] = _GOLDEN["decoded"]
_LEDGERS = {
    ledger_id: path
    for path in _NODES
    for ledger_id in paths.ledgers_below(_ROOT, path.rpartition("/")[0], [path.rpartition("/")[2]])
}
_COOKIES = [path for path in _NODES if path.startswith(f"{_ROOT}/cookies/")]
_REGISTRATIONS = {
    f"{_ROOT}/available/{'readonly/' if kind == 'readonly' else ''}{name}": said
    for kind in ("writable", "readonly")
    for name, said in _DECODED["bookies"][kind].items()
}


def test_every_ledger_of_the_tree_is_found() -> None:
    assert {str(ledger_id) for ledger_id in _LEDGERS} == set(_DECODED["ledgers"])
    assert len(_LEDGERS) == 45


@pytest.mark.parametrize("ledger_id", sorted(_LEDGERS))
def test_a_ledger_reads_as_bookkeeper_reads_it_and_is_written_again(ledger_id: int) -> None:
    path = _LEDGERS[LedgerId(ledger_id)]
    said = _DECODED["ledgers"][str(ledger_id)]

    metadata = decode_ledger(_NODES[path], path)

    assert encode_ledger(metadata) == _NODES[path]
    assert paths.ledger(_ROOT, LedgerId(ledger_id)) == said["znode"]["path"]
    assert metadata.format_version == said["formatVersion"]
    assert metadata.state.name == said["state"]
    assert metadata.quorum.ensemble_size == said["ensembleSize"]
    assert metadata.quorum.write_quorum_size == said["writeQuorumSize"]
    assert metadata.quorum.ack_quorum_size == said["ackQuorumSize"]
    assert (metadata.length_bytes or 0) == said["length"]
    assert (-1 if metadata.last_entry_id is None else metadata.last_entry_id) == said["lastEntryId"]
    assert (metadata.ctoken or 0) == said["cToken"]
    assert (metadata.digest_type.name if metadata.digest_type else None) == said["digestType"]
    assert (metadata.password is not None) == said["hasPassword"]
    if metadata.password is not None:
        assert metadata.password.hex() == said["password"]["hex"]
    assert {key: value.hex() for key, value in metadata.custom_metadata.items()} == {
        key: value["hex"] for key, value in said["customMetadata"].items()
    }
    assert {str(f.first_entry_id): list(f.ensemble) for f in metadata.fragments} == said["segments"]


@pytest.mark.parametrize("path", _COOKIES)
def test_a_cookie_is_written_again_byte_for_byte(path: str) -> None:
    fields = parse_cookie(_NODES[path], path)
    said = _DECODED["cookies"][path.rsplit("/", 1)[1]]

    assert format_cookie(fields) == _NODES[path]
    assert fields.bookie_host == said["bookieId"]
    assert fields.journal_dir == said["journalDirs"]
    assert fields.ledger_dirs == said["ledgerDirs"]
    assert fields.index_dirs == said["indexDirs"]
    assert fields.instance_id == said["instanceId"]
    assert decode_cookie(_NODES[path], path).incarnation == ""


@pytest.mark.parametrize("path", sorted(_REGISTRATIONS))
def test_a_registration_is_written_again_byte_for_byte(path: str) -> None:
    said = _REGISTRATIONS[path]
    info = parse_service_info(_NODES[path], path)

    assert format_service_info(info) == _NODES[path]
    assert dict(info.properties) == said["properties"]
    if not said["legacyEmptyData"]:
        assert [(e.id, e.host, e.port, e.protocol) for e in info.endpoints] == [
            (e["id"], e["host"], e["port"], e["protocol"]) for e in said["endpoints"]
        ]


def test_a_foreign_registration_has_no_root_of_ours() -> None:
    path = f"{_ROOT}/available/127.0.0.1:3182"

    registration = decode_registration(
        BookieId("127.0.0.1:3182"), _NODES[path], path, readonly=False
    )

    assert registration.rack == "/r1"
    assert registration.root_uri == ""
    assert registration.incarnation == ""
