"""``spark-bookkeeper log``: a module for each subject of its verbs."""
