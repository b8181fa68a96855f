"""What Spark asks a stream for, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_bookkeeper.errors import DataLossError
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.source import stream_reading
from spark_bookkeeper.source.offset_options import Offset
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.stream_reading import StreamReader
from spark_bookkeeper.testing.ground import Ground


@pytest.mark.parametrize("what", ["log", "ledger"])
@pytest.mark.parametrize("wrong", ["of another", "ahead"])
def test_a_spark_that_tells_late_where_a_stream_stands_is_told_then_that_it_is_no_place(
    inline_ground: Ground, monkeypatch: pytest.MonkeyPatch, what: str, wrong: str
) -> None:
    """As Spark 4.0 and 4.1 do: they ask how far there is something, and from where afterwards."""
    monkeypatch.setattr(stream_reading, "HAS_LIMITS", False)
    log = create_log(inline_ground.context, "orders", LogOptions(Quorum(3, 3, 2)))
    with log.become_writer() as writer:
        first = writer.append(b"a").ledger_id
    text = "orders" if what == "log" else str(first)
    reader = StreamReader(SourceOptions.parse({what: text}), pa.schema([("payload", pa.binary())]))
    vars(reader)["_context"] = inline_ground.context
    end = reader.latestOffset()
    start = Offset.from_json(end)
    if wrong == "of another":
        start = Offset(start.position, "of another life", "sales" if what == "log" else None)
    else:
        ahead = Position(LedgerId(start.position.ledger_id + (what == "log")), EntryId(9))
        start = start.at(ahead)

    said = "is another one" if wrong == "of another" else "ahead of the end"
    with pytest.raises(DataLossError, match=rf"BOOKKEEPER_DATA_LOSS\].*{said}"):
        reader.partitions(start.to_json(), end)
