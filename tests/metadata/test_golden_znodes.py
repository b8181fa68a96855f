"""Every znode that Apache BookKeeper wrote reads as it says, and is written again byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.metadata.codec import decode_ledger, encode_ledger
from spark_bookkeeper.metadata.cookie_text import decode_cookie, format_cookie, parse_cookie
from spark_bookkeeper.metadata.service_info import (
    decode_registration,
    format_service_info,
    parse_service_info,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId

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
