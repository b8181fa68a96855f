r"""Put ledgers and logs of a backup into an empty cluster; run again, it does what is left.

    spark-submit jobs/restore.py METADATA_URI URI [LEDGER ...]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit jobs/restore.py zk3.example.com:2181 s3://backups/main

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("restore")
