"""What commands print: JSON that parses, tables that keep every cell, progress on stderr."""

from __future__ import annotations

import enum
import io
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from spark_bookkeeper.cli.shell import output
from spark_bookkeeper.cli.shell.output import Output, print_what_can_be_printed, text_of
from spark_bookkeeper.protocol.arguments import LABEL_CHARACTERS
from spark_bookkeeper.runtime import progress as module


class State(enum.Enum):
    OPEN = 1


@dataclass(frozen=True)
class Row:
    ledger_id: int
    state: State
    custom_metadata: Mapping[str, bytes]


def test_what_others_chose_as_a_name_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An escape sequence in a label could clear the screen, or write over what stands there, and
    a mark of direction turns round what is behind it.
    """
    name = "a\x1b[2J\x1b]0;title\x07\rb\x9b31mc\td\ne ☃\u202efdp\u2066"
    out = Output()

    out.table(["name"], [[name]])
    out.say(name)
    out.note(name)

    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert not any(control in text for control in "\x1b\x07\r\x9b\u202e\u2066")
        assert "\\u202efdp\\u2066" in text
        assert "a\\x1b[2J" in text
        assert "☃" in text
    Output(is_json=True).json({"name": name})
    assert json.loads(capsys.readouterr().out) == {"name": name}


def test_of_a_long_label_a_line_shows_the_beginning() -> None:
    assert text_of(b"x" * LABEL_CHARACTERS) == "x" * LABEL_CHARACTERS
    assert text_of(b"x" * 3_000) == "x" * LABEL_CHARACTERS + "..."
    assert text_of(None) is None


def test_json_has_a_form_for_every_value_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "rows": [Row(7, State.OPEN, {"name": b"orders", "nonce": b"\xff\x00"})],
        "ctime": datetime(2026, 11, 21, tzinfo=timezone.utc),
        "bookies": frozenset({"b:1", "a:1"}),
        "path": Path("slots"),
        "facts": MappingProxyType({"entries": 3}),
    }

    Output(is_json=True).json(value)

    assert json.loads(capsys.readouterr().out) == {
        "rows": [
            {
                "ledger_id": 7,
                "state": "OPEN",
                "custom_metadata": {"name": "orders", "nonce": "ff00"},
            }
        ],
        "ctime": "2026-11-21T00:00:00+00:00",
        "bookies": ["a:1", "b:1"],
        "path": "slots",
        "facts": {"entries": 3},
    }


def test_json_refuses_what_it_has_no_form_for() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        Output(is_json=True).json({"value": object()})


def test_a_result_is_either_json_or_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for is_json in (True, False):
        out = Output(is_json=is_json)
        out.result({"complete": True}, lambda out=out: out.say("All there."))  # type: ignore[misc]  # a default in a lambda

    assert capsys.readouterr().out == '{"complete": true}\nAll there.\n'


def test_beside_json_a_sentence_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Output(is_json=True).say("Copying.")

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Copying.\n")


def test_a_table_keeps_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    ensemble = "[" + ", ".join(f"10.0.0.{i}:3181" for i in range(30)) + "]"

    Output().table(["ledger", "ensemble", "reason"], [[7, ensemble, None], [123456, "[red]", "x"]])

    printed = capsys.readouterr().out
    assert ensemble in printed
    assert "[red]" in printed
    assert "None" not in printed
    assert "│      7 │" in printed, "numbers stand to the right"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LEDGERS = (
    ["ledger", "name", "state", "E/Qw/Qa", "fragments", "last entry", "bytes", "created", "writer"],
    [
        [1234567, "orders", "IN_RECOVERY", "3/3/2", 1, None, None, "2026-11-21 10:00:00", None],
        [1234568, "[b]", "OPEN", "3/3/2", 2, 99, "1,234", "2026-11-21 10:00:00", "etl, 3 s ago"],
    ],
)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 90, 100, 200])
def test_in_a_narrow_terminal_words_stay_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(output, "_stdout", lambda: Console(file=terminal, width=width))

    Output().table(*LEDGERS, title="Ledgers")

    lines = terminal.getvalue().splitlines()
    for whole in ("1234567", "IN_RECOVERY", "OPEN", "fragments", "2026-11-21", "3/3/2"):
        assert any(re.search(rf"\b{whole}\b", line) for line in lines), terminal.getvalue()
    is_table = "╇" in terminal.getvalue()
    assert is_table == (width > 90), terminal.getvalue()
    assert not is_table or max(map(len, lines)) <= width


def test_words_of_wide_signs_stay_whole_and_names_of_columns_are_no_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(output, "_stdout", lambda: Console(file=terminal, width=50))

    rows = [[1, "台帳の名前", "word " * 9, None]]
    Output().table(["", "[/b]", "\x1b[31m", " "], rows)

    shown = terminal.getvalue()
    assert all(whole in shown for whole in ("台帳の名前", "[/b]", "\\x1b[31m", "╇")), shown
    assert max(map(cell_len, shown.splitlines())) <= 50


def test_a_table_of_a_terminal_that_is_too_narrow_has_a_block_for_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(output, "_stdout", lambda: Console(file=terminal, width=30))

    Output().table(
        ["ledger", "state", "last entry", "writer", "labels"],
        [[7, "OPEN", None, "etl, 3 s ago", "[b]"], [8, "CLOSED", 99, None, ""]],
    )

    assert terminal.getvalue() == (
        "ledger      7\nstate       OPEN\nwriter      etl, 3 s ago\nlabels      [b]\n"
        "\n"
        "ledger      8\nstate       CLOSED\nlast entry  99\n"
    )


def test_a_row_is_shown_as_it_is_also_where_it_names_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    Output(typed=["--metadata-uri", "zk://a/b"]).line(b"spark-bookkeeper doctor")
    assert terminal.getvalue() == "spark-bookkeeper doctor\n"


def test_short_work_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL_S", 3600)  # so that this is short on any machine

    with Output().progress("copying", total=2, unit="fragments") as progress:
        progress.set(1)
        progress.set(2)

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert progress.done == 2
    monkeypatch.setattr(module, "SHOW_AFTER_S", 3600)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Output().progress("copying") as progress:
        assert isinstance(progress, module.Bar)
        progress.phase("replacing", 1, 2)
    assert terminal.getvalue() == ""


def test_long_work_is_seen_even_when_it_does_not_move(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL_S", 0.001)

    seen = ""
    with Output().progress("listing ledgers"):
        while re.search("listing ledgers: [0-9]+ s so far\n", seen) is None:
            seen += capsys.readouterr().err


def test_a_line_of_progress_has_rate_and_time_left() -> None:
    lines = module.Lines("copying", 200, "fragments")
    lines.set(50)

    assert lines.line(10.0) == (
        "copying: 50 of 200 fragments after 10 s, 5.0 fragments/s, about 30 s left"
    )


def test_bytes_their_rate_and_the_time_left_are_in_a_line_and_beside_a_bar() -> None:
    lines = module.Lines("copying", 200, "fragments")
    lines.phase("copying", 50, 200, 40_000_000)

    assert lines.line(10.0) == (
        "copying: 50 of 200 fragments after 10 s, 40.0 MB, 4.0 MB/s, 5.0 fragments/s, "
        "about 30 s left"
    )
    assert module.size_text(40_000_000, 10.0) == "40.0 MB, 4.0 MB/s"
    assert module.size_text(0, 10.0) == ""


def test_in_a_terminal_it_is_a_bar_with_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(module, "SHOW_AFTER_S", 0)

    with module.shown("copying") as progress:
        assert isinstance(progress, module.Bar)
        progress.phase("copying [b]fragments", 50, 200, 40_000_000)
        progress._timer.join()
        progress.phase("copying [b]fragments", 60, 200, 50_000_000)
        progress._bar.refresh()
        print("{}")

    assert capsys.readouterr().out == "{}\n", "a program may read it, and sees no bar"
    assert isinstance(sys.stderr, Terminal)
    said = sys.stderr.getvalue()
    assert "copying [b]fragments" in said
    assert "60/200" in said
    assert "50.0 MB, " in said
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(module.shown("copying"), module.Lines), "where a bar would not be seen"


def test_pieces_that_take_their_time_are_counted_and_those_at_once_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[module.Progress] = []
    shown = module.shown

    def made_and_shown(what: str, total: float | None = None, unit: str = "") -> Any:
        made.append(shown(what, total, unit))  # type: ignore[arg-type]  # it is a Progress
        return made[-1]

    monkeypatch.setattr(module, "shown", made_and_shown)

    assert list(module.watched([1, 2], "reading", 3, "entries", lambda n: (n, n * 10))) == [1, 2]
    assert made == []

    monkeypatch.setattr(module, "SHOW_AFTER_S", -1)
    assert list(module.watched([1, 2], "reading", 3, "entries", lambda n: (n, n * 10))) == [1, 2]
    (progress,) = made
    assert (progress.done, progress.total, progress.size_bytes) == (3, 3, 30)

    monkeypatch.setenv(module.SWITCH, "off")
    assert list(module.watched([1, 2], "reading", 3, "entries", lambda n: (n, n * 10))) == [1, 2]
    assert len(made) == 1


def test_a_call_without_progress_shows_it_by_itself_unless_it_is_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL_S", 0.001)
    seen = ""
    with module.told(None, "recover_bookie") as tell:
        tell("copying fragments", 1, 4, 1_000_000)
        while "copying fragments: 1 of 4 after" not in seen:
            seen += capsys.readouterr().err
    capsys.readouterr()  # further lines, on a machine that is slow to come here

    monkeypatch.setenv(module.SWITCH, "off")
    with module.told(None, "recover_bookie") as tell:
        tell("copying fragments", 1, 4, 1_000_000)
    assert capsys.readouterr().err == ""
    heard: list[tuple[object, ...]] = []
    with module.told(lambda *args: heard.append(args), "recover_bookie") as tell:
        tell("copying fragments", 1, 4, 1_000_000)
    assert heard == [("copying fragments", 1, 4, 1_000_000)]
    monkeypatch.delenv(module.SWITCH)
    closed = Terminal()
    closed.close()
    for nowhere in (None, closed):
        monkeypatch.setattr(sys, "stderr", nowhere)
        with module.told(None, "recover_bookie") as tell:
            tell("copying fragments", 1, 4, 1_000_000)


def test_within_what_is_shown_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOW_AFTER_S", -1)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with module.Bar("appending", None) as outer:
        outer._timer.join()
        before = terminal.getvalue()
        with module.told(None, "recover_bookie") as tell:
            tell("copying fragments", 1, 4, 1_000_000)
        assert list(module.watched([1], "reading", 3, "entries", lambda n: (n, n))) == [1]
        outer._bar.refresh()
        said = terminal.getvalue()[len(before) :]

    assert "copying fragments" not in said
    assert "reading" not in said


def test_never_more_than_ten_seconds_of_silence() -> None:
    assert module.LINE_INTERVAL_S < 10


def test_work_that_nobody_counts_says_how_long_it_has_been_going_on() -> None:
    lines = module.Lines("comparing", None, "")

    assert lines.line(9.0) == "comparing: 9 s so far"
    lines.set(0, 0)
    assert lines.line(9.0) == "comparing: 9 s so far", "0 of 0 tells nobody anything"


def test_who_is_waited_for_is_part_of_the_line_and_begins_no_other_phase() -> None:
    lines = module.Lines("reading", None, "")
    lines.phase("copying fragments", 10, 40)
    began = lines.started = 5.0

    lines.phase("copying fragments, waiting for a:1 for 3 s", 10, 40)
    assert lines.line(10.0).startswith("copying fragments, waiting for a:1 for 3 s: 10 of 40 after")
    lines.phase("copying fragments", 20, 40)
    assert lines.line(10.0).startswith("copying fragments: 20 of 40 after")
    assert lines.started == began
    lines.phase("replacing bookies", 0, 1)
    assert lines.started != began


def test_a_terminal_without_the_characters_shows_what_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    print_what_can_be_printed()

    Output().say("caf\u00e9 \u2588")
    Output().table(["name"], [["caf\u00e9"]])
    Output(is_json=True).json({"name": "caf\u00e9"})
    stdout.flush()

    lines = stdout.buffer.getvalue().decode("ascii").splitlines()
    assert lines[0] == "caf? ?"
    assert json.loads(lines[-1]) == {"name": "caf\u00e9"}
