"""Many nodes read by one request, which kazoo does not know.

A client spends far more on a request than ZooKeeper does. Servers from 3.6 on take many reads in
one; an older one says that it knows no such request.

Source: ZooKeeper 3.9 ``ZooDefs.OpCode.multiRead``, ``MultiOperationRecord``, ``MultiResponse``.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetData,
    ZnodeStat,
    multiheader_struct,
    stat_struct,
)

_ERROR: Final = -1
_ASKED: Final = Struct("!iBii")
"""Before a path: the header of a read, and the length of the path. kazoo has these as two."""
_NO_WATCH: Final = b"\0"
_ANSWERED: Final = _ASKED
"""Before an answer: its header, and the length of the data or the code of the error."""


@dataclass(frozen=True, slots=True)
class MultiRead:
    """kazoo's form of the request: data and state of each node, or the error of its read."""

    nodes: tuple[str, ...]
    """Their paths."""
    type: ClassVar[int] = 22

    def serialize(self) -> bytearray:
        """As ZooKeeper reads it."""
        written = bytearray()
        for path in self.nodes:
            name = path.encode()
            written += _ASKED.pack(GetData.type, False, -1, len(name)) + name + _NO_WATCH
        written += multiheader_struct.pack(-1, True, -1)
        return written

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """For each path what ``get`` returns, or its exception."""
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
    """Kazoo's promise of the nodes at these paths."""
    answer = client.handler.async_result()
    client._call(MultiRead(paths), answer)  # noqa: SLF001  (as its own methods do)
    return answer
