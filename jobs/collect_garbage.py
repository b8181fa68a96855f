"""Remove from bookies what nothing needs: deleted ledgers, copies that nothing names, leftovers.

    spark-submit jobs/collect_garbage.py METADATA_URI [BOOKIE ...] [--dry-run]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit jobs/collect_garbage.py zk1.example.com:2181 --dry-run

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("collect_garbage")
