"""Commands beside a partition that gives no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.cli.bookie import partition
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.client.bookies.asking import Patience


def test_a_partition_that_hangs_is_named_instead_of_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(partition, "PATIENCE", Patience(give_up=0.3, hedge=0.1, retry=1.0))
    os.mkfifo(tmp_path / MARKER_PATH)  # nobody ever writes to it

    code = run(["bookie", "verify", str(tmp_path)])

    assert code != 0
    said = capsys.readouterr().err
    assert "no answer for" in said
    assert str(tmp_path) in said
