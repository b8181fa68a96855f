"""The page that is served, in a real browser with the keyboard alone; live, and read-only."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli import cluster_server
from spark_bookkeeper.cli.cluster_page import SECTIONS
from spark_bookkeeper.cli.cluster_server import served
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.multi_write import MultiWrite
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.testing.sessions import connect_without_spark
from spark_bookkeeper.testing.znodes import operations_of
from tests.cli.browser import Focused, Page, browsing, in_a_browser
from tests.cli.test_cluster_page import a_ledger_that_lost_a_bookie

WAYS = """
const ways = [...document.querySelectorAll("a[href], input, button, summary, [tabindex='0']")]
  .filter((each) => each.checkVisibility());
"""
"""All that one can go to, in the order of the page."""


def tab_to(page: Page, is_there: Callable[[Focused], bool]) -> Focused:
    """Go on with the tabulator to something."""
    for _ in range(100):
        page.press("Tab")
        at = page.focused()
        if is_there(at):
            return at
    raise AssertionError("the tabulator does not lead there")


@pytest.mark.slow
@in_a_browser
def test_the_keyboard_alone_leads_everywhere_and_a_screen_reader_has_a_name_for_all(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(own_cluster, bk)
        with served(bk, 0) as url, browsing(url, tmp_path / "profile") as page:
            reached: list[int] = []
            told: list[Focused] = []
            for _ in range(page.evaluate(f"(() => {{ {WAYS} return ways.length; }})()")):
                page.press("Tab")
                told.append(page.focused())
                reached.append(
                    page.evaluate(
                        f"(() => {{ {WAYS} return ways.indexOf(document.activeElement); }})()"
                    )
                )
                outline = page.evaluate("getComputedStyle(document.activeElement).outline")
                assert not re.search(r"\bnone\b|\b0px\b", outline), (told[-1], outline)

            # Every one of them, in the order of the page, and each is called something.
            assert reached == list(range(len(reached)))
            assert [each for each in told if not each.name] == []
            assert {each.role for each in told} >= {"link", "checkbox", "region"}
            links = [each.name for each in told if each.role == "link"]
            assert links == [*SECTIONS.values(), str(ledger_id)]

            # From the table of what is lacking to the map of the ledger, which opens for it.
            page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
            details = f"document.getElementById('ledger-{ledger_id}')"
            assert page.evaluate(f"{details}.open") is False
            tab_to(page, lambda at: at == ("link", str(ledger_id)))
            page.press("Enter")
            assert page.evaluate("location.hash") == f"#map-{ledger_id}"
            assert page.evaluate(f"{details}.open") is True
            tab_to(
                page, lambda at: at.name == f"Fragments of ledger {ledger_id}: positions by bookie"
            )

            # Closed and opened again by its own line.
            page.evaluate(f"{details}.querySelector('summary').focus()")
            assert page.focused().name.startswith(f"{ledger_id} CLOSED")
            for is_open in (False, True):
                page.press("Enter")
                assert page.evaluate(f"{details}.open") is is_open

            said = page.told()
            for each in said:
                if each.role in {"image", "img", "meter", "progressbar", "ProgressIndicator"}:
                    assert each.name, "a picture without words"
            names = [each.name for each in said]
            assert any(re.match(r"lost, position 0, \d entr", name) for name in names)
            assert any(re.match(r"\d+ % used", name) for name in names)
            headings = [each.name for each in said if each.role == "heading"]
            cards = [name for name in headings if re.match("problem: |warning: ", name)]
            assert f"problem: lost: {lost}" in cards
            assert [name for name in headings if name not in cards] == [
                "BookKeeper cluster",
                *SECTIONS.values(),
            ]
            assert any(f"bookie {lost}" == name for name in names)


@pytest.mark.slow
@in_a_browser
def test_it_comes_up_to_date_while_somebody_reads_it_and_closes_nothing(
    own_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_server, "REFRESH_SECONDS", 1)
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(own_cluster, bk)
        with served(bk, 0) as url, browsing(url, tmp_path / "profile") as page:
            before = tab_to(page, lambda at: at.name.startswith(f"{ledger_id} CLOSED"))
            page.press("Enter")

            with bk.create_ledger(name="later"):
                pass
            wait_for_text(page, "“later”")
            bk.recover_bookie(lost)
            wait_for_text(page, "No ledger: each has the copies that it should have.")

            assert page.evaluate(f"document.getElementById('ledger-{ledger_id}').open") is True
            at = page.focused()
            assert at.name.startswith(f"{ledger_id} CLOSED"), "the focus stays where it was"
            assert at.name != before.name, "though its line is another one now"

            page.evaluate("document.getElementById('follow').focus()")
            assert page.focused() == ("checkbox", "look again every 1 seconds")
            page.press("Space")
            assert page.evaluate("document.getElementById('follow').checked") is False
            assert page.evaluate("document.querySelectorAll('form, button').length") == 0


def wait_for_text(page: Page, text: str) -> None:
    page.evaluate(
        "new Promise((done) => { const look = () => document.body.innerText.includes("
        f"{text!r}) ? done() : setTimeout(look, 50); look(); }})"
    )


CHANGES = {"Create", "Create2", "SetData", "SetACL", "Delete", "MultiWrite", "Reconfig"}
"""Requests of ZooKeeper's protocol that change something."""


@pytest.mark.integration
def test_whoever_looks_at_it_changes_nothing(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a node that says what ZooKeeper's clock does, and is gone with the look."""
    asked: list[Any] = []
    with connect_without_spark(own_cluster.metadata_uri) as other:  # what it writes may come late
        a_ledger_that_lost_a_bookie(own_cluster, other)
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        store = bk.context.store
        assert isinstance(store, ZooKeeperStore)
        client = store._zk._client
        call = client._call

        def note(request: Any, answer: Any) -> Any:
            asked.append(request)
            return call(request, answer)

        def changed() -> list[str]:
            requests = [each for each in asked if type(each).__name__ in CHANGES]
            single = [
                step
                for each in requests
                for step in (operations_of(each) if isinstance(each, MultiWrite) else [each])
            ]
            clock = paths.clock(store._root, "")
            return [step.path for step in single if not step.path.startswith(clock)]

        monkeypatch.setattr(client, "_call", note)
        with served(bk, 0) as url:
            for _ in range(2):
                with urllib.request.urlopen(url) as page:
                    assert b"clicks" in page.read()
            assert asked
            assert changed() == []
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                wish = urllib.request.Request(url, method=method)
                with pytest.raises(urllib.error.HTTPError, match="501"):
                    urllib.request.urlopen(wish)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{url}ledgers")
        assert changed() == []


@pytest.mark.integration
def test_the_command_serves_it_on_this_machine_until_ctrl_c(cluster: LocalCluster) -> None:
    arguments = ["--metadata-uri", cluster.metadata_uri, "cluster", "report"]
    with subprocess.Popen(
        [sys.executable, "-m", "spark_bookkeeper", *arguments, "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:"), "nobody on another machine reaches it"
        with urllib.request.urlopen(url) as page:
            text = page.read().decode()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)

    assert "look again every 10 seconds" in text
    assert process.returncode == 0, said
    assert "Traceback" not in said
