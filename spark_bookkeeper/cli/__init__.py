"""The command line ``spark-bookkeeper``, one file for each noun."""
