"""The table of metrics in ``docs/metrics.md``, made from their declarations.

``python -m tests.tidy.metrics_table`` writes it; ``test_metrics_page.py`` says when it must be.
"""

from __future__ import annotations

import re
from pathlib import Path

from spark_bookkeeper.metrics import BookieMetrics, ClientMetrics, Metrics

PAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper" / "docs" / "metrics.md"

MARK = "<!-- The table is made by `python -m tests.tidy.metrics_table`. -->"


def table() -> str:
    """A row for each metric; those that both have are told of once."""
    lines = ["| metric | kind | where | what |", "|---|---|---|---|"]
    client, agent = _rows(ClientMetrics()), _rows(BookieMetrics())
    for name, (kind, text) in sorted({**client, **agent}.items()):
        where = (
            "both" if name in client and name in agent else "client" if name in client else "agent"
        )
        lines.append(f"| `{name}` | {kind} | {where} | {text} |")
    return "\n".join(lines)


def samples() -> set[str]:
    """Every name under which Prometheus finds a value."""
    found: set[str] = set()
    for metrics in (ClientMetrics(), BookieMetrics()):
        for line in metrics.exposition().decode().splitlines():
            if not line.startswith("#"):
                found.add(re.split(r"[{ ]", line)[0])
        for name, (kind, _) in _rows(metrics).items():  # those with labels that nobody used yet
            if kind == "histogram":
                found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
            else:
                found.add(name)
    return found


def _rows(metrics: Metrics) -> dict[str, tuple[str, str]]:
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): (
            metric.type,
            metric.documentation,
        )
        for metric in metrics.registry.collect()
    }


def page(text: str) -> str:
    """The page with the table of now in the place of the one it has."""
    before, _, rest = text.partition(MARK)
    behind = re.sub(r"\A\n\n(\|.*\n)+", "\n", rest)
    return f"{before}{MARK}\n\n{table()}{behind}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
