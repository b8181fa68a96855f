"""Spark: sessions, appends and scans of DataFrames, and long work distributed over a cluster.

Uses only the DataFrame and Data Source interfaces, so that Spark Connect works too.
"""
