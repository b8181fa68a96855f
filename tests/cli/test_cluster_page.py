"""The page of a cluster: what is shown, where, and that it needs nothing from elsewhere."""

from __future__ import annotations

import re
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spark_bookkeeper.cli.cluster_page import look, render
from spark_bookkeeper.cli.cluster_server import served
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.sessions import connect_without_spark

pytestmark = [pytest.mark.integration]

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Outline(HTMLParser):
    """The text of a page by the element it is in; every element is closed by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append((self.open[-1], data.strip()))


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def a_ledger_that_lost_a_bookie(cluster: LocalCluster, bk: BookKeeper) -> tuple[int, str]:
    with bk.create_ledger(name="<b>clicks</b>") as writer:
        writer.append(b"one")
        lost = writer.metadata.last_fragment.ensemble[0]
        cluster.stop_bookie(lost, destroy=True)
        writer.append(b"two")
    return int(writer.ledger_id), lost


def test_what_needs_care_comes_first_with_its_remedy(own_cluster: LocalCluster) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(own_cluster, bk)
        page = render(look(bk))

    found = outline(page)
    assert [text for tag, text in found.text if tag == "h2"] == [
        "What needs care",
        "In numbers",
        "Bookies",
        "Ledgers",
    ]
    care = page[page.index("What needs care") : page.index("In numbers")]
    assert f"problem: bookie {lost}" in care
    assert f"spark-bookkeeper bookie recover {lost}" in care
    assert f"<b>{ledger_id}</b>" in page
    assert 'aria-label="lost, position 0"' in page


def test_the_names_of_ledgers_are_text(own_cluster: LocalCluster) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        a_ledger_that_lost_a_bookie(own_cluster, bk)
        page = render(look(bk))

    assert "&lt;b&gt;clicks&lt;/b&gt;" in page
    assert "<b>clicks" not in page


def test_a_healthy_cluster_says_so_and_asks_for_nothing_from_elsewhere(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with connect_without_spark(cluster.metadata_uri) as bk:
        page = render(look(bk), refresh_seconds=5)

    outline(page)
    assert re.findall(r"""(?:src|href)=|url\(|<script|@import""", page) == []
    assert '<meta http-equiv="refresh" content="5">' in page


def test_it_is_served_as_the_cluster_is_then(own_cluster: LocalCluster) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk, served(bk, 0) as url:
        with urllib.request.urlopen(url) as answer:
            before = answer.read().decode()
        with bk.create_ledger(name="later"):
            pass
        with urllib.request.urlopen(url) as answer:
            after = answer.read().decode()
        port = int(url.rstrip("/").rpartition(":")[2])
        with pytest.raises(InvalidArgumentError, match="--port"), served(bk, port):
            pass

    assert "There are none." in before
    assert "later" in after
