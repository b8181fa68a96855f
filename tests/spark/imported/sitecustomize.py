"""Has the Python processes of Spark import what they need once, and quickly.

Python imports this module when it starts, in the session of the tests, whose path begins with the
folder of this file. What costs a task more than its work:

* Spark forks every worker from a process that has imported Spark's part alone. A worker that fails,
  or that has had nothing to do for a minute, is followed by another one, which imports this library
  and pandas again.
* Spark puts its own code on the path as archives, of which Python keeps no bytecode, and which
  every task reads again to see whether they have changed. The same code is installed beside them.

What a worker does without this is tested by ``spark/processes/test_fresh_workers.py``.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys

LIBRARY = (
    "spark_bookkeeper.metadata.zookeeper",
    "spark_bookkeeper.source",
    "spark_bookkeeper.spark",
)


def _import_for(worker: str) -> None:
    importlib.import_module(worker)
    for name in LIBRARY:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    if worker == "pyspark.worker":
        importlib.import_module("pandas")


_program = [*sys.orig_argv, "", "", ""]
if _program[1] == "-m" and _program[2].startswith("pyspark."):
    sys.path[:] = [place for place in sys.path if not place.endswith(".zip")]
    if _program[2] == "pyspark.daemon":
        _import_for(_program[3])
        gc.collect()
        gc.freeze()  # or every worker would look through it all, and copy it
