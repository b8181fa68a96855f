"""``spark-bookkeeper autorecovery``: automatic repair of a cluster."""
