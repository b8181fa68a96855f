"""A figure of plotly as SVG, drawn without a browser, for viewers that run no scripts."""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from html import escape
from itertools import pairwise
from typing import Any, Final

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 120, 660, 50, 310
COLOURS: Final = ("#636efa", "#ef553b", "#00cc96", "#ab63fa", "#ffa15a", "#19d3f3")
MOST: Final = 20_000  # points; a larger image would fill the notebook

KNOWN: Final = re.compile(
    "type|[xy](axis)?|mode|name|marker|line|orientation|opacity|text(position)?|customdata|"
    "hover.*|legend.*|showlegend|(offset|alignment)group"
)
"""Keys that a trace may have; other keys move, hide or fill parts of the figure."""

NO_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(figure: Mapping[str, Any]) -> str | None:
    """Draw the ``to_dict()`` of points and lines, or of upright, stacked bars.

    ``None`` for all other figures, which are still shown by plotly.
    """
    try:
        return _drawn(figure)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _drawn(figure: Mapping[str, Any]) -> str | None:
    traces, layout = figure["data"], figure["layout"]
    axes = [layout.get("xaxis", {}), layout.get("yaxis", {})]
    kinds = {trace["type"] for trace in traces}
    if kinds not in ({"bar"}, {"scatter"}) or any(map(_is_odd, traces)):
        return None
    both = [[*zip(_values(t.get("x")), _values(t.get("y")), strict=True)] for t in traces]
    points = [[pair for pair in pairs if None not in pair] for pairs in both]
    is_bars, is_stack = kinds == {"bar"}, layout.get("barmode") in ("stack", "relative")
    tops: Counter[str] = Counter()
    for those in points if is_bars else ():
        is_stack &= all(y >= 0 for _, y in those)
        for n, (x, y) in enumerate(those):
            tops[str(x)] += y
            those[n] = (str(x), tops[str(x)])
    count = sum(map(len, points))
    if count > MOST or (is_bars and not is_stack and len(tops) < count):
        return None
    xs, ys = ([pair[n] for those in points for pair in those] for n in (0, 1))
    across, columns = _axis(xs, axes[0], LEFT, RIGHT)
    up, rows = _axis([*ys, *[0] * is_bars], axes[1], BOTTOM, TOP)
    gap = min((b - a for a, b in pairwise(sorted({*across.values()}))), default=80.0)
    drawn = [_path("".join(f"M{LEFT} {y:.0f}H{RIGHT}" for y, _ in rows), "#ddd", 1, "butt")]
    # The last trace first: the bars of the earlier ones are drawn in front of it.
    for n, (trace, those) in reversed([*enumerate(zip(traces, points, strict=True))]):
        marker, line = trace.get("marker", {}), trace.get("line", {})
        mode = trace.get("mode", "lines+markers" if len(both[n]) < 20 else "lines")  # as plotly
        colours = (marker.get("color"), line.get("color"), COLOURS[n % len(COLOURS)])
        colour = escape(next(colour for colour in colours if isinstance(colour, str)))
        at = [(f"{across[x]:.1f}", f"{up[y]:.1f}") for x, y in those]
        if is_bars:
            bars = "".join(f"M{x} {up[0]:.1f}V{y}" for x, y in at)
            drawn.append(_path(bars, colour, 0.8 * gap, "butt"))
        elif "lines" in mode and at:
            if len(at) < len(both[n]):
                return None  # the line has gaps
            turn = {"hv": "H{}V{}", "linear": "L{} {}"}[line.get("shape", "linear")]
            turns = "".join(turn.format(*place) for place in at)
            drawn.append(_path(f"M{' '.join(at[0])}{turns}", colour, 2, "round"))
        if "markers" in mode and not is_bars:
            cap = "square" if marker.get("symbol") == "square" else "round"
            size = min(marker.get("size", 6), 0.9 * gap) if cap == "square" else 6
            drawn.append(_path("".join(f"M{x} {y}h0" for x, y in at), colour, size, cap))
        if trace.get("name"):
            drawn.append(_path(f"M{RIGHT + 20} {TOP + 18 * n}h0", colour, 10, "square"))
            drawn.append(_text(RIGHT + 32, TOP - 10 + 18 * n, trace["name"], "start"))
    drawn += [_text(x, BOTTOM + 2, label) for x, label in columns]
    drawn += [_text(LEFT - 8, y - 10, label, "end") for y, label in rows]
    title, x, y = ((part.get("title") or {}).get("text") or "" for part in (layout, *axes))
    middle, height = (LEFT + RIGHT) / 2, max(380, TOP + 18 * len(traces))
    drawn += [_text(middle, 10, title), _text(middle, BOTTOM + 45, x)]
    left = max(0, _width(label for _, label in rows) - LEFT + 28)  # long labels need more room
    width = left + max(860, RIGHT + 40 + _width(trace.get("name") or "" for trace in traces))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="12" '
        f'font-family="sans-serif" fill="none"><path d="M0 0h{width}v{height}h-{width}z" '
        f'fill="#fff"/><g transform="rotate(-90)">{_text(-180, 2, y)}</g>'
        f'<g transform="translate({left})">{"".join(drawn)}</g></svg>'
    )


def _is_odd(trace: Mapping[str, Any]) -> bool:
    asked = [trace.get(name) for name in ("xaxis", "yaxis", "orientation", "mode")]
    is_usual = {*asked} <= {None, "x", "y", "v", "", "lines", "markers", "lines+markers"}
    return not (is_usual and all(map(KNOWN.fullmatch, trace)))


def _values(given: Any) -> list[Any]:
    """Convert plotly's bytes and numpy's arrays to values. A value that cannot be drawn is None."""
    if isinstance(given, Mapping):
        given = np.frombuffer(base64.b64decode(given["bdata"]), given["dtype"])
    if isinstance(given, np.ndarray):
        given = given.astype("M8[us]" if given.dtype.kind == "M" else given.dtype).tolist()
    if any(isinstance(v, list | tuple) for v in given or ()):
        raise ValueError("names at two levels are not drawn")
    given = [float(v) if isinstance(v, Decimal | np.number) else v for v in given or ()]
    given = [None if isinstance(v, float) and not math.isfinite(v) else v for v in given]
    return [v if isinstance(v, int | float | datetime | None) else str(v) for v in given]


def _axis(
    values: Sequence[Any], layout: Mapping[str, Any], start: int, end: int
) -> tuple[dict[Any, float], list[tuple[float, str]]]:
    """Return the position of each value, and the labels with their positions."""
    kind = layout.get("type", "-")
    if kind == "category" or any(isinstance(value, str) for value in values):
        names = list(dict.fromkeys(map(str, [*_values(layout.get("categoryarray")), *values])))
        names.sort() if layout.get("categoryorder") == "category ascending" else None
        step = (end - start) / max(1, len(names))
        places = {name: start + (n + 0.5) * step for n, name in enumerate(names)}
        every = math.ceil((_width(names) if step > 0 else 14) / abs(step))
        said = [(places[name], name) for name in names[:: max(1, every)]]
        return {value: places[str(value)] for value in values}, said
    if kind not in ("-", "linear", "date"):
        raise ValueError(f"an axis of type {kind} is not drawn")
    zone = next((v.tzinfo or timezone.utc for v in values if isinstance(v, datetime)), None)
    at = {v: v.replace(tzinfo=v.tzinfo or zone).timestamp() if zone else float(v) for v in values}
    ends = [*at.values(), *layout.get("range", ())] or [0.0]
    low, span = min(ends), float(max(ends) - min(ends)) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 5))
    step *= next(n for n in (1, 2, 5, 10) if span <= 5 * step * n)
    last = math.floor(max(ends) / step + 1e-9)
    ticks = [step * n for n in range(math.ceil(low / step), last + 1)]
    scale = (end - start) / (1.08 * span)  # with some room at both ends
    spots = {n: start + (n - low + 0.04 * span) * scale for n in (*at.values(), *ticks)}
    if zone is None:
        form = "{:.0%}" if layout.get("tickformat", "").endswith("%") else "{:,.12g}"
        labels = [form.format(tick) for tick in ticks]
    else:
        moments = [f"{datetime.fromtimestamp(n, zone):%Y-%m-%d %H:%M:%S.%f}" for n in ticks]
        labels = [m[:16] if step > 86_000 else m[11:23] for m in moments]
    said = [(spots[tick], label) for tick, label in zip(ticks, labels, strict=True)]
    return {value: spots[n] for value, n in at.items()}, said


def _path(path: str, colour: str, width: float, cap: str) -> str:
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width:.3g}" stroke-linecap="{cap}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Draw text below and around this point, with one line for each part between ``<br>``."""
    text = NO_XML.sub("\ufffd", text)
    lines = (f'<tspan x="{x:.0f}" dy="14">{escape(line)}</tspan>' for line in text.split("<br>"))
    return f'<text y="{y:.0f}" fill="#333" text-anchor="{anchor}">{"".join(lines)}</text>'


def _width(texts: Iterable[str]) -> int:
    """Return the approximate width of the longest line; fonts differ."""
    return round(7 * max((len(line) for t in texts for line in t.split("<br>")), default=0))
