"""``spark-bookkeeper autorecovery``: a cluster that keeps itself whole."""
