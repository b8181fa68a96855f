"""Move shares of closed ledgers to bookies that have room.

    spark-submit jobs/rebalance.py METADATA_URI [BOOKIE]... [--max-bytes N]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit jobs/rebalance.py zk1.example.com:2181 10.0.0.9:3181

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("rebalance")
