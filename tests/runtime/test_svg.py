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
        (points(DAYS, [0, 0.5], "lines"), r"M(\S+ \S+)L\1L\S+ \S+", {"2026-01-03 00:26"}),
        (points([0, 1], [0, 1], "lines", line={"shape": "hv"}), r"M.*H\S+V\S+", {"0.4"}),
        (bars([5, 7], [Decimal("1.5"), 3]), r"M255.0 300.4V180.0M525.0 300.4V59.6", {"5", "7"}),
        ({"type": "scatter", "x": [1, 2], "y": [0, 1]}, r"M.*L\S+ \S+L\S+ \S+", {"1"}),
        (points(["\0<'"], [1]), r"M390.0 300.4h0", {"\ufffd<'"}),
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


ODD: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"type": "bar", "y": [1]}],
    2 * [bars([1], [1])],
    [bars([1, 1], [1, 2])],
    [bars([1], [1], orientation="h")],
    [bars([1], [1], base=[3])],
    [points([1], [1], xaxis="x2")],
    [points([1], [1], stackgroup="")],
    [points([1], [1], visible="legendonly")],
    [points([1], [1], "text")],
    [points([1, 2, 3], [1, None, 3], "lines")],
    [points([1, 2], [1, 2], "lines", line={"shape": "vh"})],
    [points([["a", "a"], ["b", "c"]], [1, 2])],
    [points([1, 2], [10**400, 1])],
    [points([1, 2], [1e308, -1e308])],
    [points([AT, 1], [1, 2])],
    [points([*range(20_001)], [*range(20_001)])],
)


@pytest.mark.parametrize("traces", ODD)
def test_of_what_it_cannot_draw_there_is_no_image(traces: list[dict[str, Any]]) -> None:
    assert svg({"data": traces, "layout": {}}) is None


def test_axes_are_drawn_as_they_are_asked_for_or_not_at_all() -> None:
    def said(x: Any, **axis: Any) -> set[str]:
        return set(drawn([points(x, [1] * len(x))], xaxis=axis)[1])

    assert {"1", "100", "7"} <= said(
        [100, 1], type="category", categoryarray=BYTES | {"bdata": "Bwc="}
    )
    assert "5" in said([5, 7], tickformat=".2f")
    assert "500%" in said([5, 7], tickformat=".0%")
    assert "60" in said([5, 70], range=[0, 10]), "nothing is drawn outside"
    assert svg({"data": [points([1], [1])], "layout": {"xaxis": {"type": "log"}}}) is None
    of_both = {"barmode": "stack"}
    assert svg({"data": [bars(["a"], [5]), bars(["a"], [-2])], "layout": of_both}) is None


def test_long_names_and_many_of_them_have_room() -> None:
    many = [points([1], ["host" * 9], name="bookie" * 10) for _ in range(30)]

    size = ElementTree.fromstring(svg({"data": many, "layout": {}}) or "").attrib

    assert int(size["width"]) > 1_100
    assert int(size["height"]) > 580
