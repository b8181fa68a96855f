"""Reaching bookies: who there is, asking one with a bound on its silence."""
