"""The under-replication tree is Apache BookKeeper's, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_bookkeeper.errors import MetadataFormatError
from spark_bookkeeper.metadata.underreplication import (
    LAYOUT,
    Check,
    Task,
    check_layout,
    decode_delay,
    decode_lock,
    decode_task,
    decode_time,
    decode_vote,
    encode_delay,
    encode_lock,
    encode_task,
    encode_time,
    encode_vote,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import LedgerId

_GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "reference-znodes.json").read_text()
)
_NODES = {z["path"]: bytes.fromhex(z["hex"]) for z in _GOLDEN["znodes"]}
_BASE = "/ledgers/underreplication"
_TASKS = {
    LedgerId(2): Task(LedgerId(2), ("127.0.0.1:3182", "bookie-c"), 1795253565969),
    LedgerId(2147483653): Task(LedgerId(2147483653), ("127.0.0.1:3181",), 1795253565976),
}


@pytest.mark.parametrize("ledger_id", _TASKS)
def test_a_task_is_where_and_what_bookkeeper_writes(ledger_id: LedgerId) -> None:
    path = paths.task("/ledgers", ledger_id)

    assert decode_task(_NODES[path], ledger_id, path) == _TASKS[ledger_id]
    assert encode_task(_TASKS[ledger_id]) == _NODES[path]
    assert set(paths.task_parents("/ledgers", ledger_id)) <= set(_NODES)


def test_the_other_nodes_are_what_bookkeeper_writes() -> None:
    lock = _NODES[paths.lock("/ledgers", LedgerId(2147483653))]
    assert (decode_lock(lock), encode_lock("localhost")) == ("localhost", lock)
    vote = _NODES[f"{paths.auditor_election('/ledgers')}/V_0000000000"]
    assert (decode_vote(vote), encode_vote("127.0.0.1:3181")) == ("127.0.0.1:3181", vote)
    assert _NODES[paths.auditor_election("/ledgers")] == vote
    delay = _NODES[f"{_BASE}/lostBookieRecoveryDelay"]
    assert (decode_delay(delay, ""), encode_delay(60)) == (60, delay)
    assert _NODES[f"{_BASE}/LAYOUT"] == LAYOUT
    assert _NODES[f"{_BASE}/disable"] == b""
    check_layout(LAYOUT, "")


@pytest.mark.parametrize("check", Check)
def test_when_a_check_was_done_is_what_bookkeeper_writes(check: Check) -> None:
    data = _NODES[f"{_BASE}/{check.value}"]

    assert encode_time(decode_time(data, "")) == data
    assert decode_time(data, "") // 1000 == 1_700_000_000


def test_the_largest_id_has_a_path() -> None:
    path = paths.task("/ledgers", LedgerId((1 << 63) - 1))

    assert path == f"{_BASE}/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807"


@pytest.mark.parametrize("data", [b"\xff", b"replica", b'other: "x"', b'replica: "\\377"'])
def test_junk_is_no_task_and_says_what_to_do(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"urL0000000002.*audit"):
        decode_task(data, LedgerId(2), paths.task("/ledgers", LedgerId(2)))


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"99999999999", "²".encode()])
def test_junk_is_no_delay(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="lostBookieRecoveryDelay"):
        decode_delay(data, "lostBookieRecoveryDelay")


def test_another_layout_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="BASIC"):
        check_layout(LAYOUT.replace(b"1", b"2"), "LAYOUT")


def test_junk_in_a_vote_or_a_lock_stops_nobody() -> None:
    assert decode_vote(b"\xff") == decode_lock(b"\xff") == "?"
