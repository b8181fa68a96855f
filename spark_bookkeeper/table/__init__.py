"""Rows of a Delta table as entries again: the bookie from which released ledgers are read."""
