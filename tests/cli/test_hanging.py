"""Commands, ``doctor`` among them, beside a storage that gives no answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.hanging import Hang


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


OTHERS = ("put_if_absent", "create", "write", "finish", "space")
"""What a look asks for besides."""

full = pytest.mark.full


@pytest.mark.parametrize("operation", ["read", *(pytest.param(o, marks=full) for o in OTHERS)])
def test_the_doctor_names_who_hangs_and_finds_the_others_well(
    tmp_path: Path, operation: str
) -> None:
    config = ClientConfig(bookie_timeout_ms=4_000, read_hedge_ms=50)
    ground = Ground(tmp_path, bookies=3, config=config)
    culprit = ground.bookie_ids[1]
    hang = Hang.of(ground.runtime, operation)
    context = ground.client(
        None, lambda place, asked, path: hang.meet(asked, path) if place == culprit else None
    )

    found = {f.check: f for f in cluster_diagnoses(context) if f.check.startswith("bookie ")}
    hang.release()

    assert hang.count
    assert {check for check, f in found.items() if f.verdict != "ok"} == {f"bookie {culprit}"}
    assert "no answer for" in found[f"bookie {culprit}"].detail
    assert found[f"bookie {culprit}"].remedy is not None
