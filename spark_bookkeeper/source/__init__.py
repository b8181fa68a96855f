"""The data source ``bookkeeper``: ledgers and logs as Spark itself reads and writes them."""
