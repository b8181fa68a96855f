"""By this module Spark finds ``format("bookkeeper")`` without being told.

Spark imports every module whose name begins with ``pyspark_``, and takes its ``DefaultSource``.
One such module that raises would hide the sources of all others, so this one never does.
"""

try:
    from spark_bookkeeper.source.data_source import BookKeeperSource as DefaultSource
except Exception:  # noqa: BLE001  (the package is gone, or is for another Spark)
    pass
else:
    __all__ = ["DefaultSource"]
