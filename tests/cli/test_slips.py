"""Slips of the pen: an empty variable, the path of a file, a bookie that is not there."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.autorecovery import group
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.jobs import JOBS, job_command
from spark_bookkeeper.cli.shell.settings import METADATA_URI_VARIABLE
from spark_bookkeeper.cli.shell.work import MOST_ROWS
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.protocol.ids import LedgerId
from tests.cli.conftest import Call, commands
from tests.support.sessions import connect_without_spark

full = pytest.mark.full

UNKNOWN = "1.2.3.4:99"
"""A bookie that no cluster here has."""


def every_command() -> list[tuple[str, click.Command]]:
    return [*commands(), *((f"jobs/{name}.py", job_command(name)) for name in JOBS)]


def test_no_command_takes_a_text_or_path_that_is_empty() -> None:
    taken: list[str] = []
    for name, command in every_command():
        for parameter in command.params:
            is_text = isinstance(parameter.type, click.Path | click.types.StringParamType)
            if not is_text or parameter.name in ("metadata_uri", "password"):
                continue  # the first has a text of its own; no password is one
            if is_taken("", parameter, command):
                taken.append(f"{name} {parameter.name}")

    assert taken == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("cluster", "restore", ""),
        ("bookie", "verify", ""),
        ("ledger", "append", ""),
        ("local", "start", "--directory", ""),
    ],
)
def test_an_empty_argument_is_not_the_directory_one_is_in(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--metadata-uri", "127.0.0.1:1", *arguments]) == 2
    assert "it is empty" in capsys.readouterr().err


def test_who_wants_more_bookies_than_there_are_is_told_the_option(call: Call) -> None:
    done = call("ledger", "create", "-e", 9)

    assert (done.code, "or ask for fewer: --ensemble-size 5\n" in done.err) == (2, True), done.err


def test_an_empty_uri_is_not_the_cluster_of_the_environment(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(METADATA_URI_VARIABLE, cluster.metadata_uri)

    assert run(["ledger", "list"]) == 0
    assert run(["ledger", "list", "--metadata-uri", ""]) == 2
    assert run(["--metadata-uri", "", "ledger", "list"]) == 2
    assert capsys.readouterr().err.count("it is empty; is a variable not set") == 2
    with pytest.raises(InvalidArgumentError, match="metadata_uri='' is empty"):
        sbk.connect("")


@pytest.mark.parametrize("text", ["1_0", "٣", " 3", "+3", "0x3", "3.0", "-1", str(1 << 63)])
def test_what_python_would_take_for_a_number_is_no_ledger_id(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--metadata-uri", "127.0.0.1:1", "ledger", "delete", "--yes", "--", text]) == 2

    assert text.strip() in capsys.readouterr().err


def test_what_python_would_take_for_a_number_is_none_for_any_command() -> None:
    taken = {
        f"{name} {parameter.name}": text
        for name, command in every_command()
        for parameter in command.params
        if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType)
        for text in ("1_0", "\N{ARABIC-INDIC DIGIT THREE}", " 3", "+3", "3.0")
        if is_taken(text, parameter, command)
    }

    assert taken == {}


def is_taken(text: str, parameter: click.Parameter, command: click.Command) -> bool:
    try:
        parameter.type.convert(text, parameter, click.Context(command))
    except click.BadParameter:
        return False
    return True


def test_two_times_by_which_ledgers_go_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    times = ("--created-before", "2020-01-01", "--older-than", "1d")

    assert run(["--metadata-uri", "127.0.0.1:1", "ledger", "delete-orphans", *times, "--yes"]) == 2

    assert "more than once" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bookie", "gc", UNKNOWN, "--yes"),
        ("bookie", "compact", UNKNOWN),
        ("bookie", "scrub", UNKNOWN),
        ("bookie", "space", UNKNOWN),
        ("bookie", "show", UNKNOWN),
        ("ledger", "list", "--bookie", UNKNOWN),
        ("ledger", "list", "--bookie", "slip"),
        ("autorecovery", "start", "--once", "--engine", "local", "--beside", UNKNOWN),
    ],
)
def test_a_bookie_that_is_not_there_is_no_bookie_with_nothing_to_do(
    arguments: tuple[str, ...], cluster: LocalCluster, call: Call
) -> None:
    done = call(*arguments, "--json")

    assert (done.code, list(done.json)) == (2, ["error"])
    assert (UNKNOWN if UNKNOWN in arguments else "slip") in done.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("bookie", "cookie", "delete", "ALIVE"), "is alive"),
        (("bookie", "cookie", "delete", UNKNOWN), "has no cookie"),
        (
            ("bookie", "cookie", "create", "--bookie-id", UNKNOWN, "--root", "ROOT"),
            "is that of bookie",
        ),
        (("bookie", "format", "--bookie-id", "ALIVE", "--root", "ROOT"), "is alive"),
        (("bookie", "format", "--bookie-id", UNKNOWN, "--root", "ROOT"), "belongs to bookie"),
        (("bookie", "recover", "ALIVE", "--no-spark"), "is alive"),
        (("bookie", "decommission", "ALIVE", "--no-spark"), "is alive"),
        (("bookie", "decommission", UNKNOWN, "--no-spark"), UNKNOWN),
        (("bookie", "drain", UNKNOWN, "--no-spark"), UNKNOWN),
        (("bookie", "refill", UNKNOWN, "--no-spark"), UNKNOWN),
        (("bookie", "rebalance", UNKNOWN, "--no-spark"), UNKNOWN),
        (("bookie", "gc", UNKNOWN), UNKNOWN),
        (("cluster", "format", "--instance-id", "another"), "and not 'another'"),
        (("cluster", "nuke", "--instance-id", "INSTANCE"), "bookies are alive"),
    ],
)
def test_nobody_is_asked_about_what_is_refused(
    arguments: tuple[str, ...],
    why: str,
    cluster: LocalCluster,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    alive = cluster.bookie_ids[0]
    words = {"ALIVE": alive, "ROOT": cluster.root_of(alive)}
    if "INSTANCE" in arguments:
        words["INSTANCE"] = call("cluster", "info", "--json").json["instance_id"]

    done = call(*(words.get(word, word) for word in arguments))

    assert (done.code, "[y/N]" in done.err) == (2, False)
    assert why in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bookie", "verify"),
        ("bookie", "format", "--yes", "--bookie-id", UNKNOWN, "--root"),
        ("bookie", "start", "--bookie-id", UNKNOWN, "--root"),
        ("cluster", "restore", "--no-spark"),
        ("cluster", "backup", "--no-spark"),
    ],
)
def test_where_a_directory_is_asked_for_a_file_is_a_call_that_was_wrong(
    arguments: tuple[str, ...], cluster: LocalCluster, call: Call, numbers: Path
) -> None:
    done = call(*arguments, numbers)

    assert (done.code, str(numbers) in done.err) == (2, True)
    assert "may or may not" not in done.err


@pytest.mark.parametrize("verb", ["create", "generate"])
def test_the_storage_of_a_lost_cookie_is_looked_for_and_not_made(
    verb: str, cluster: LocalCluster, call: Call, tmp_path: Path
) -> None:
    done = call("bookie", "cookie", verb, "--bookie-id", UNKNOWN, "--root", tmp_path / "unmounted")

    assert (done.code, "mkdir" in done.err) == (2, False)
    assert "is its disk mounted?" in done.err


@pytest.mark.parametrize(
    "verb", [("format", "--yes"), ("cookie", "generate"), ("cookie", "create")]
)
def test_a_root_that_cannot_be_read_is_told_as_that_and_nothing_was_changed(
    verb: tuple[str, ...], cluster: LocalCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(partition: object) -> object:
        raise BookieUnavailableError("no credentials", bookie_id=UNKNOWN)

    monkeypatch.setattr(Partition, "marker", refused)
    root = cluster.root_of(cluster.bookie_ids[0])

    done = call("bookie", *verb, "--bookie-id", UNKNOWN, "--root", root)

    assert (done.code, "may or may not" in done.err) == (2, False)
    assert "Check the root" in done.err


def test_what_is_empty_or_unknown_is_refused_in_python_too(
    cluster: LocalCluster, call: Call
) -> None:
    with connect_without_spark(cluster.metadata_uri) as bk:
        calls: list[Callable[[], object]] = [
            lambda: bk.backup(""),
            lambda: bk.restore(" "),
            lambda: bk.create_ledger(name=""),
            lambda: bk.create_ledger(owner=""),
            lambda: bk.scrub(UNKNOWN),
            lambda: bk.compact(bookie_ids=[UNKNOWN]),
            lambda: bk.collect_garbage(bookie_ids=[UNKNOWN]),
        ]
        for each in calls:
            with pytest.raises(InvalidArgumentError):
                each()
        (row,) = bk.compact([987_654]).rows
        assert (row.ledger_id, row.status) == (987_654, "gone")
        bk.create_log("slips")

    done = call("log", "consumers", "slips", "--forget", "nobody")

    assert "no consumer nobody; nothing was changed" in done.out


def test_who_asks_for_what_waits_is_told_why_nobody_works_on_it(
    own_cluster: LocalCluster, call_own: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def told_at_once() -> Iterator[threading.Event]:
        stopping = threading.Event()
        stopping.set()
        yield stopping

    made = call_own("ledger", "append", numbers, "-e", 5, "-w", 3, "-a", 2, "--json").json
    own_cluster.stop_bookie(own_cluster.bookie_ids[0])

    unnoticed = call_own("autorecovery", "underreplicated")
    assert "autorecovery start" in unnoticed.err
    call_own("autorecovery", "audit")
    call_own("autorecovery", "disable")
    waiting = call_own("autorecovery", "underreplicated", "--json")
    status = call_own("autorecovery", "status", "--json").json
    monkeypatch.setattr(group, "until_signalled", told_at_once)
    started = call_own("autorecovery", "start", "--engine", "local")
    enabled = call_own("autorecovery", "enable", "--json")
    ordered = call_own("bookie", "set-readonly", own_cluster.bookie_ids[0], "--reason", "new disk")

    assert [row["ledger_id"] for row in waiting.json["underreplicated"]] == [made["ledger_id"]]
    assert "autorecovery enable" in waiting.err
    assert "bookie set-writable BOOKIE" in waiting.err, "it is on all the bookies that are there"
    assert "autorecovery enable" in status["warning"]
    assert "autorecovery enable" in started.err, "it runs, and will do nothing"
    assert "Ctrl-C again" in started.err
    assert (enabled.json["is_enabled"], "autorecovery start" in enabled.err) == (True, True)
    assert "its agent does not run" in ordered.out


def test_of_very_many_that_wait_the_most_endangered_are_shown_with_their_age(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    made = call_own("ledger", "append", numbers, "--json").json["ledger_id"]
    lost = call_own("ledger", "show", str(made), "--json").json["bookies"][0]
    own_cluster.stop_bookie(lost)
    call_own("autorecovery", "audit")
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        tree = bk.context.store.underreplication
        for ledger_id in range(1_000, 1_000 + MOST_ROWS):
            tree.mark(LedgerId(ledger_id), [lost], bk.context.cluster_ms() - 90_000)

    shown = call_own("autorecovery", "underreplicated")
    everything = call_own("autorecovery", "underreplicated", "--json").json["underreplicated"]
    repaired = call_own("bookie", "recover", lost, "--yes", "--no-spark")

    assert f"the {MOST_ROWS} most endangered of {MOST_ROWS + 1}" in shown.out
    assert len(re.findall(r"\b(?:9\d|1\d\d) s\b", shown.out)) >= MOST_ROWS - 1, (
        "since when they wait"
    )
    assert len(everything) == MOST_ROWS + 1
    assert "fully replicated: 1 of 1 ledger" in repaired.out


@pytest.mark.parametrize(
    ("form", "closed"),
    [
        ("--json", "<&- >&- 2>&-"),
        pytest.param("--json", ">&-", marks=full),
        pytest.param("", ">&-", marks=full),
        pytest.param("", "2>&-", marks=full),
    ],
)
def test_who_closed_the_output_has_the_command_done_all_the_same(
    form: str, closed: str, tmp_path: Path
) -> None:
    command = f'"{sys.executable}" -m spark_bookkeeper local status --directory "{tmp_path}"'

    assert subprocess.run(["sh", "-c", f"{command} {form} {closed}"], check=False).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_an_output_without_room_is_told_as_that(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m spark_bookkeeper local status --json --directory "{tmp_path}"'

    done = subprocess.run(
        ["sh", "-c", f"{command} > /dev/full"], check=False, capture_output=True, text=True
    )

    assert (done.returncode, "the output cannot be written" in done.stderr) == (1, True)
