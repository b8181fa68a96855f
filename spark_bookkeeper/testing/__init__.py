"""What tests of this library, and of storage or metadata back ends written elsewhere, stand on.

Memory twins, a seeded simulation, checkers of the named invariants, and conformance suites to
inherit.
"""
