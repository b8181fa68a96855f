"""``spark-bookkeeper ledger``: a module for each subject of its verbs."""
