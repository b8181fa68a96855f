"""Test suites that every back end of an interface inherits."""
