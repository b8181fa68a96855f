"""How many files of the package a reader walks through who follows a call from its beginning.

``python -m tests.tidy.walked [-v]`` calls ``append`` of a small table, ``append`` of one that tasks
write as parts (as ``append(df)`` does, with a thread in place of Spark), ``open_ledger`` of a
closed and an open ledger, and ``recover_bookie``, on bookies in files with metadata in memory, in
this process. A file counts if one of its functions is entered, in any thread, however small that
function is: a property, too. These do not count: the stand-ins of ``testing/``, clock and threads
(``runtime/``), counters (``metrics.py``) and ``errors.py``, whose names say all that a reader needs
on the way; the number in brackets is with them. A call may find a thread of an earlier one still
at work, so that counts differ by one or two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import pyarrow as pa

import spark_bookkeeper
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground

PACKAGE: Final = f"{Path(spark_bookkeeper.__file__).parent}{os.sep}"
PASSED_BY: Final = ("runtime/", "metrics.py", "errors.py")


def walked(call: Callable[[], object]) -> dict[str, set[str]]:
    """The functions that a call enters, by file."""
    found: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        name, path = frame.f_code.co_name, frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE) and name != "<module>":
            found.setdefault(path.removeprefix(PACKAGE), set()).add(name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {path: names for path, names in found.items() if not path.startswith("testing")}


def main() -> None:
    """Print the counts; with ``-v`` the files and functions, too."""
    ground = Ground(Path(tempfile.mkdtemp()), bookies=3)
    context = ground.client()
    quorum, table = Quorum(3, 3, 2), pa.table({"n": list(range(1_000))})
    closed = lifecycle.create_ledger(context, quorum, schema=table.schema)
    left = lifecycle.create_ledger(context, quorum, schema=table.schema)
    left.append(table)
    left.abandon()
    lost = closed.metadata.last_fragment.ensemble[0]
    parted = lifecycle.create_ledger(
        context, quorum, schema=table.schema, entry_target_bytes=10_000
    )
    large = pa.concat_tables([table] * 20)

    ids = closed.ledger_id, left.ledger_id
    client = ground.client()

    def recover() -> None:
        recover_bookie(client, LocalRunner(client), BookieRecovery((lost,)))

    def lose_a_bookie() -> None:
        parted.close()
        ground.add_bookie()
        ground.stop(lost, destroy=True)

    for name, call in {
        "append": lambda: closed.append(table),
        "append in parts": lambda: parted.append(large),
        "close": closed.close,
        "open_ledger, closed": lambda: lifecycle.open_ledger(context, ids[0]),
        "open_ledger, to be recovered": lambda: lifecycle.open_ledger(context, ids[1]),
        "losing a bookie of three closed ledgers": lose_a_bookie,
        "recover_bookie": recover,
    }.items():
        files = walked(call)
        read = {path: names for path, names in files.items() if not path.startswith(PASSED_BY)}
        functions = sum(map(len, read.values()))
        print(f"{name}: {len(read)} files ({len(files)}), {functions} functions")
        if "-v" in sys.argv:
            for path in sorted(read):
                print(f"    {path}: {', '.join(sorted(files[path]))}")


if __name__ == "__main__":
    main()
