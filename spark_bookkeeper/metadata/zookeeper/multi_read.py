"""Many nodes read by one request, which kazoo does not know.

A client spends far more on a request than ZooKeeper does. Servers from 3.6 on take many reads in
one; an older one says that it knows no such request.

Source: ZooKeeper 3.9 ``ZooDefs.OpCode.multiRead``, ``MultiOperationRecord``, ``MultiResponse``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    GetData,
    MultiHeader,
    ZnodeStat,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)

_ERROR = -1


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
            written += multiheader_struct.pack(GetData.type, False, -1)
            written += GetData(path, None).serialize()
        written += multiheader_struct.pack(-1, True, -1)
        return written

    @staticmethod
    def deserialize(data: bytes, offset: int) -> list[Any]:
        """For each path what ``get`` returns, or its exception."""
        found: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return found
            if header.type == _ERROR:
                (code,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                found.append(EXCEPTIONS[code]())
            else:
                content, offset = read_buffer(data, offset)
                stat = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                offset += stat_struct.size
                found.append((content, stat))


def read_together(client: Any, paths: tuple[str, ...]) -> Any:
    """Kazoo's promise of the nodes at these paths."""
    answer = client.handler.async_result()
    client._call(MultiRead(paths), answer)  # noqa: SLF001  (as its own methods do)
    return answer
