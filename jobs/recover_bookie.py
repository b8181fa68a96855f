"""Make the data of a lost bookie again on other bookies.

    spark-submit jobs/recover_bookie.py METADATA_URI BOOKIE [TARGET]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit jobs/recover_bookie.py zk1.example.com:2181 192.168.1.10:3181

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("recover_bookie")
