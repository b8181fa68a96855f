"""The root of the command line: options anywhere, exit codes, messages for a person."""

from __future__ import annotations

import importlib.machinery
import json
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest

from spark_bookkeeper.cli import main as cli
from spark_bookkeeper.cli.bookie import start as bookie_start
from spark_bookkeeper.cli.shell import termination
from spark_bookkeeper.cli.shell.cluster_options import Access
from spark_bookkeeper.cli.shell.prompt import NotConfirmedError
from spark_bookkeeper.cli.shell.remedies import in_commands
from spark_bookkeeper.cli.shell.settings import METADATA_URI_VARIABLE, Settings, begun, exit_code_of
from spark_bookkeeper.cli.shell.termination import INTERRUPTED, until_signalled
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoClusterError,
    NoSuchLedgerError,
)
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.spark.waiting import wait_apart

SCRIPTS = sorted((Path(__file__).parents[2] / "jobs").glob("*.py"))


@click.group()
def doctor() -> None:
    """A noun for these tests."""


@doctor.command()
@click.pass_obj
def tell(settings: Settings) -> None:
    """Tell the global options."""
    settings.output.json(
        {
            "uri": settings.metadata_uri,
            "json": settings.output.is_json,
            "verbose": settings.is_verbose,
        }
    )


@doctor.command()
@click.argument("code", type=int)
def leave(code: int) -> int:
    """End with an exit code."""
    return code


@doctor.command()
@click.argument("kind")
@click.pass_obj
def fail(settings: Settings, kind: str) -> None:
    """End with an error."""
    if kind == "uri":
        settings.require_metadata_uri()
    if kind == "fenced":
        raise LedgerFencedError(
            "ledger 7 was fenced; the adds may or may not be written", ledger_id=7, ids=[7]
        )
    if kind == "begun":
        with begun():
            raise NoSuchLedgerError("it is gone")
    if kind == "no":
        raise NotConfirmedError("not confirmed. Nothing was changed")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "terminate":
        signal.raise_signal(signal.SIGTERM)
    if kind == "terminate-work":
        cancelled = threading.Event()

        def work() -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            cancelled.wait()
            settings.output.note("cancelled")

        wait_apart(work, cancelled.set)
    if kind == "terminate-waiting":
        with until_signalled() as stopping:
            signal.raise_signal(signal.SIGTERM)
            assert stopping.is_set()
        return
    if kind == "terminate-waiting-twice":
        with until_signalled(lambda: settings.output.note("ended at once")):
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return
    raise RuntimeError("a surprise")


@pytest.fixture(autouse=True)
def _noun(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spark_bookkeeper.cli.doctor"
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
    module.__dict__["doctor"] = doctor
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(METADATA_URI_VARIABLE, raising=False)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert cli.run(arguments) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def test_global_options_stand_before_the_noun_or_behind_the_verb(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = {"uri": "zk://zk1:2181/ledgers", "json": True, "verbose": True}
    options = ("--metadata-uri", "zk://zk1:2181/ledgers", "--json", "--verbose")

    assert told(capsys, *options, "doctor", "tell") == expected
    assert told(capsys, "doctor", "tell", *options) == expected


def test_the_option_wins_over_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METADATA_URI_VARIABLE, "zk://from-variable/ledgers")

    assert told(capsys, "doctor", "tell")["uri"] == "zk://from-variable/ledgers"
    assert told(capsys, "doctor", "tell", "--metadata-uri", "zk://given")["uri"] == "zk://given"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_chooses_its_exit_code(code: int) -> None:
    assert cli.run(["doctor", "leave", str(code)]) == code


def test_an_error_is_one_message_and_no_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "fail", "fenced"]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: ledger 7 was fenced; the adds may or may not be written")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("message", "commands"),
    [
        ("there is no log 'a'. logs() shows those there are, create_log() makes one", 2),
        ("log 'a' exists already. open_log('a') opens it", 1),
        ("no bookie was named; bookies() shows which are lost", 1),
        ("close it, or stop it and recover_ledgers() it", 1),
        ("bk.logs() shows them, as `logs()` does", 0),
    ],
)
def test_the_remedy_of_an_error_is_a_command_that_there_is(message: str, commands: int) -> None:
    said = in_commands(message)

    found = re.findall("`spark-bookkeeper ([a-z]+) ([a-z]+)[^`]*`", said)
    assert len(found) == commands
    assert ("()" in said) == (commands == 0)
    for noun, verb in found:
        group = cli.root.get_command(click.Context(cli.root), noun)
        assert isinstance(group, click.Group)
        assert verb in group.commands


@pytest.mark.parametrize(
    ("arguments", "code", "condition", "message", "facts"),
    [
        (
            ["fail", "fenced"],
            1,
            "BOOKKEEPER_LEDGER_FENCED",
            "ledger 7 was fenced",
            {"ledger_id": 7},
        ),
        (
            ["fail", "begun"],
            1,
            "BOOKKEEPER_NO_SUCH_LEDGER",
            "it is gone",
            {"nothing_changed": False},
        ),
        (["fail", "uri"], 2, "BOOKKEEPER_INVALID_ARGUMENT", "no cluster was named", {}),
        (["fail", "no"], 1, "BOOKKEEPER_NOT_CONFIRMED", "not confirmed", {}),
        (["fail", "surprise"], 1, "BOOKKEEPER_ERROR", "RuntimeError: a surprise", {}),
        (["fail"], 2, "BOOKKEEPER_INVALID_ARGUMENT", "Missing argument 'KIND'", {}),
        (["flail"], 2, "BOOKKEEPER_INVALID_ARGUMENT", "No such command 'flail'", {}),
        (
            ["fail", "uri", "zk://me:secret@host"],
            2,
            "BOOKKEEPER_INVALID_ARGUMENT",
            "Got unexpected extra argument (zk://me:***@host)",
            {},
        ),
    ],
)
def test_programs_are_told_of_an_error_by_the_conditions_that_spark_knows(
    arguments: list[str],
    code: int,
    condition: str,
    message: str,
    facts: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["--json", "doctor", *arguments]) == code
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["message"].startswith(message)
    assert error == {"code": condition, "message": error["message"], "facts": facts}
    assert error["message"] in said.err

    cli.run(["doctor", *arguments])
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not hasattr(click.exceptions, "NoSuchCommand"), reason="click before 8.4")
def test_of_an_unknown_noun_the_nearest_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["ledgr", "list"]) == 2

    assert "Did you mean 'ledger'?" in capsys.readouterr().err


def test_verbose_shows_the_stack_trace_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "fail", "surprise", "--verbose"]) == 1

    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert "Error: RuntimeError: a surprise" in captured.err


def test_no_cluster_named_is_a_wrong_call_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["doctor", "fail", "uri"]) == 2

    assert METADATA_URI_VARIABLE in capsys.readouterr().err


def test_an_interrupt_leaves_something_undone() -> None:
    assert cli.run(["doctor", "fail", "interrupt"]) == 1


@pytest.fixture(params=["default", "ignored"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """What SIGINT does; it is ignored where a script started the command with ``&``."""
    before = signal.getsignal(signal.SIGINT)
    is_ignored = request.param == "ignored"
    signal.signal(signal.SIGINT, signal.SIG_IGN if is_ignored else signal.default_int_handler)
    # Without a handler SIGTERM would end these tests, and not fail them.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("kind", ["terminate", "terminate-work"])
def test_sigterm_ends_a_command_as_ctrl_c_does(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["doctor", "fail", kind]) == 1

    said = capsys.readouterr().err
    assert "Interrupted. What was under way may be unfinished." in said
    assert ("cancelled" in said) == (kind == "terminate-work")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("interrupts")
def test_a_command_that_waits_for_sigterm_hears_it_itself() -> None:
    assert cli.run(["doctor", "fail", "terminate-waiting"]) == 0


def test_who_does_not_wait_for_its_end_interrupts_it_by_a_second_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    assert cli.run(["doctor", "fail", "terminate-waiting-twice"]) == 1

    assert capsys.readouterr().err.split("\n") == ["ended at once", "", INTERRUPTED, ""]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


HANGING = """
import signal
from spark_bookkeeper.cli.shell.termination import until_signalled
from spark_bookkeeper.runtime.runtime import ThreadRuntime

runtime = ThreadRuntime()
try:
    with until_signalled():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    while True:  # as a session whose ZooKeeper does not answer, and then another one
        runtime.sleep(60)
"""


def test_the_second_signal_ends_also_who_cannot_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=50
    )

    assert (done.returncode, done.stderr) == (1, f"{INTERRUPTED}\n")


def test_the_second_signal_leaves_out_the_other_ends_that_would_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers beside several partitions end one after the other, each in its own time."""
    ended: list[str] = []

    class Beside:
        """A cluster, its autorecovery, and that at work, as far as it matters here."""

        context = SimpleNamespace(metrics=None)

        def __init__(self, name: str = "") -> None:
            self.autorecovery = self
            self._name = name

        def start(self, bookie_id: str, **_: Any) -> Beside:
            return Beside(bookie_id)

        def stop(self) -> None:
            ended.append(self._name)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bookie_start, "connected", lambda *_: nullcontext(Beside()))
    settings: Any = None
    server: Any = SimpleNamespace(show_also=lambda *_: None)
    with (  # noqa: PT012  (the end of the block is what raises)
        pytest.raises(KeyboardInterrupt),
        until_signalled(lambda: None) as stopping,
        ExitStack() as beside,
    ):
        for name in ("h:1", "h:2"):
            beside.enter_context(
                bookie_start._autorecovery(settings, Access(), BookieId(name), server, stopping)
            )
        signal.raise_signal(signal.SIGTERM)

    assert ended == ["h:2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("program", "imported"),
    [("spark_bookkeeper", "spark_bookkeeper.cli.main")]
    + [(str(script), "spark_bookkeeper.cli.shell.jobs") for script in SCRIPTS],
    ids=["command line", *(script.stem for script in SCRIPTS)],
)
def test_interrupted_during_the_imports_is_a_word_and_no_stack_trace(
    number: signal.Signals,
    program: str,
    imported: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == imported:
                signal.raise_signal(number)

    monkeypatch.delitem(sys.modules, imported, raising=False)
    monkeypatch.delitem(sys.modules, "spark_bookkeeper.__main__", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    run = runpy.run_path if program.endswith(".py") else runpy.run_module

    with pytest.raises(SystemExit) as ended:
        run(program, run_name="__main__")

    assert ended.value.code == 1
    assert capsys.readouterr().err == "Interrupted.\n"


def test_who_was_interrupted_twice_is_told_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session takes longer to be given back than it is waited for."""
    has_ended = threading.Event()
    monkeypatch.setattr("os._exit", lambda _: has_ended.set())
    monkeypatch.setattr(termination, "AT_ONCE_SECONDS", 0.0)

    def waits_for_ever() -> None:
        with termination.until_signalled():
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                has_ended.wait()

    assert cli.guarded(waits_for_ever, []) == 1

    assert capfd.readouterr().err == f"{INTERRUPTED}\n"


@pytest.mark.parametrize(
    "arguments", [["--no-such-option"], ["no-such-noun"], ["doctor", "no-such-verb"]]
)
def test_a_wrong_call_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2

    assert "Error: No such" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgumentError("a wrong call"), 2),
        (NoClusterError("no cluster here"), 2),
        (MetadataUnavailableError("nobody there", nothing_changed=True), 2),
        (MetadataUnavailableError("the answer was lost"), 1),
        (BookKeeperError("anything else"), 1),
    ],
)
def test_2_promises_that_nothing_was_changed(error: BookKeeperError, code: int) -> None:
    assert exit_code_of(error) == code


def test_a_noun_without_a_module_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.NOUNS, "unwritten", "Not there yet.")

    assert "unwritten" not in cli.root.list_commands(click.Context(cli.root))
    assert "doctor" in cli.root.list_commands(click.Context(cli.root))


def test_the_package_runs_as_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_bookkeeper", "no-such-noun"], capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = (
        "from spark_bookkeeper.cli.main import run; import spark_bookkeeper.cli.main as m, click\n"
        "@m.root.command('flood')\n"
        "def flood():\n"
        "    for _ in range(100_000): click.echo('ledger')\n"
        "m.root.get_command = lambda ctx, name: flood\n"
        "raise SystemExit(run(['flood']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read()

    assert complaint == ""
