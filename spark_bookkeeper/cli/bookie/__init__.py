"""``spark-bookkeeper bookie``: a module for each subject of its verbs."""
