"""CI fails for a suite that is cut off, does not begin, holds no test or skips one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.tidy.programs import ROOT

PASSED = "<testsuites><testsuite><testcase classname='t' name='passes'/></testsuite></testsuites>"


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suites", ROOT / ".ci" / "suites.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def suite(ci: ModuleType, name: str, report: str = PASSED, code: int = 0) -> object:
    """A suite that writes a report and ends."""
    program = f"""
import pathlib, sys
pathlib.Path(sys.argv[1].removeprefix("--junitxml=")).write_text({report!r})
sys.exit({code})
"""
    return ci.Suite(name, (sys.executable, "-c", program))


def test_suites_that_pass_pass(
    ci: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ci.run_all([suite(ci, "one"), suite(ci, "two")], tmp_path, 600) == 0

    assert "FAILED" not in capfd.readouterr().out


def test_a_suite_that_is_cut_off_fails(ci: ModuleType, tmp_path: Path) -> None:
    endless = ci.Suite("endless", (sys.executable, "-c", "while True: pass"))

    assert "was cut off" in endless.run(tmp_path / "report.xml", 0.2)


def test_a_suite_that_does_not_begin_fails(
    ci: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ci.run_all([suite(ci, "behind")], tmp_path, 0) == 1

    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert "behind" in line
    assert "did not begin" in line


@pytest.mark.parametrize(
    ("report", "code", "fault"),
    [
        (PASSED, 1, "exit code 1"),
        (PASSED, 5, "exit code 5"),
        ("<testsuites/>", 0, "holds no test"),
        (
            "<testsuites><testcase classname='t' name='page'>"
            "<skipped message='there is no Chromium'/></testcase></testsuites>",
            0,
            "t::page: there is no Chromium",
        ),
    ],
)
def test_a_suite_fails_that_fails_or_is_empty_or_skips(
    ci: ModuleType,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    report: str,
    code: int,
    fault: str,
) -> None:
    """A failure does not keep the suites behind it from running."""
    suites = [suite(ci, "faulty", report, code), suite(ci, "behind")]

    assert ci.run_all(suites, tmp_path, 600) == 1

    said = capfd.readouterr().out
    assert fault in said
    assert said.count("FAILED") == 1


def test_a_test_may_be_skipped_for_what_a_machine_is(ci: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testcase classname='t' name='disks'>"
        "<skipped message='there is but one disk here'/></testcase></testsuites>"
    )

    assert ci.fault_of(report) == ""


def test_every_marker_that_the_plain_run_leaves_out_has_a_suite(
    ci: ModuleType, tmp_path: Path
) -> None:
    """Except ``exhaustive``; ``tests/README.md`` says when those were last run to their end."""
    commands = [" ".join(each.command) for each in ci.suites(tmp_path)]

    for marker in ("full", "slow", "delta", "peer"):
        asked = [command for command in commands if marker in command.replace(f"not {marker}", "")]
        assert asked, f"no suite of CI runs the tests marked {marker}"
