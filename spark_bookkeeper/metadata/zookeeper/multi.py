"""Requests for many nodes: written in one transaction, or read.

kazoo has no request for many reads. Servers from 3.6 on answer many in one; an older server replies
that it does not know the request. kazoo's own form of writes makes a dozen objects for each
operation, at both ends. A ledger that is created and closed has twelve operations, and these
objects took a tenth of our code's time for it.

Source: ZooKeeper 3.9 ``ZooDefs.OpCode.multi`` and ``multiRead``, ``MultiOperationRecord``,
``MultiResponse``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    Create,
    Delete,
    GetData,
    SetData,
    ZnodeStat,
    int_struct,
    multiheader_struct,
    stat_struct,
    write_string,
)
from kazoo.security import OPEN_ACL_UNSAFE

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2

_ERROR: Final = -1
_ASKED: Final = Struct("!iBii")
"""The bytes before a path: the header of a read or a write, and the length of the path."""
_NUMBER: Final = int_struct
_END: Final[bytes] = multiheader_struct.pack(-1, True, -1)


class Operations:
    """The bytes and the number of the operations of one write.

    Args:
        acl: the access rules of nodes that are created.
    """

    __slots__ = ("_count", "_packed_acl", "packed")

    def __init__(self, acl: AccessRules) -> None:
        self._packed_acl = acl.packed
        self._count = 0
        self.packed = bytearray()

    def __len__(self) -> int:
        return self._count

    def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        """Create a node; ``sequence`` appends the next number of its parent to its name."""
        flags = (EPHEMERAL if ephemeral else 0) | (SEQUENTIAL if sequence else 0)
        self._count += 1
        name = path.encode()
        self.packed += b"%b%b%b%b%b%b" % (
            _ASKED.pack(Create.type, False, -1, len(name)),
            name,
            _NUMBER.pack(len(value)),
            value,
            self._packed_acl,
            _NUMBER.pack(flags),
        )

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node, if it has the version; -1 means any."""
        self._count += 1
        name = path.encode()
        self.packed += _ASKED.pack(Delete.type, False, -1, len(name)) + name + _NUMBER.pack(version)

    def set_data(self, path: str, value: bytes, version: int) -> None:
        """Replace a node's data, if it has the version."""
        self._count += 1
        name = path.encode()
        self.packed += b"%b%b%b%b%b" % (
            _ASKED.pack(SetData.type, False, -1, len(name)),
            name,
            _NUMBER.pack(len(value)),
            value,
            _NUMBER.pack(version),
        )


class AccessRules:
    """The access rules of the nodes of a session: kazoo's list as bytes."""

    def __init__(self, acl: Sequence[Any] = OPEN_ACL_UNSAFE) -> None:
        self.packed = _NUMBER.pack(len(acl)) + b"".join(
            _NUMBER.pack(each.perms) + write_string(each.id.scheme) + write_string(each.id.id)
            for each in acl
        )


class MultiWrite:
    """The write request for kazoo; its answer has a result or an error for each operation."""

    type: ClassVar[int] = 14

    __slots__ = ("_writes",)

    def __init__(self, writes: Sequence[Operations]) -> None:
        self._writes = writes

    def serialize(self) -> bytes:
        """Return the bytes that ZooKeeper reads."""
        return b"".join([*(write.packed for write in self._writes), _END])

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """Return the same results as kazoo's own request."""
        results: list[Any] = []
        end = len(data) - len(_END)
        while offset < end:
            kind, _, _ = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if kind == Create.type:
                first = offset + _NUMBER.size
                offset = first + _NUMBER.unpack_from(data, offset)[0]
                results.append(data[first:offset].decode())
            elif kind == SetData.type:
                results.append(ZnodeStat._make(stat_struct.unpack_from(data, offset)))
                offset += stat_struct.size
            elif kind == _ERROR:
                results.append(EXCEPTIONS[_NUMBER.unpack_from(data, offset)[0]]())
                offset += _NUMBER.size
            else:
                results.append(True)
        return results


_NO_WATCH: Final = b"\0"
_ANSWERED: Final = _ASKED
"""The bytes before an answer: its header, and the length of the data or the error's code."""


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The read request for kazoo; its answer has data and state, or an error, for each node."""

    nodes: tuple[str, ...]
    """The paths of the nodes."""
    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        """Return the bytes that ZooKeeper reads."""
        written = bytearray()
        for path in self.nodes:
            name = path.encode()
            written += _ASKED.pack(GetData.type, False, -1, len(name)) + name + _NO_WATCH
        written += _END
        return written

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """Return the result of ``get`` for each path, or its exception."""
        found: list[Any] = []
        end = len(data) - multiheader_struct.size
        while offset < end:
            kind, _, _, number = _ANSWERED.unpack_from(data, offset)
            offset += _ANSWERED.size
            if kind == _ERROR:
                found.append(EXCEPTIONS[number]())
                continue
            content = None if number < 0 else data[offset : offset + number]
            offset += max(number, 0)
            found.append((content, ZnodeStat._make(stat_struct.unpack_from(data, offset))))
            offset += stat_struct.size
        return found


def read_together(client: Any, paths: tuple[str, ...]) -> Any:
    """Send a read of the nodes at these paths; return kazoo's future."""
    answer = client.handler.async_result()
    client._call(MultiRead(paths), answer)  # noqa: SLF001  (as its own methods do)
    return answer
