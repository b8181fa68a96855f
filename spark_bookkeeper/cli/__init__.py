"""The command line ``spark-bookkeeper``: a file or folder for each noun, and ``shell`` for all."""
