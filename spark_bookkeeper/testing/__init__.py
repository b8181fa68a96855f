"""Tools to test a storage or metadata back end, or another implementation of a bookie.

They are conformance suites to inherit, back ends in memory, and a cluster of local bookies.
"""
