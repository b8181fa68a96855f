"""Do the bookies hold what the metadata says?

    spark-submit jobs/check_ledgers.py METADATA_URI [LEDGER ...] [--percentage P]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit jobs/check_ledgers.py zk1.example.com:2181 --percentage 100

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("check_ledgers")
