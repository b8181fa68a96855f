"""``spark-bookkeeper log``: its verbs, by what they are about."""
