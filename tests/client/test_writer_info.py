"""Who writes a ledger stands in its metadata, where anybody may have put anything."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

from spark_bookkeeper.client.writer_info import WriterInfo

ADA = WriterInfo("host-1", 4711, "ada", "etl.py")


def test_what_is_written_is_read_back() -> None:
    assert WriterInfo.decode(ADA.encode()) == ADA
    assert str(ADA) == "ada@host-1, process 4711, etl.py"


def test_this_process_knows_itself() -> None:
    me = WriterInfo.of_this_process()

    assert me.pid == os.getpid()
    assert all((me.host, me.user, me.application))
    assert WriterInfo.decode(me.encode()) == me
    assert WriterInfo.of_this_process("nightly") == replace(me, application="nightly")


def test_junk_is_nobody() -> None:
    told = {"host": "h", "pid": 1, "user": "u", "application": "a"}
    junk = [b"", b"{", b"\xff\xfe", b"null", b"[]", b'"text"', b"7", b"[" * 100_000]
    junk += [json.dumps({k: v for k, v in told.items() if k != gone}).encode() for gone in told]
    for key in told:
        wrongs: tuple[object, ...] = (None, [], {}, 1.5, True)
        for wrong in wrongs:
            junk.append(json.dumps({**told, key: wrong}).encode())
    dice = random.Random(7)
    for _ in range(2_000):
        changed = bytearray(ADA.encode())
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        found = WriterInfo.decode(bytes(changed))  # raises nothing
        assert found is None or str(found).isprintable()
    assert [WriterInfo.decode(each) for each in junk] == [None] * len(junk)


def test_a_name_neither_moves_the_cursor_nor_fills_the_screen() -> None:
    told = {"host": "a\x1b[2J\n", "pid": 1, "user": "u" * 10_000, "application": "é"}

    found = WriterInfo.decode(json.dumps(told).encode())

    assert found == WriterInfo("a?[2J?", 1, "u" * 200, "é")
