"""The command line ``spark-bookkeeper``: a module or folder for each noun; ``shell`` is shared."""
