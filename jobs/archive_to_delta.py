r"""Put the rows of closed ledgers into a Delta table, each row exactly once.

    spark-submit jobs/archive_to_delta.py METADATA_URI PATH [LEDGER ...]

The same as ``spark-bookkeeper`` on the command line; ``--help`` lists the options. For example::

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
        jobs/archive_to_delta.py zk1.example.com:2181 /data/clicks --log clicks

Exit code: 0 everything asked for is done; 1 something is left undone, and the report says what
and why; 2 the call was wrong or the cluster cannot be reached, and nothing was changed.
"""

if __name__ == "__main__":
    from spark_bookkeeper.cli.shell.program import run_script

    run_script("archive_to_delta")
