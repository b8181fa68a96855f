"""Commands beside a partition that gives no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.cli.main import run


def test_a_partition_that_hangs_is_named_instead_of_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, root = tmp_path / "impatient.toml", tmp_path / "bookie"
    conf.write_text("bookie_timeout_ms = 300\n", encoding="utf-8")
    root.mkdir()
    os.mkfifo(root / MARKER_PATH)  # nobody ever writes to it

    code = run(["bookie", "verify", "--conf", str(conf), str(root)])

    assert code != 0
    said = capsys.readouterr().err
    assert "no answer for" in said
    assert str(root) in said
