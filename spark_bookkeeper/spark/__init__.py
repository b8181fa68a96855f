"""Spark: sessions, DataFrame appends and scans, and the distributed form of long work.

Uses the DataFrame and Data Source interfaces only, so that Spark Connect works too.
"""
