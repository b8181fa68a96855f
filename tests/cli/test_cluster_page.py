"""The page of a cluster: what is shown, where, and that it needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest

from spark_bookkeeper.cli import cluster_facts
from spark_bookkeeper.cli.cluster_facts import Facts, Lacking, look, urgency
from spark_bookkeeper.cli.cluster_page import OF_A_LOSS, SECTIONS, render
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.ledgers import endangered_ledgers
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.multi import MultiWrite
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication import recent_jobs
from spark_bookkeeper.session import BookKeeper
from tests.cli.browser import Focused, Page, browsing, in_a_browser
from tests.support.sessions import connect_without_spark
from tests.support.znodes import operations_of

RECOVER: Final = "spark-bookkeeper bookie recover"

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


def test_what_needs_care_comes_first_with_its_remedy_and_names_are_text(
    own_cluster: LocalCluster,
) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(own_cluster, bk)
        page = render(look(bk))

    found = outline(page)
    assert [text for tag, text in found.text if tag == "h2"] == list(SECTIONS.values())
    care = page[page.index(">What needs care</h2>") : page.index(">In numbers</h2>")]
    assert f"<h3>problem: lost: {lost}</h3>" in care
    about_it = care[care.index("<h3>problem: lost: ") :].partition("<h3>warning: ")[0]
    assert {"fragments on lost bookies", f"bookie {lost}"} <= set(
        re.findall("<b>(.*?)</b>", about_it)
    )
    assert f"<code class=command>spark-bookkeeper bookie recover {lost}" in care
    assert f"<b>{ledger_id}</b>" in page
    assert re.search(r'aria-label="lost, position 0, (1 entry|2 entries)"', page)
    assert "&lt;b&gt;clicks&lt;/b&gt;" in page
    assert "<b>clicks" not in page


LOST: Final = "10.0.0.1:3181"

A_LOSS: Final = Facts(
    "zk://zk1:2181/ledgers",
    0,
    (
        Diagnosis(
            "entries below their ack quorum",
            "problem",
            "few",
            f"bring it back; else {RECOVER} {LOST}",
        ),
        Diagnosis("fragments on lost bookies", "problem", "many", f"{RECOVER} {LOST}"),
        Diagnosis(
            f"bookie {LOST}",
            "problem",
            "lost; `log show orders` <says> more",
            "start it; else `spark-bookkeeper bookie format --root 's3://a&b; c'`, "
            "`spark-bookkeeper bookie refill a:1` fill it. Then spark-bookkeeper ledger list "
            "--state unreadable names them, or spark-bookkeeper doctor (once)",
        ),
        Diagnosis(
            f"bookie {LOST}0",
            "problem",
            "full",
            "spark-bookkeeper bookie start --root 's3://b; (c)'",
        ),
        Diagnosis("ledger metadata", "problem", "junk in 1", "look at it"),
        Diagnosis("ledger metadata", "problem", "junk in 2", "look at it"),
        Diagnosis(
            "writers of open ledgers",
            "warning",
            f"names {LOST}, a lost bookie",
            "spark-bookkeeper ledger recover 1 2 and then the other 5; `ledger recover` ends it",
        ),
    ),
    [
        {"bookie_id": LOST, "state": "lost", "ledgers": 7, "fragments": 7, "free_bytes": None}
        | {"total_bytes": None, "root_uri": None, "free_inodes": None}
    ],
    {},
    {},
    {},
    [Lacking(LedgerId(n), (LOST,), 2, None, "it waits") for n in range(6)]
    + [Lacking(LedgerId(9), (LOST,), 2, 0, "it waits")],
    (),
    (),
)


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        ([], "none"),
        ([(None, None)], "unknown"),
        ([(1, 2048), (2, 1024)], "3.0 KiB, 2 ledgers"),
        ([(1, 2048), (2, None)], "at least 2.0 KiB, 2 ledgers"),
    ],
)
def test_bookies_are_shown_with_their_garbage_and_inodes(
    garbage: list[tuple[int | None, int | None]], said: str
) -> None:
    bookie = {**A_LOSS.bookies[0], "free_bytes": 1 << 30, "total_bytes": 1 << 31}
    rows = [{"bookie_id": LOST, "ledger_id": i, "garbage_bytes": size} for i, size in garbage]
    facts = replace(A_LOSS, bookies=[bookie | {"free_inodes": 1_234}], garbage=rows)

    row = render(facts).partition('id="bookies"')[2].partition("</table>")[0]

    assert "1.0 GiB free, 1,234 inodes" in row
    assert re.search(rf"<td>(<span class=\"why\">)?{said}(</span>)?</td>", row)


def test_one_loss_is_one_card_whose_remedies_are_steps_with_commands_to_copy() -> None:
    page = render(A_LOSS)
    outline(page)
    check_for_keyboard_and_screen_reader(page)
    care = page[page.index(">What needs care</h2>") : page.index(">In numbers</h2>")]

    assert re.findall("<h3>(.*?)</h3>", care) == [
        f"problem: lost: {LOST}",
        f"problem: bookie {LOST}0",
        "problem: ledger metadata",
        "warning: writers of open ledgers",
    ]
    assert re.findall("<b>(.*?)</b>", care) == [
        "entries below their ack quorum",
        "fragments on lost bookies",
        f"bookie {LOST}",
    ]
    commands = re.findall("<code class=command>(.*?)</code>", care)
    assert [unescape(command) for command in commands] == [
        f"{RECOVER} {LOST}",
        "spark-bookkeeper bookie format --root 's3://a&b; c'",
        "spark-bookkeeper bookie refill a:1",
        "spark-bookkeeper ledger list --state unreadable",
        "spark-bookkeeper doctor",
        "spark-bookkeeper bookie start --root 's3://b; (c)'",
        "spark-bookkeeper ledger recover 1 2",
    ]
    steps = re.findall("<li>(.*?)</li>", care)
    assert [re.sub("<code.*?</code>", "$", step) for step in steps] == [
        *("bring it back", "else $"),
        *("start it", "else $$ fill it", "Then $ names them, or $ (once)"),
        *("$", "look at it", "$ and then the other 5", "$ ends it"),
    ]
    assert "<code>log show orders</code>" in care
    assert "<code>ledger recover</code>" in care


def test_findings_of_a_loss_have_the_names_that_the_examination_gives_them() -> None:
    """And what nobody has a copy of comes first."""
    checks = {each.check for each in endangered_ledgers({}, set(), {})}
    found = [Diagnosis(check, "problem", "seen") for check in sorted(checks)]

    assert checks >= OF_A_LOSS
    assert min(found, key=urgency).check == "entries without a live copy"


def test_many_ledgers_that_lack_the_same_are_folded_into_a_sentence() -> None:
    page = render(A_LOSS)

    assert f"<summary>6 ledgers lack {LOST}; live copies: 2; not published</summary>" in page
    shown, _, folded = page[page.index(">Under-replicated</h2>") :].partition("<details")
    assert re.findall(r'<th scope="row">(\d)</th>', shown) == ["9"]
    assert re.findall(r'<th scope="row">(\d)</th>', folded) == list("012345")


def check_for_keyboard_and_screen_reader(page: str) -> None:
    """Every part has a heading by which it is called, every picture words, every link an end."""
    ids = Counter(re.findall(r'\bid="([^"]+)"', page))
    assert [name for name, count in ids.items() if count > 1] == []
    assert re.search(r'<html lang="en">', page)
    assert "<h1>" in page
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in ids
    for section in re.findall(r'<section aria-labelledby="([^"]+)"', page):
        assert f'<h2 id="{section}">' in page
    for element in re.findall(r"<(?:meter|progress)[^>]*>|<span[^>]*role=\"img\"[^>]*>", page):
        assert "aria-label=" in element
    for scroller in re.findall(r'<div class="scroll"[^>]*>', page):
        assert 'tabindex="0"' in scroller
        assert 'role="region"' in scroller
        assert "aria-label=" in scroller
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert "<caption>" in table
        assert '<th scope="col">' in table
    assert "<details" not in page or "<summary>" in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_a_healthy_cluster_says_so_and_asks_for_nothing_from_elsewhere(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with connect_without_spark(cluster.metadata_uri) as bk:
        with bk.create_ledger() as writer:
            writer.append(b"x")
        page = render(look(bk))

    outline(page)
    check_for_keyboard_and_screen_reader(page)
    assert re.findall(r"""src=|href="(?!#)|url\(|@import|https?://|//cdn|<script""", page) == []
    assert "No ledger: each has the copies that it should have." in page


def around_a_recovery(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], int, str]:
    """The page before, during and after one; the ledger and the bookie that it lost."""
    monkeypatch.setattr(recent_jobs, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(recent_jobs, "BEAT_SECONDS", 0.01)
    pages: list[str] = []
    with connect_without_spark(cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(cluster, bk)

        def look_when_it_is_seen(phase: str, done: int, total: int, size: int) -> None:
            if pages or not total:
                return
            while not any(row["total"] for row in bk.jobs_arrow().to_pylist()):
                bk.context.runtime.sleep(0.01)
            pages.append(render(look(bk)))

        before = render(look(bk))
        bk.recover_bookie(lost, progress=look_when_it_is_seen)
        after = render(look(bk))
    return [before, *pages, after], ledger_id, lost


def test_during_a_recovery_it_says_what_is_under_way_and_what_is_lacking(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before, during, after), ledger_id, lost = around_a_recovery(own_cluster, monkeypatch)

    for page in (before, during, after):
        outline(page)
        check_for_keyboard_and_screen_reader(page)
    assert f'<a href="#map-{ledger_id}">{ledger_id}</a>' in before
    assert "no auditor has published it" in before
    assert "None was noted" in before
    assert f"Under way: recover_bookie of bookie {lost}" in during
    assert ">running</span>" in during
    assert "<progress" in during
    assert "no auditor has published it" in during
    assert "Under way" not in after
    assert ">complete</span>" in after
    assert "1 replicated" in after
    assert "No ledger: each has the copies that it should have." in after


WIDTHS = (360, 820, 1400)
"""A phone, a tablet, a desk."""

MEASURE = """
<!doctype html><body style="margin:0"><script>
const found = [];
for (const [page, width] of %s) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.srcdoc = page;
  frame.onload = () => {
    const shown = frame.contentDocument;
    for (const map of shown.querySelectorAll("details")) map.open = true;
    const text = shown.body.innerText;
    found.push([width, shown.documentElement.scrollWidth, text]);
  };
  document.body.append(frame);
}
</script>
"""
"""A page of frames as wide as screens. What is in one is laid out as on a screen of that width."""


@pytest.mark.slow
@in_a_browser
def test_a_browser_shows_all_of_it_at_three_widths_during_a_recovery(
    own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (_, during, _), ledger_id, lost = around_a_recovery(own_cluster, monkeypatch)
    frames = json.dumps([(during, width) for width in WIDTHS]).replace("</", "<\\/")
    (tmp_path / "frames.html").write_text(MEASURE % frames, encoding="utf-8")
    with browsing((tmp_path / "frames.html").as_uri(), tmp_path / "profile") as page:
        found = sorted(page.evaluate("found"))
        light, dark = page.picture("light"), page.picture("dark")

    assert [width for width, _, _ in found] == list(WIDTHS)
    for width, needed, text in found:
        assert needed <= width, f"at {width} pixels one has to scroll sideways over {needed}"
        assert f"Under way: recover_bookie of bookie {lost}" in text
        assert str(ledger_id) in text
        assert text.index("Under way") < text.rindex("\nBookies"), "what needs care comes first"
    assert min(len(light), len(dark)) > 10_000
    assert light != dark


def test_a_ledger_that_was_published_says_since_when_and_why_it_is_still_so(
    own_cluster: LocalCluster,
) -> None:
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        ledger_id, lost = a_ledger_that_lost_a_bookie(own_cluster, bk)
        bk.audit()
        bk.context.store.underreplication.lock(LedgerId(ledger_id), Holder("<worker>"))
        facts = look(bk)
        page = render(facts)

    (lacking,) = facts.lacking
    assert (lacking.ledger_id, lacking.missing, lacking.live_copies) == (ledger_id, (lost,), 2)
    assert lacking.since_ms is not None
    assert "&lt;worker&gt; is at it" in page
    assert re.search(r"<td>(now|\d+ seconds? ago)</td>", page)


def test_jobs_that_died_or_left_something_need_care_until_they_are_run_again() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def job(minutes: int, state: str, about: str) -> dict[str, Any]:
        began = at + timedelta(minutes=minutes)
        return {
            "job": "recover_bookie",
            "about": about,
            "state": state,
            "started_at": began,
            "seen_at": began,
            "outcomes": [("left", 2)],
            "error": None,
            "by": "<somebody>",
        }

    jobs = [
        job(1, "left undone", "bookie a:1"),
        job(2, "complete", "bookie a:1"),
        job(3, "silent", "bookie b:1"),
        job(4, "left undone", "bookie c:1"),
        job(5, "running", "bookie d:1"),
    ]

    found = list(cluster_facts._of_jobs(jobs, round(at.timestamp() * 1000) + 600_000))
    assert [each.check for each in found] == [
        "job recover_bookie of bookie c:1",
        "job recover_bookie of bookie b:1",
    ]
    assert "2 left" in found[0].detail
    assert "7 minutes ago" in found[1].detail


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

        monkeypatch.setattr(client, "_call", note)
        assert "clicks" in render(look(bk))
    assert asked
    steps = [
        step
        for each in asked
        if type(each).__name__ in CHANGES
        for step in (operations_of(each) if isinstance(each, MultiWrite) else [each])
    ]
    clock = paths.clock(store._root, "")
    assert [each.path for each in steps if not each.path.startswith(clock)] == []


WAYS = """
const ways = [...document.querySelectorAll("a[href], summary, [tabindex='0']")]
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
        text = render(look(bk))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    with browsing((tmp_path / "page.html").as_uri(), tmp_path / "profile") as page:
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
        assert {each.role for each in told} >= {"link", "region"}
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
        tab_to(page, lambda at: at.name == f"Fragments of ledger {ledger_id}: positions by bookie")

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
