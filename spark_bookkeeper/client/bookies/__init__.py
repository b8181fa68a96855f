"""Reaching bookies: which ones exist, and calls to them with a bound on silence."""
