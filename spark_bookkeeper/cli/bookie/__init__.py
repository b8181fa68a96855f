"""``spark-bookkeeper bookie``: its verbs, by what they are about."""
