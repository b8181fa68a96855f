"""The page on metrics tells of those there are, and the dashboard asks for no others."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.tidy import metrics_table
from tests.tidy.test_docs import check_command

DASHBOARD = Path(__file__).resolve().parents[2] / "conf" / "grafana-dashboard.json"

OF_PROMETHEUS = {"up"}

ALERTS = DASHBOARD.with_name("prometheus-alerts.yml")

WORDS = {"sum", "max", "by", "rate", "bool", "histogram_quantile", "label_values"}
WORDS |= {"count", "increase", "last_over_time", "min_over_time", "vector", "and", "or"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text(encoding="utf-8")))


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def metrics_in(expression: str) -> set[str]:
    """The names in an expression of Prometheus, without functions, labels, and text in quotes."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|(by|on) \([^)]*\)", "", expression)
    return set(re.findall(r"\b[a-zA-Z_][\w:]*\b", bare)) - WORDS


def test_the_table_of_metrics_is_the_one_that_declarations_make() -> None:
    """``python -m tests.tidy.metrics_table`` writes it anew."""
    text = metrics_table.PAGE.read_text(encoding="utf-8")

    assert text == metrics_table.page(text)


BOOKKEEPERS = {
    # client/BookKeeperClientStats.java
    "bookkeeper_client": {
        *("LEDGER_CREATE", "LEDGER_DELETE", "LEDGER_OPEN", "LEDGER_RECOVER", "ADD_ENTRY"),
        *("NUM_ENSEMBLE_CHANGE", "SPECULATIVE_READ_COUNT"),
    },
    # bookie/BookKeeperServerStats.java
    "bookie": {"SERVER_STATUS", "RECLAIMED_DELETION_SPACE_BYTES"},
    # replication/ReplicationStats.java
    "replication_worker": {"NUM_BYTES_WRITTEN"},
    "auditor": {
        *("NUM_UNDER_REPLICATED_LEDGERS", "AUDIT_BOOKIES_TIME", "CHECK_ALL_LEDGERS_TIME"),
        *("PLACEMENT_POLICY_CHECK_TIME", "REPLICAS_CHECK_TIME", "NUM_BOOKIE_AUDITS_DELAYED"),
        *("NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"),
        "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
        "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
    },
}
"""Names that Apache BookKeeper 4.17.3 has, by scope."""


def test_names_in_capitals_are_bookkeepers_or_the_page_says_that_they_are_not() -> None:
    text = metrics_table.PAGE.read_text(encoding="utf-8")
    before, _, table = text.partition(metrics_table.MARK)
    in_its_manner = set(re.findall(r"`([A-Z_]+)`", before))

    found = re.findall(r"^\| `([a-z_]+)_([A-Z][A-Z_]+?)(?:_total)?` ", table, re.M)
    ours = {(scope, name) for scope, name in found if name not in BOOKKEEPERS[scope]}

    assert len(found) > 10
    assert {name for _, name in ours} == in_its_manner - {"DELETED_LEDGER_COUNT"}
    asked = DASHBOARD.read_text(encoding="utf-8")
    familiar = {f"{scope}_{name}" for scope, names in BOOKKEEPERS.items() for name in names}
    assert sum(name in asked for name in familiar) > 5, "the dashboard uses them"


def test_every_metric_that_the_dashboard_asks_for_is_there(dashboard: dict[str, Any]) -> None:
    asked = {
        name
        for panel in panels(dashboard)
        for target in panel["targets"]
        for name in metrics_in(target["expr"])
    }

    assert len(asked) > 20
    assert asked - metrics_table.samples() - OF_PROMETHEUS == set()


def test_alerts_ask_for_metrics_and_name_commands_that_are_there() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    rules = re.split(r"^      - alert: ", text, flags=re.M)[1:]
    asked = [name for each in rules for name in metrics_in(re.findall(r"expr: (.*)", each)[0])]

    assert len(rules) > 5
    assert set(asked) - metrics_table.samples() - OF_PROMETHEUS == set()
    for rule in rules:
        assert re.search(r"^        labels: \{severity: (page|ticket)\}$", rule, re.M), rule
        assert re.search(r"^          summary: [^:#]+$", rule, re.M), "plain text for YAML"
        for said in re.findall(r"`([^`]+)`", rule):
            check_command(said)


def test_the_choices_at_its_top_come_from_metrics_that_are_there(dashboard: dict[str, Any]) -> None:
    choices = dashboard["templating"]["list"]
    asked = {
        name
        for choice in choices
        if choice["type"] == "query"
        for name in re.findall(r"label_values\((\w+)", choice["definition"])
    }

    assert [choice["name"] for choice in choices] == ["datasource", "job", "instance"]
    assert asked
    assert asked - metrics_table.samples() == set()


def test_it_has_the_fields_that_grafana_reads(dashboard: dict[str, Any]) -> None:
    assert dashboard.keys() >= {"title", "uid", "schemaVersion", "panels", "templating", "time"}
    assert "id" not in dashboard, "Grafana gives the number when it is imported"
    assert dashboard["schemaVersion"] >= 36
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(dashboard):
        assert panel["title"], panel
        assert panel["description"], panel["title"]
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == [
            chr(ord("A") + n) for n in range(len(panel["targets"]))
        ]
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")


def test_its_panels_lie_beside_each_other(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]

    for place in places:
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        is_apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert is_apart, (one, other)
