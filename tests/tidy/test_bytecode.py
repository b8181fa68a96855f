"""pytest accepts the bytecode that is written before a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import _read_pyc

from tests import bytecode


def test_pytest_takes_the_bytecode_that_was_written_and_compiles_nothing_again(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    test = tmp_path / "test_here.py"
    shutil.copy(__file__, test)

    bytecode.write(test, pytestconfig)

    assert _read_pyc(test, bytecode.pyc_of(test)) is not None
