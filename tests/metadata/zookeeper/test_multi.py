"""A transaction in our form is on the wire what it is in kazoo's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol import serialization as kazoo
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from spark_bookkeeper.metadata.zookeeper.multi import AccessRules, MultiWrite, Operations
from tests.support.znodes import operations_of

_STAT = tuple(range(11))


@pytest.mark.parametrize("acl", [OPEN_ACL_UNSAFE, CREATOR_ALL_ACL], ids=["open", "creator"])
def test_it_is_written_as_kazoo_writes_it(acl: Sequence[Any]) -> None:
    first, second = Operations(AccessRules(acl)), Operations(AccessRules(acl))
    first.create("/a/é", b"some\0bytes")
    first.create("/a/b-", ephemeral=True, sequence=True)
    first.delete("/a/c", 3)
    second.delete("/a/d")
    second.set_data("/a", b"", 4)

    expected = [
        kazoo.Create("/a/é", b"some\0bytes", acl, 0),
        kazoo.Create("/a/b-", b"", acl, 3),
        kazoo.Delete("/a/c", 3),
        kazoo.Delete("/a/d", -1),
        kazoo.SetData("/a", b"", 4),
    ]
    ours = MultiWrite([first, second])
    assert operations_of(ours) == expected
    assert ours.type == kazoo.Transaction.type
    assert ours.serialize() == kazoo.Transaction(expected).serialize()
    assert MultiWrite([]).serialize() == kazoo.Transaction([]).serialize()


def test_its_answer_is_read_as_kazoo_reads_it() -> None:
    answer = b"".join(
        [
            b"head",
            kazoo.MultiHeader(kazoo.Create.type, False, 0).serialize(),
            kazoo.write_string("/a/é-0000000007"),
            kazoo.MultiHeader(kazoo.Delete.type, False, 0).serialize(),
            kazoo.MultiHeader(kazoo.SetData.type, False, 0).serialize(),
            kazoo.stat_struct.pack(*_STAT),
            kazoo.MultiHeader(kazoo.CheckVersion.type, False, 0).serialize(),
            kazoo.MultiHeader(-1, True, -1).serialize(),
        ]
    )

    found = MultiWrite.deserialize(answer, 4)

    assert found == ["/a/é-0000000007", True, kazoo.ZnodeStat(*_STAT), True]
    assert found == kazoo.Transaction.deserialize(answer, 4)


def test_what_was_refused_is_told_by_exceptions() -> None:
    errors = [RolledBackError, NoNodeError, RuntimeInconsistency]
    answer = b"".join(
        kazoo.MultiHeader(-1, False, each.code).serialize() + struct.pack("!i", each.code)
        for each in errors
    )
    answer += kazoo.MultiHeader(-1, True, -1).serialize()

    assert [type(each) for each in MultiWrite.deserialize(answer, 0)] == errors
