"""What tests of a storage or metadata back end, or of another kind of bookie, need.

Conformance suites to inherit, twins of the back ends in memory, and a ground of local bookies.
"""
