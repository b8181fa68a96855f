"""What an image of a figure holds, from the dictionary that plotly makes of the figure."""

from __future__ import annotations

import base64
import math
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from spark_bookkeeper.runtime.svg import svg

AT = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
BYTES = {"dtype": "i1", "bdata": base64.b64encode(bytes([1, 2])).decode()}
DAYS = np.array(["2026-01-01", "2026-01-12"], "M8[ns]")


def drawn(traces: list[dict[str, Any]], **layout: Any) -> tuple[list[str], list[str]]:
    """Paths of the traces, the last first, and texts."""
    root = ElementTree.fromstring(svg({"data": traces, "layout": layout}) or "")
    paths = [e.attrib for e in root.iter() if e.attrib.get("stroke", "#ddd") != "#ddd"]
    return [p["d"] for p in paths], [e.text or "" for e in root.iter() if e.tag.endswith("tspan")]


def points(x: Any, y: Any, mode: str = "markers", kind: str = "scatter", **more: Any) -> Any:
    return {"type": kind, "x": x, "y": y, "mode": mode, **more}


bars = partial(points, mode="", kind="bar")


@pytest.mark.parametrize(
    ("trace", "paths", "said"),
    [
        (points(["b", 1, "c"], [2, None, math.nan]), r"M390.0 300.4h0", {"b", "2"}),
        (points([1, 3], BYTES), r"M140.0 300.4h0M640.0 59.6h0", {"1", "1.5", "2", "3"}),
        (points([AT, AT + timedelta(seconds=0.004)], [0, 9]), r"(M\S+ \S+h0){2}", {"12:00:00.002"}),
        (points(DAYS, [0, 0.5], "lines"), r"M(\S+ \S+)L\1L\S+ \S+", {"2026-01-03", "2026-01-09"}),
        (points([0, 1], [0, 1], "lines", line={"shape": "hv"}), r"M.*H\S+V\S+", {"0.4"}),
        (bars([5, 7], [Decimal("1.5"), 3]), r"M255.0 300.4V180.0M525.0 300.4V59.6", {"5", "7"}),
        (points([], []), "", {"<&"}),
    ],
)  # fmt: skip
def test_each_point_has_its_place_and_axes_say_where(
    trace: dict[str, Any], paths: str, said: set[str]
) -> None:
    found, texts = drawn([trace], title={"text": "<&"})

    assert re.fullmatch(paths, found[0])
    assert said | {"<&"} <= set(texts)


def test_bars_stand_on_each_other_and_lines_of_a_label_below_each_other() -> None:
    traces = [bars(["x<br>job"], [1], name="low"), bars(["x<br>job"], [2], name="high")]

    paths, texts = drawn(traces, barmode="stack")

    assert [p for p in paths if "V" in p] == ["M390.0 300.4V59.6", "M390.0 300.4V220.1"]
    assert {"low", "high", "x", "job"} <= set(texts)


ODD = (
    bars([1], [1], orientation="h"),
    points([1], [1], xaxis="x2"),
    points([1], [1], stackgroup=""),
)


@pytest.mark.parametrize(
    "traces", [[], [{"type": "bar", "y": [1]}], 2 * [bars([1], [1])], *([odd] for odd in ODD)]
)
def test_of_what_it_cannot_draw_there_is_no_image(traces: list[dict[str, Any]]) -> None:
    assert svg({"data": traces, "layout": {}}) is None
