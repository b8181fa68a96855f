"""``spark-bookkeeper ledger``: its verbs, by what they are about."""
