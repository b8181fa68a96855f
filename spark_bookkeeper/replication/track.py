"""The progress of a job over time: a ``Progress`` that records every report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.runtime.runtime import Runtime

TRACK: Final = pa.schema(
    [
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("done", pa.int64(), nullable=False),
        pa.field("total", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)

MOST_MOMENTS: Final = 10_000
"""The most reports that are kept. When there are more, every other one is dropped."""


class Track:
    """Records a job's progress, when passed as ``progress``; shows it as a table and a picture.

    Args:
        runtime: the clock.
        frame: makes a DataFrame of a table.
        also: another ``Progress`` that gets every report, for example a bar.
    """

    def __init__(
        self, runtime: Runtime, frame: Callable[[pa.Table], Any], also: Progress = no_progress
    ) -> None:
        self._runtime = runtime
        self._frame = frame
        self._also = also
        self._changed = runtime.condition()
        self._began = runtime.now()
        self._moments: list[dict[str, Any]] = []

    def __call__(self, phase: str, done: int, total: int, size_bytes: int) -> None:
        """Record one report, as a ``Progress``; seconds count from the construction."""
        moment = {
            "seconds": self._runtime.now() - self._began,
            "phase": phase.partition(",")[0],  # cuts off the bookies that are waited for
            "done": done,
            "total": total,
            "bytes": size_bytes,
        }
        with self._changed:
            self._moments.append(moment)
            if len(self._moments) > MOST_MOMENTS:
                del self._moments[1:-1:2]
        self._also(phase, done, total, size_bytes)

    def to_arrow(self) -> pa.Table:
        """Return the reports as an Arrow table, without Spark."""
        with self._changed:
            return pa.Table.from_pylist(list(self._moments), schema=TRACK)

    def to_df(self) -> Any:
        """Return the reports as a Spark DataFrame."""
        return self._frame(self.to_arrow())

    def __repr__(self) -> str:
        with self._changed:
            last = self._moments[-1] if self._moments else None
        if last is None:
            return "Track(nothing was told yet)"
        return f"Track({last['phase']}: {last['done']} of {last['total']})"

    def _repr_html_(self) -> str:
        with self._changed:
            last = dict(self._moments[-1]) if self._moments else {}
        return fields_table({"track": "how a job came forward", **last})
