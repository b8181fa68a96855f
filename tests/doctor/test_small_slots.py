"""Ledgers of very many small files are named, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.doctor import small_slots as crowded
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.doctor.ledgers import LedgersSeen
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.testing.ground import Ground
from tests.worlds import written


def test_an_open_ledger_of_many_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowded, "MANY_FILES", 20)
    ground = Ground(tmp_path, bookies=3)
    written(ground, 30)  # it is closed, and will be compacted
    written(ground.client(), 5, close=False)
    many = written(ground.client(), 30, close=False)

    found = [d for d in cluster_diagnoses(ground.context) if d.check == "small appends"]

    (diagnosis,) = found
    assert diagnosis.verdict == "warning"
    assert "of 2 open ledgers, 1 have 20 files or more" in diagnosis.detail
    assert f"{many.ledger_id} (30 files)" in diagnosis.detail
    assert "append_async" in str(diagnosis.remedy)
    assert "roll_entries" in str(diagnosis.remedy)
    monkeypatch.setattr(crowded, "LOOKED_AT", 1)
    (diagnosis,) = crowded.crowded_ledgers(ground.context, LedgersSeen.of(ground.context))
    assert "of the newest 1 of 2 open ledgers, 1 have 20 files" in diagnosis.detail


def test_a_ledger_whose_bookie_cannot_be_asked_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowded, "MANY_FILES", 1)
    ground = Ground(tmp_path, bookies=3)
    written(ground.client(), 5, close=False)
    seen = LedgersSeen.of(ground.context)
    monkeypatch.setattr(FileBookie, "files_of", _away)

    assert list(crowded.crowded_ledgers(ground.context, seen)) == []


def _away(*_: object) -> None:
    raise BookKeeperError("away")
