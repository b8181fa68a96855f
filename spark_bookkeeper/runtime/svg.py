"""A figure of plotly as SVG, drawn without a browser, for where no script runs."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from html import escape
from itertools import pairwise
from typing import Any, Final

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 120, 660, 50, 310
COLOURS: Final = ("#636efa", "#ef553b", "#00cc96", "#ab63fa", "#ffa15a", "#19d3f3")


def svg(figure: Mapping[str, Any]) -> str | None:
    """Draw the ``to_dict()`` of points and lines, or of upright bars that stand on each other.

    ``None`` of all else.
    """
    traces, layout = figure["data"], figure["layout"]
    axes = [layout.get("xaxis", {}), layout.get("yaxis", {})]
    kinds = {trace["type"] for trace in traces}
    is_bars, is_stack = kinds == {"bar"}, layout.get("barmode") in ("stack", "relative")
    other = [t for t in traces if "x" not in t or t.get("xaxis", "x") + t.get("yaxis", "y") != "xy"]
    other += [t for t in traces if "stackgroup" in t or t.get("orientation", "v") != "v"]
    if other or (kinds != {"scatter"} and not (is_bars and (is_stack or len(traces) == 1))):
        return None
    both = [zip(_values(t.get("x")), _values(t.get("y")), strict=True) for t in traces]
    points = [[(x, y) for x, y in pairs if None not in (x, y)] for pairs in both]
    tops: Counter[str] = Counter()
    for those in points if is_bars else ():
        for n, (x, y) in enumerate(those):
            tops[str(x)] += y
            those[n] = (str(x), tops[str(x)])
    xs, ys = ([pair[n] for those in points for pair in those] for n in (0, 1))
    across, columns = _axis(xs, axes[0], LEFT, RIGHT)
    up, rows = _axis([*ys, *[0] * is_bars], axes[1], BOTTOM, TOP)
    gap = min((b - a for a, b in pairwise(sorted({*across.values()}))), default=80.0)
    drawn = [_path("".join(f"M{LEFT} {y:.0f}H{RIGHT}" for y, _ in rows), "#ddd", 1, "butt")]
    # The last first: the bars of the others stand before it.
    for n, (trace, those) in reversed([*enumerate(zip(traces, points, strict=True))]):
        marker, line, mode = trace.get("marker", {}), trace.get("line", {}), trace.get("mode", "")
        colours = (marker.get("color"), line.get("color"), COLOURS[n % len(COLOURS)])
        colour = next(colour for colour in colours if isinstance(colour, str))
        at = [(f"{across[x]:.1f}", f"{up[y]:.1f}") for x, y in those]
        if is_bars:
            bars = "".join(f"M{x} {up[0]:.1f}V{y}" for x, y in at)
            drawn.append(_path(bars, colour, 0.8 * gap, "butt"))
        if "lines" in mode and at:
            turn = "H{}V{}" if line.get("shape") == "hv" else "L{} {}"
            turns = "".join(turn.format(*place) for place in at)
            drawn.append(_path(f"M{' '.join(at[0])}{turns}", colour, 2, "round"))
        if "markers" in mode:
            cap = "square" if marker.get("symbol") == "square" else "round"
            size = min(marker.get("size", 6), 0.9 * gap) if cap == "square" else 6
            drawn.append(_path("".join(f"M{x} {y}h0" for x, y in at), colour, size, cap))
        if trace.get("name"):
            drawn.append(_path(f"M{RIGHT + 20} {TOP + 18 * n}h0", colour, 10, "square"))
            drawn.append(_text(RIGHT + 32, TOP - 10 + 18 * n, trace["name"], "start"))
    drawn += [_text(x, BOTTOM + 2, label) for x, label in columns]
    drawn += [_text(LEFT - 8, y - 10, label, "end") for y, label in rows]
    title, x, y = ((part.get("title") or {}).get("text") or "" for part in (layout, *axes))
    middle = (LEFT + RIGHT) / 2
    drawn += [_text(middle, 10, title), _text(middle, BOTTOM + 45, x)]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="380" font-size="12" '
        'font-family="sans-serif" fill="none"><path d="M0 0h860v380h-860z" fill="#fff"/>'
        f'<g transform="rotate(-90)">{_text(-180, 2, y)}</g>{"".join(drawn)}</svg>'
    )


def _values(given: Any) -> list[Any]:
    """Plotly gives numbers as bytes, and moments as arrays of numpy. What has no place is None."""
    if isinstance(given, Mapping):
        given = np.frombuffer(base64.b64decode(given["bdata"]), given["dtype"])
    if isinstance(given, np.ndarray):
        given = given.astype("M8[us]" if given.dtype.kind == "M" else given.dtype).tolist()
    given = [float(v) if isinstance(v, Decimal) else v for v in given or ()]
    given = [None if isinstance(v, float) and not math.isfinite(v) else v for v in given]
    return [v if isinstance(v, int | float | datetime | None) else str(v) for v in given]


def _axis(
    values: Sequence[Any], layout: Mapping[str, Any], start: int, end: int
) -> tuple[dict[Any, float], list[tuple[float, str]]]:
    """Where each value goes, and labels at their places."""
    if any(isinstance(value, str) for value in values):
        names = list(dict.fromkeys([*layout.get("categoryarray", ()), *map(str, values)]))
        names.sort() if layout.get("categoryorder") == "category ascending" else None
        step = (end - start) / len(names)
        places = {name: start + (n + 0.5) * step for n, name in enumerate(names)}
        widest = max(len(line) for name in names for line in name.split("<br>"))
        every = math.ceil((6.2 * widest if step > 0 else 14) / abs(step))
        said = [(places[name], name) for name in names[::every]]
        return {value: places[str(value)] for value in values}, said
    zone = next((v.tzinfo for v in values if isinstance(v, datetime)), ...)
    at = {v: float(v) if zone is ... else v.timestamp() for v in values} or {0: 0.0}
    low, high = layout.get("range") or (min(at.values()), max(at.values()))
    span = float(high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 5))
    step *= next(n for n in (1, 2, 5, 10) if span <= 5 * step * n)
    ticks = [step * n for n in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]
    scale = (end - start) / (1.08 * span)  # with some room at both ends
    places = {n: start + (n - low + 0.04 * span) * scale for n in (*at.values(), *ticks)}
    if zone is ...:
        form = "{:.0%}" if "tickformat" in layout else "{:,.10g}"
        labels = [form.format(tick) for tick in ticks]
    else:
        moments = [f"{datetime.fromtimestamp(n, zone):%Y-%m-%d %H:%M:%S.%f}" for n in ticks]
        labels = [m[:10] if step > 86_000 else m[11:23] for m in moments]
    said = [(places[tick], label) for tick, label in zip(ticks, labels, strict=True)]
    return {value: places[n] for value, n in at.items()}, said


def _path(path: str, colour: str, width: float, cap: str) -> str:
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width:.3g}" stroke-linecap="{cap}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Below and around this point; a line each of what ``<br>`` parts."""
    lines = (f'<tspan x="{x:.0f}" dy="14">{escape(line)}</tspan>' for line in text.split("<br>"))
    return f'<text y="{y:.0f}" fill="#333" text-anchor="{anchor}">{"".join(lines)}</text>'
