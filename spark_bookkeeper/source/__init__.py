"""The data source ``bookkeeper``: Spark itself reads and writes ledgers and logs with it."""
